"""Predictions are found in graphs that were written for training alone."""

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from generic_trainer.errors import ExportError
from generic_trainer.trials.tensorflow import TensorFlowTrial
from generic_trainer.trials.tensorflow._serving import find_predictions


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
    found, inputs = find_predictions(record, outputs)
    assert found.keys() == {"logits_out", "best"}
    assert inputs.keys() == {"image"}


def test_features_that_join_on_the_way_are_no_labels(graph):
    record = components(deep=floats(4, 3), wide=floats(4, 2), price=floats(4, 1))
    joined = tf.concat([dense(record["deep"], 3, "deep"), record["wide"]], axis=1)
    price = dense(joined, 1, "price")
    outputs = {"loss": tf.reduce_mean(tf.square(price - record["price"]))}
    found, inputs = find_predictions(record, outputs)
    assert list(found) == ["price_out"]
    assert inputs.keys() == {"deep", "wide"}


def test_in_a_tuple_the_label_comes_second(graph):
    parts = components(a=floats(4, 3), b=floats(4, 1))
    record = (parts["a"], parts["b"])
    score = dense(record[0], 1, "score")
    outputs = {"loss": tf.reduce_mean(tf.square(score - record[1]))}
    found, inputs = find_predictions(record, outputs)
    assert (list(found), list(inputs)) == (["score_out"], ["record_0"])


def test_what_build_graph_returns_comes_first(graph):
    record = components(x=floats(4, 3), label=floats(4, 1))
    score = dense(record["x"], 1, "score")
    outputs = {
        "loss": tf.reduce_mean(tf.square(score - record["label"])),
        "scores": tf.sigmoid(score),
        "errors": score - record["label"],
    }
    assert list(find_predictions(record, outputs)[0]) == ["scores"]


XYZ = {"x": floats(4, 3), "y": floats(4, 2), "z": floats(4, 1)}


@pytest.mark.parametrize("is_returned", [True, False])
@pytest.mark.parametrize("names", ["x y z", "height target z", "x y label", "a b c", None])
def test_what_a_weight_is_applied_to_is_no_label(graph, names, is_returned):
    parts = components(**XYZ)
    keys = names.split() if names else ("record_0", "record_1", "record_2")
    record = dict(zip(keys, parts.values(), strict=True)) if names else tuple(parts.values())
    x, y, z = parts.values()
    total = tf.add(dense(x, 1, "of_x"), dense(y, 1, "of_y"), "total")
    outputs = {"loss": tf.reduce_mean(tf.square(total - z)) + 0.1 * tf.nn.l2_loss(total)}
    found, inputs = find_predictions(record, outputs | ({"z": total} if is_returned else {}))
    assert [tensor.op.name for tensor in found.values()] == ["total"]
    assert list(inputs) == list(keys[:2])


def weighted_loss(score, label, weight):
    return tf.reduce_sum(weight * tf.square(score - label)) / tf.reduce_sum(weight)


@pytest.mark.parametrize(
    ("keys", "is_returned"),
    [("area price importance", True), ("area label importance", False), ("area y w", False)],
)
def test_neither_a_label_nor_the_weight_of_an_error_is_an_input(graph, keys, is_returned):
    record = dict(zip(keys.split(), components(**XYZ).values(), strict=True))
    x, label, weight = record.values()
    score = dense(x, 2, "score")
    outputs = {"loss": weighted_loss(score, label, weight), "errors": score - label}
    found, inputs = find_predictions(record, outputs | ({"price": score} if is_returned else {}))
    assert [tensor.op.name for tensor in found.values()] == ["score/out"]
    assert list(inputs) == ["area"]


@pytest.mark.parametrize(
    "loss",
    [
        lambda *args: weighted_loss(*args),
        lambda score, label, cost: tf.reduce_mean((score - label) ** 2 + cost),
    ],
    ids=["weight", "cost"],
)
def test_of_weight_and_label_without_a_name_it_is_asked_which_one_is_which(graph, loss):
    record = components(area=floats(4, 3), price=floats(4, 2), importance=floats(4, 1))
    outputs = {"loss": loss(dense(record["area"], 2, "score"), *[*record.values()][1:])}
    with pytest.raises(ExportError, match=r"not on \['importance', 'price'\]"):
        find_predictions(record, outputs)


def square(score, label):
    return tf.square(score - label)


def entropy(score, label):
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=score)


def likelihood(score, label):  # is a sum of two losses with weights, too
    p = tf.sigmoid(score)
    return -label * tf.math.log(p) - (1 - label) * tf.math.log(1 - p)


