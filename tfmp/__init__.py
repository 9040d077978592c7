"""tfmp: mixed-precision training for TensorFlow and Keras by rewriting graphs. Set `TF_ENABLE_AUTO_MIXED_PRECISION=1`, or see `enable`."""

from tfmp import startup

TYPE_CHECKING = False  # stands for `typing.TYPE_CHECKING`: like `__future__` and `importlib`, `typing` is not loaded in a bare interpreter

__version__ = "0.1.0"

_HOME = {
    "convert_graph_def": "tfmp.engine",
    "convert_function": "tfmp.engine",
    "Conversion": "tfmp.conversion",
    "enable": "tfmp.hooks.activation",
    "disable": "tfmp.hooks.activation",
    "mixed_precision": "tfmp.hooks.activation",
    "float32": "tfmp.hooks.regions",
    "enable_mixed_precision_graph_rewrite": "tfmp.hooks.optimizer",
    "disable_mixed_precision_graph_rewrite": "tfmp.hooks.optimizer",
    "MixedPrecisionBoard": "tfmp.hooks.board_keras3",
    "write_summaries": "tfmp.hooks.board",
    "report": "tfmp.reports.account",
    "report_on": "tfmp.reports.account",
    "DynamicLossScale": "tfmp.optimizers.policies",
    "FixedLossScale": "tfmp.optimizers.policies",
    "NoLossScale": "tfmp.optimizers.policies",
    "LossScaleOptimizer": "tfmp.optimizers.keras3",
    "LossScaleMonitor": "tfmp.optimizers.keras3",
    "LossScaler": "tfmp.optimizers.scaler",
    "Settings": "tfmp.settings",
    "LEVELS": "tfmp.settings",
    "MixedPrecisionWarning": "tfmp.errors",
    "TfmpError": "tfmp.errors",
    "SettingsError": "tfmp.errors",
    "GraphError": "tfmp.errors",
    "RewriteError": "tfmp.errors",
}
"""Public name to the module that holds it; read when first used, so that `import tfmp` imports neither TensorFlow nor NumPy."""

_ROOMS = ("numerics",)
"""Modules that are public as a whole, with names of their own; imported when first used."""

__all__ = ["__version__", *_HOME, *_ROOMS]  # noqa: PLE0604  (all are strings)


def __getattr__(name: str) -> object:
    """Returns a public name from its home module."""
    if name not in _HOME and name not in _ROOMS:
        raise AttributeError(f"module 'tfmp' has no attribute {name!r}; it has {', '.join(sorted((*_HOME, *_ROOMS)))}.")
    from importlib import import_module

    return import_module(f"tfmp.{name}") if name in _ROOMS else getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return sorted(__all__)


if TYPE_CHECKING:
    from tfmp import numerics
    from tfmp.conversion import Conversion
    from tfmp.engine import convert_function, convert_graph_def
    from tfmp.errors import GraphError, MixedPrecisionWarning, RewriteError, SettingsError, TfmpError
    from tfmp.hooks.activation import disable, enable, mixed_precision
    from tfmp.hooks.board import write_summaries
    from tfmp.hooks.board_keras3 import MixedPrecisionBoard
    from tfmp.hooks.optimizer import disable_mixed_precision_graph_rewrite, enable_mixed_precision_graph_rewrite
    from tfmp.hooks.regions import float32
    from tfmp.optimizers.keras3 import LossScaleMonitor, LossScaleOptimizer
    from tfmp.optimizers.policies import DynamicLossScale, FixedLossScale, NoLossScale
    from tfmp.optimizers.scaler import LossScaler
    from tfmp.reports.account import report, report_on
    from tfmp.settings import LEVELS, Settings

startup.install()
