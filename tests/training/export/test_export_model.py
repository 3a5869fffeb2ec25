"""Exports that every consumer can use, from Keras 2, Keras 3 and tf.Module."""

import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.training import export_model
from generic_trainer.validation import Checker, ServingContract
from tests.examples import example
from tests.training.export import taxi
from tests.training.export.serving import move, serve


def assert_valid(checker: Checker, directory: str, **contract: Any) -> None:
    """Asserts that the validator finds nothing to complain about."""
    contract.setdefault("examples", tuple(taxi.examples(without=())))
    report = checker.validate(directory, ServingContract(label_keys=("tips",), **contract))
    complaints = [result for result in report.results if result.status in ("fail", "warn")]
    assert complaints == []


def test_raw_features(keras: Any, tmp_path: Path, checker: Checker) -> None:
    model = taxi.raw_model(keras)
    directory = move(export_model(model, tmp_path / "1", schema=taxi.schema()))
    assert_valid(checker, directory)
    outputs = serve(directory, examples=taxi.examples(without=("tips", "company")))
    expected = model(taxi.raw_batch(), training=False)
    np.testing.assert_allclose(outputs["outputs"], expected, rtol=1e-5)


def test_transform_graph(
    keras: Any, tmp_path: Path, checker: Checker, transform_graph: str
) -> None:
    graph = shutil.copytree(transform_graph, tmp_path / "graph")
    model = taxi.transformed_model(keras)
    fn_args = types.SimpleNamespace(
        serving_model_dir=str(tmp_path / "1"), transform_graph_path=str(graph), schema_path=None
    )
    directory = move(export_model(model, fn_args, label_keys=("tips",)))
    shutil.rmtree(graph)
    assert_valid(checker, directory)
    expected = model(taxi.transformed_batch(), training=False)
    outputs = serve(directory, examples=taxi.examples())
    np.testing.assert_allclose(outputs["outputs"], expected, rtol=1e-5)
    features = serve(directory, "transform_features", examples=taxi.examples(without=()))
    for name, values in taxi.transformed_batch().items():
        np.testing.assert_allclose(features[name], values, rtol=1e-5)
    labels = serve(directory, "transform_labels", examples=taxi.examples(without=("miles",)))
    np.testing.assert_array_equal(labels["tips_xf"], features["tips_xf"])
    assert labels.keys() == {"tips_xf"}


class Echo(tf.Module):
    """A model that returns what it gets, as a row of numbers."""

    def __call__(self, inputs: Any) -> tf.Tensor:
        values = inputs.values() if isinstance(inputs, dict) else [inputs]
        dense = [value for value in values if isinstance(value, tf.Tensor)]
        return tf.concat([tf.cast(value, tf.float32) for value in dense], 1)


@pytest.mark.parametrize("joins", ["model", "preprocess"])
def test_transformed_features_are_joined_in_the_order_of_training(
    joins: str, tmp_path: Path, transform_graph: str
) -> None:
    directory = export_model(
        Echo(),
        tmp_path / "1",
        transform_graph=transform_graph,
        label_keys=("tips",),
        preprocess=Echo() if joins == "preprocess" else None,
    )
    served = serve(move(directory), examples=taxi.examples())["outputs"]
    batch = taxi.transformed_batch()
    in_order = [batch[name] for name in ("company_xf", "miles_xf", "payment_xf")]
    np.testing.assert_allclose(served, np.concatenate(in_order, 1), rtol=1e-5)


def test_a_schema_takes_the_place_of_the_transform_graph(
    tmp_path: Path, transform_graph: str
) -> None:
    fn_args = types.SimpleNamespace(
        serving_model_dir=str(tmp_path / "1"), transform_graph_path=transform_graph
    )
    directory = export_model(Echo(), fn_args, schema=taxi.schema(), inputs="miles")
    outputs = serve(move(directory), examples=taxi.examples())["outputs"]
    np.testing.assert_array_equal(outputs, taxi.raw_batch()["miles"])


@pytest.mark.parametrize("made", ["of a list", "added to", "nested", "cloned", "fit"])
def test_sequential_model_whose_input_has_a_name(keras: Any, made: str, tmp_path: Path) -> None:
    layers = [keras.Input((2,), name="x"), keras.layers.Dense(1)]
    model = keras.Sequential(layers if made != "added to" else None)
    if made == "added to":
        for layer in layers:
            model.add(layer)
    elif made == "nested":
        model = keras.Sequential([keras.Input((2,), name="x"), keras.Sequential(layers)])
    elif made == "cloned":
        model = keras.models.clone_model(model)
    elif made == "fit":
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(np.ones([2, 2]), np.ones([2, 1]), verbose=0)
    spec = {name: tf.io.FixedLenFeature([2], tf.float32) for name in ("x", "y")}
    directory = export_model(model, tmp_path / "1", feature_spec=spec)
    serve = tf.saved_model.load(directory).signatures["serving_default"]
    served = serve(tf.constant([example(x=[1.0, 2.0])]))
    expected = model(tf.constant([[1.0, 2.0]]))
    np.testing.assert_allclose(served["outputs"], expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["list", "dict", "nested"])
def test_layers_in_containers_after_training(keras: Any, kind: str, tmp_path: Path) -> None:
    class Recommender(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            users, items = (keras.layers.StringLookup(vocabulary=[*each]) for each in ("ab", "cd"))
            self.look_up: Any = {
                "list": [users, items],
                "dict": {"user": users, "item": items},
                "nested": {"all": [{"user": users}, (items,)]},
            }[kind]
            self.embed = [keras.layers.Embedding(3, 2), keras.layers.Embedding(3, 2)]
            self.score = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            found = self.look_up
            if kind == "nested":
                users, items = found["all"][0]["user"], found["all"][1][0]
            else:
                users, items = found if kind == "list" else (found["user"], found["item"])
            ids = users(inputs["user"]), items(inputs["item"])
            embedded = [embed(each) for embed, each in zip(self.embed, ids, strict=True)]
            return self.score(tf.reshape(tf.concat(embedded, -1), [-1, 4]))

    batch = {"user": tf.constant([["b"]]), "item": tf.constant([["c"]])}
    model = Recommender()
    model.compile("adam", "mse")
    model.fit(tf.data.Dataset.from_tensors((batch, [[1.0]])), verbose=0)
    spec = {name: tf.io.FixedLenFeature([1], tf.string) for name in batch}
    inputs = {name: name for name in batch}
    directory = move(export_model(model, tmp_path / "1", feature_spec=spec, inputs=inputs))
    served = serve(directory, examples=[example(user=[b"b"], item=[b"c"])])
    np.testing.assert_allclose(served["outputs"], model(batch), rtol=1e-5)
    variables = tf.train.list_variables(f"{directory}/variables/variables")
    sizes = sorted(np.prod(shape, dtype=int) for _, shape in variables if shape)
    assert sizes == [1, 4, 6, 6]  # without those of the optimizer