@pytest.mark.parametrize(
    ("loss", "is_weighted", "returned"),
    [
        (square, False, "score"),
        (square, True, "score errors"),
        (square, False, ""),
        (entropy, True, "score"),
        (entropy, False, ""),
        (likelihood, False, "score errors"),
    ],
)
def test_an_offset_is_an_input_and_a_warning_says_so(graph, caplog, loss, is_weighted, returned):
    record = components(age=floats(4, 3), years=floats(4, 1), ill=floats(4, 1), trust=floats(4, 1))
    score = tf.add(dense(record["age"], 1, "own"), record["years"], "score")
    losses = loss(score, record["ill"]) * (record["trust"] if is_weighted else 1.0)
    per_row = {"score": score, "errors": score - record["ill"]}
    outputs = {"loss": tf.reduce_mean(losses)} | {name: per_row[name] for name in returned.split()}
    found, inputs = find_predictions(record, outputs)
    assert "score" in found  # and other terms of an entropy, which meet the label too
    assert "errors" not in found
    assert list(inputs) == ["age", "years"]
    labels = ["ill", "trust"] if is_weighted else ["ill"]
    assert f"needs ['years'], and {labels} is taken for the label" in caplog.text


@pytest.mark.parametrize(
    "scaled",
    [
        lambda errors, t: errors + 0.1 * sum(map(tf.nn.l2_loss, tf.trainable_variables())),
        lambda errors, t: errors / tf.exp(t),
        lambda errors, t: errors * tf.nn.softplus(t) + t,
    ],
)
def test_penalties_and_learned_scales_of_an_error_are_no_weights_of_a_label(graph, scaled):
    record = components(age=floats(4, 3), ill=floats(4, 1))
    errors = tf.square(dense(record["age"], 1, "score") - record["ill"])
    outputs = {"loss": tf.reduce_mean(scaled(errors, tf.get_variable("t", [])))}
    found, inputs = find_predictions(record, outputs)
    assert (list(found), list(inputs)) == (["score_out"], ["age"])


@pytest.mark.parametrize("of_weight", [tf.identity, tf.nn.softplus])
def test_a_weight_may_be_a_scalar(graph, of_weight):
    record = components(age=floats(4, 1), ill=floats(4, 1))
    score = tf.add(record["age"] * of_weight(tf.get_variable("w", [])), 1.0, "score")
    found, inputs = find_predictions(
        record, {"loss": tf.reduce_mean(tf.square(score - record["ill"]))}
    )
    assert (list(found), list(inputs)) == (["score"], ["age"])


def test_each_of_two_labels_has_its_prediction(graph):
    record = components(**XYZ)
    loss = 0.0
    for name, units in (("y", 2), ("z", 1)):
        score = dense(record["x"], units, f"of_{name}")
        loss += tf.reduce_mean(tf.square(score - record[name]))
    record = {"x": record["x"], "box": record["y"], "area": record["z"]}
    found, inputs = find_predictions(record, {"loss": loss})
    assert found.keys() == {"of_y_out", "of_z_out"}
    assert list(inputs) == ["x"]


SPARSE = """
    feature { name: "words" type: INT }
    feature { name: "label" type: FLOAT presence { min_fraction: 1 } shape { dim { size: 1 } } }
"""


def make_data_loaders(experiment_config, hparams):
    """Sparse words, of which there is none in the second record, and a label."""
    words = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], np.int64([1, 3, 2]), [3, 4])
    data = tf.data.Dataset.from_tensor_slices(({"words": words}, floats(3, 1))).batch(2)
    return data, data


class OfWords(TensorFlowTrial):
    """The score of a record is the number of its words, which a lookup table has."""

    def build_graph(self, record, is_training):
        features, label = record
        numbers = tf.lookup.KeyValueTensorInitializer(np.arange(9), np.arange(9)[::-1])
        numbers = tf.lookup.StaticHashTable(numbers, default_value=0)
        words = features["words"].with_values(numbers.lookup(features["words"].values))
        table = tf.get_variable("table", [9, 1], initializer=tf.ones_initializer())
        score = tf.nn.safe_embedding_lookup_sparse(table, words, combiner="sum")
        return {"loss": tf.reduce_mean(tf.square(score - label)), "score": score}

    def optimizer(self):
        return tf.train.GradientDescentOptimizer(0.0)

    def validation_metrics(self):
        return ["loss"]


@pytest.mark.parametrize("has_schema", [False, True])
def test_sparse_parts_of_a_record(run_experiment, tmp_path, has_schema):
    (tmp_path / "schema.pbtxt").write_text(SPARSE)
    searcher = {"metric": "loss", "max_length": {"batches": 2}}
    schema = str(tmp_path / "schema.pbtxt") if has_schema else None
    run_experiment(OfWords, {"searcher": searcher}, schema_path=schema)
    model = tf2.saved_model.load(str(tmp_path / "Format-Serving"))
    rows = [[1, 3, 5], [], [2]]
    if has_schema:
        made = [{"words": tf.train.Feature(int64_list={"value": row})} for row in rows]
        examples = [tf.train.Example(features={"feature": one}) for one in made]
        fed = {"examples": tf2.constant([one.SerializeToString() for one in examples])}
    else:
        fed = {"words": tf2.constant([[1, 3, 5], [0, 0, 0], [2, 0, 0]], tf.int64)}
    found = model.signatures["serving_default"](**fed)
    assert np.ravel(found["score"]).tolist() == [3, 0, 1]
