"""The TensorBoard callback for tf_keras."""

from __future__ import annotations

import tf_keras

from tfmp.hooks.board import BoardRules


class TfKerasMixedPrecisionBoard(BoardRules, tf_keras.callbacks.Callback):
    """A tf_keras callback that shows mixed precision in TensorBoard; see `BoardRules`."""
