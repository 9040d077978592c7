"""The TensorBoard callback for Keras 3."""

from __future__ import annotations

import keras

from tfmp.hooks.board import BoardRules


class MixedPrecisionBoard(BoardRules, keras.callbacks.Callback):
    """A Keras 3 callback that shows mixed precision in TensorBoard; see `BoardRules`."""
