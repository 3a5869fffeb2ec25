"""Predictions are found in graphs that were written for training alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from generic_trainer.errors import ExportError
from generic_trainer.trials.tensorflow._serving import find_predictions, inputs_of


def dense(x, units, name):
    w = tf.get_variable(name, [x.shape[1], units])
    return tf.nn.relu(x @ w, name=f"{name}/out")


def components(**values):
    data = tf.data.Dataset.from_tensor_slices(values).batch(2)
    return tf.data.make_one_shot_iterator(data).get_next()


def floats(*shape):
    return np.ones(shape, np.float32)


@pytest.fixture
def graph():
    with tf.Graph().as_default():
        yield


def test_the_logits_are_found_where_the_label_comes_in(graph):
    record = components(image=floats(4, 3), which=np.zeros(4, np.int64))
    logits = dense(record["image"], 5, "logits")
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=record["which"], logits=logits)
    )
    right = tf.equal(tf.argmax(logits, 1, name="best"), record["which"])
    outputs = {"loss": loss, "accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}
    found = find_predictions(record, record, outputs)
    assert found.keys() == {"logits_out", "best"}
    assert inputs_of(found.values(), record).keys() == {"image"}


def test_features_that_join_on_the_way_are_no_labels(graph):
    record = components(deep=floats(4, 3), wide=floats(4, 2), price=floats(4, 1))
    joined = tf.concat([dense(record["deep"], 3, "deep"), record["wide"]], axis=1)
    price = dense(joined, 1, "price")
    outputs = {"loss": tf.reduce_mean(tf.square(price - record["price"]))}
    found = find_predictions(record, record, outputs)
    assert list(found) == ["price_out"]
    assert inputs_of(found.values(), record).keys() == {"deep", "wide"}


def test_a_weight_is_no_feature_where_the_label_has_its_name(graph):
    record = components(x=floats(4, 3), label=floats(4, 1), weight=floats(4, 1))
    score = dense(record["x"], 1, "score")
    outputs = {"loss": tf.reduce_mean(tf.square(score - record["label"]) * record["weight"])}
    found = find_predictions(record, record, outputs)
    assert list(found) == ["score_out"]


def test_in_a_tuple_the_label_comes_second(graph):
    parts = components(a=floats(4, 3), b=floats(4, 1))
    record = (parts["a"], parts["b"])
    score = dense(record[0], 1, "score")
    outputs = {"loss": tf.reduce_mean(tf.square(score - record[1]))}
    found = find_predictions(record, {"a": record[0], "b": record[1]}, outputs)
    assert list(found) == ["score_out"]


def test_what_build_graph_returns_comes_first(graph):
    record = components(x=floats(4, 3), label=floats(4, 1))
    score = dense(record["x"], 1, "score")
    outputs = {
        "loss": tf.reduce_mean(tf.square(score - record["label"])),
        "scores": tf.sigmoid(score),
        "errors": score - record["label"],
    }
    assert list(find_predictions(record, record, outputs)) == ["scores"]


def test_a_graph_without_predictions_is_refused(graph):
    record = components(x=floats(4, 3), label=floats(4, 1))
    w = tf.get_variable("w", [])
    outputs = {"loss": w * tf.reduce_mean(record["x"] - record["label"])}
    with pytest.raises(ExportError, match="Return it from build_graph"):
        find_predictions(record, record, outputs)
