"""Ops that stand for one kernel are replaced by that kernel, before anything is coloured.

Keras 3 spells batch normalisation with a dozen elementwise ops and reductions, and TensorFlow its gradient with two dozen more. The statistics must be in
float32, and so the data is cast, read and written many times. The kernel that TensorFlow has for it takes 16-bit data, computes in float32 inside, and reads
the data once.
"""
