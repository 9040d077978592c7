"""Loss scaling for every optimizer family: one rule, thin wrappers, all replicas in step.

`policies` and `loss_scale` are the rule, in plain Python. `state`, `gradients` and `agreement` are its TensorFlow
side, and `guard` joins them to "take this step or skip it". `keras3`, `tf_keras` and `v1` fit the guard to the
optimizers of their families, `scaler` to loops without an optimizer wrapper, `monitor` reports on it, and `wrap` picks
the family. Each module that imports TensorFlow or a Keras is imported only when it is needed.
"""
