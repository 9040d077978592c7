"""Layers from node names: names as Keras 3, tf_keras, gradient tapes and `tf.gradients` write them, and the layers of real models."""

from __future__ import annotations

import pytest

from tfmp.reports.layers import Place, place

FORWARD, BACKWARD = False, True


@pytest.mark.parametrize(
    ("name", "layer", "gradient"),
    [
        ("functional_1/conv2d_1/convolution", "functional_1/conv2d_1", FORWARD),
        ("functional_1/conv2d_1/Reshape/ReadVariableOp", "functional_1/conv2d_1", FORWARD),
        ("functional_1/batch_normalization_1/moments/mean", "functional_1/batch_normalization_1", FORWARD),
        ("functional_1/multi_head_attention_1/query_1/MatMul", "functional_1/multi_head_attention_1/query_1", FORWARD),
        ("functional_1/lstm_1/while/lstm_cell_1/MatMul_1", "functional_1/lstm_1/lstm_cell_1", FORWARD),
        ("functional_1/dropout_1_1/stateless_dropout/stateless_random_uniform/mul", "functional_1/dropout_1_1", FORWARD),
        ("compile_loss/mse/Mean", "compile_loss/mse", FORWARD),
        ("model/dropout/dropout/GreaterEqual/y", "model/dropout", FORWARD),
        ("model/dense/Tensordot/MatMul", "model/dense", FORWARD),
        ("model/max_pooling/MaxPool2d", "model/max_pooling", FORWARD),
        ("cond/adam/AssignSubVariableOp", "adam", FORWARD),
        ("cond/Adam/mul_2/y", "Adam", FORWARD),
        ("MatMul", "", FORWARD),
        ("MatMul/ReadVariableOp", "", FORWARD),
        ("while/MatMul", "", FORWARD),
        ("", "", FORWARD),
        ("model/add_1/Add", "model/add_1", FORWARD),  # keras.layers.Add
        ("model/add_1/add", "model/add_1", FORWARD),
        ("model/dense/add/ReadVariableOp", "model/dense", FORWARD),  # x + weight
        ("gradient_tape/model/dense/add/Sum", "model/dense", BACKWARD),
        ("gradient_tape/model/add_1/Add/Sum", "model/add_1", BACKWARD),
        ("gradient_tape/functional_1/dense_1/MatMul/MatMul_1", "functional_1/dense_1", BACKWARD),
        ("gradient_tape/model/lstm/while/gradients/AddN", "model/lstm", BACKWARD),
        ("gradient_tape/model/lstm/while/gradients/model/lstm/while/lstm_cell/MatMul_grad/MatMul", "model/lstm/lstm_cell", BACKWARD),
        ("gradient_tape/model/lstm/while/model/lstm/while/lstm_cell/Tanh_1_0/accumulator", "model/lstm/lstm_cell", BACKWARD),
        ("gradients/model/dense/MatMul_grad/MatMul", "model/dense", BACKWARD),
        ("gradients/while_grad/gradients/AddN", "", BACKWARD),
    ],
)
def test_names(name: str, layer: str, gradient: bool) -> None:
    assert place(name) == Place(layer, gradient)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("MatMul", "model/lstm"),
        ("while/split", "model/lstm"),
        ("model/lstm/while/MatMul", "model/lstm"),
        ("model/lstm/while/cell/MatMul", "model/lstm/cell"),
        ("cell/MatMul", "model/lstm/cell"),
        ("model/lstm_2/MatMul", "model/lstm/model/lstm_2"),
    ],
)
def test_inside_a_called_function(name: str, layer: str) -> None:
    assert place(name, Place("model/lstm", FORWARD)) == Place(layer, FORWARD)
    assert place(name, Place("model/lstm", BACKWARD)) == Place(layer, BACKWARD)
