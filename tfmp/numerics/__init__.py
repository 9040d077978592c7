"""Looking at numbers: what range they have, where float32 and mixed precision part, what became infinite first, and how little has to stay in float32.

Nothing here changes a model: functions are traced anew, and run on copies of their variables.
"""

from tfmp.measured.counts import Counts
from tfmp.measured.files import load, save
from tfmp.measured.record import OpRange, Ranges
from tfmp.measured.risk import Risk, at_risk, keep_float32, proposed_loss_scale, proved_safe
from tfmp.numerics.calibration import calibrate
from tfmp.numerics.comparison import Comparison, TensorComparison, compare
from tfmp.numerics.nonfinite import NonFinite, Value, find_nonfinite
from tfmp.numerics.picture import plot
from tfmp.numerics.tuning import Trial, Tuned, tune

__all__ = [
    "Comparison", "Counts", "NonFinite", "OpRange", "Ranges", "Risk", "TensorComparison", "Trial", "Tuned", "Value", "at_risk", "calibrate", "compare",
    "find_nonfinite", "keep_float32", "load", "plot", "proposed_loss_scale", "proved_safe", "save", "tune",
]  # fmt: skip
