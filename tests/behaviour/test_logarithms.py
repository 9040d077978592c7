"""Logarithms of spectra: quiet bands are as accurate as in float32, also beside loud ones, and what comes after is in 16 bit all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.behaviour.on_off import normal, run

LENGTH, BANDS = 128, 16
TIME = np.arange(4 * LENGTH)
SOUND = (0.9 * np.sin(0.2 * TIME) + 1e-4 * np.sin(1.3 * TIME)).astype(np.float32).reshape(4, LENGTH)  # the quiet tone is 79 dB below the loud one
TURNS = np.outer(np.arange(LENGTH), np.arange(LENGTH // 2)) * 2 * np.pi / LENGTH
COS, SIN = ((np.hanning(LENGTH)[:, None] * wave(TURNS)).astype(np.float32) for wave in (np.cos, np.sin))
MEL = np.repeat(np.eye(BANDS, dtype=np.float32), LENGTH // 2 // BANDS, axis=0)
HEAD = normal(BANDS, BANDS, scale=0.1)


def spectrum(sound: Any) -> Any:
    return tf.math.log((tf.square(sound @ COS) + tf.square(sound @ SIN)) @ MEL + 1e-9)


PROGRAMS = {"in one function": spectrum, "in an inner function": tf.function(spectrum)}


@pytest.mark.parametrize("where", PROGRAMS)
def test_the_logarithm_of_a_spectrum_is_as_accurate_as_in_float32(dtype: str, where: str) -> None:
    def program() -> Any:
        whole = tf.function(lambda sound: (features := PROGRAMS[where](sound), tf.nn.relu(features @ HEAD) @ HEAD))
        return whole(tf.constant(SOUND))

    runs = run(program, dtype).check()
    wide = [part.astype(np.float64) for part in (SOUND, COS, SIN, MEL)]
    expected = np.log(((wide[0] @ wide[1]) ** 2 + (wide[0] @ wide[2]) ** 2) @ wide[3] + 1e-9)
    assert expected.max() - expected.min() > 12
    np.testing.assert_allclose(runs.on[0], expected, atol=1e-2)
    assert any(0 < record.flop_share < 1 for record in runs.records)
