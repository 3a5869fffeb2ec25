"""The shapes of model that are accepted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.training import export_model
from generic_trainer.training.export import export_on_tensors, inference_arguments
from generic_trainer.validation import Checker, ServingContract
from tests.examples import example
from tests.training.export import taxi
from tests.training.export.serving import move, serve

MILES = {"miles": tf.io.FixedLenFeature([1], tf.float32)}


class Linear(tf.Module):
    """y = 2 x, with a table, an optimizer and a train step that no export should contain."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable([[2.0]], name="weight")
        self.unused = tf.Variable(tf.zeros([1000]), name="slot")
        keys, values = tf.constant(taxi.PAYMENTS), tf.constant([1.0, 2.0, 3.0])
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
        self.table = tf.lookup.StaticHashTable(initializer, 0.0)

    @tf.function
    def train_step(self, x: tf.Tensor) -> tf.Tensor:
        return self.weight.assign_add(tf.py_function(lambda: x, [], tf.float32))

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        score = features["miles"] @ self.weight
        if tf.size(features["payment"]) > 0:  # a branch of the graph, made by AutoGraph
            score += self.table.lookup(features["payment"])
        return {"score": score, "payment": features["payment"]}


def test_module_with_table_and_string_output(tmp_path: Path, checker: Checker) -> None:
    model = Linear()
    model.train_step.get_concrete_function(tf.constant([[1.0]]))
    spec = {**MILES, "payment": tf.io.FixedLenFeature([1], tf.string)}
    directory = move(export_model(model, tmp_path / "1", feature_spec=spec))
    assert b"EagerPyFunc" not in Path(directory, "saved_model.pb").read_bytes()  # its train step
    contract = ServingContract(examples=tuple(taxi.examples()))
    assert checker.validate(directory, contract).passed
    outputs = serve(directory, examples=taxi.examples(4))
    np.testing.assert_allclose(outputs["score"][:, 0], [1.0, 4.0, 7.0, 7.0])
    assert outputs["payment"][:, 0].tolist() == [b"cash", b"card", b"none", b"cash"]


def test_optimizer_is_left_out(keras: Any, tmp_path: Path) -> None:
    inputs = keras.Input((1,), name="miles")
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    model.fit(tf.ones([4, 1]), tf.ones([4, 1]), verbose=0)
    directory = export_model(model, tmp_path / "1", feature_spec=MILES)
    names = [name for name, _ in tf.train.list_variables(f"{directory}/variables/variables")]
    values = [name for name in names if name.endswith("VARIABLE_VALUE")]
    assert len(values) == 2
    loaded = tf.saved_model.load(directory).model_weights
    for found, expected in zip(loaded, model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


def subclassed(keras: Any) -> Any:
    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return {"score": self.dense(inputs["miles"])}

    return Subclassed()


def test_subclassed_model_remembers_its_inputs(keras: Any, tmp_path: Path) -> None:
    model = subclassed(keras)
    expected = model({"miles": taxi.raw_batch()["miles"]})["score"]
    directory = export_model(model, tmp_path / "1", schema=taxi.schema())
    outputs = serve(directory, examples=taxi.examples(without=("payment", "tips", "company")))
    np.testing.assert_allclose(outputs["score"], expected, rtol=1e-6)


def test_list_in_several_out(tmp_path: Path, checker: Checker) -> None:
    import keras

    one, two = keras.Input((1,), name="miles"), keras.Input((1,), name="tips")
    heads = [keras.layers.Dense(1, name="a")(one), keras.layers.Dense(2, name="b")(two)]
    model = keras.Model([one, two], heads)
    directory = move(export_model(model, tmp_path / "1", schema=taxi.schema()))
    contract = ServingContract(examples=tuple(taxi.examples(without=())))
    assert checker.validate(directory, contract).passed
    outputs = serve(directory, examples=taxi.examples(without=()))
    columns = taxi.rows()
    batch = [tf.constant(columns[name])[:, tf.newaxis] for name in ("miles", "tips")]
    for name, expected in zip(model.output_names, model(batch), strict=True):
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-6)


@pytest.mark.parametrize("shared", ["layer", "states", "operation"])
def test_each_output_is_served_if_one_layer_makes_several(
    keras: Any, shared: str, tmp_path: Path
) -> None:
    x, y = (keras.Input((2,), name=name) for name in "xy")
    if shared == "layer":
        layer = keras.layers.Dense(1)
        outputs = [layer(x), layer(y)]
    elif shared == "states":
        steps = keras.layers.Reshape((4, 1))(keras.layers.Concatenate()([x, y]))
        outputs = [*keras.layers.LSTM(1, return_state=True)(steps)]
    elif hasattr(keras, "ops"):
        outputs = [*keras.ops.split(keras.layers.Concatenate()([x, y]), 2, axis=1)]
    else:
        pytest.skip("Keras 2 has no operations")
    model = keras.Model({"x": x, "y": y}, outputs)
    spec = {name: tf.io.FixedLenFeature([2], tf.float32) for name in "xy"}
    export_model(model, str(tmp_path / "model"), feature_spec=spec)

    serve = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    served = serve(tf.constant([example(x=[1.0, 2.0], y=[3.0, 4.0])]))
    batch = {"x": tf.constant([[1.0, 2.0]]), "y": tf.constant([[3.0, 4.0]])}
    expected = sorted(np.array(each).ravel().tolist() for each in model(batch))
    assert sorted(each.numpy().ravel().tolist() for each in served.values()) == expected


def test_sequential_model_with_named_feature(keras: Any, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    directory = export_model(model, tmp_path / "1", schema=taxi.schema(), inputs="miles")
    expected = model(taxi.raw_batch()["miles"])
    outputs = serve(directory, examples=taxi.examples())
    np.testing.assert_allclose(outputs["outputs"], expected, rtol=1e-6)


def test_a_tensor_for_each_input(keras: Any, tmp_path: Path) -> None:
    layers = keras.layers
    pair = keras.Input((2,), name="pair"), keras.Input((1,), name="one")
    hidden = layers.Dropout(0.5)(layers.Concatenate()(pair))
    model = keras.Model(pair, layers.Dense(1, name="score")(hidden))
    specs = tuple(
        tf.TensorSpec([None, size], tf.float32, name) for size, name in ((2, "a"), (1, "b"))
    )
    directory = str(tmp_path / "1")
    export_on_tensors(model, specs, directory)
    a, b = np.array([[1.0, 2.0]], np.float32), np.array([[3.0]], np.float32)
    (outputs,) = serve(move(directory), a=a, b=b).values()
    np.testing.assert_allclose(outputs, model((a, b), training=False), rtol=1e-6)


def test_a_model_that_can_be_told_that_it_does_not_train(keras: Any) -> None:
    assert inference_arguments(keras.Sequential()) == {"training": False}
    assert inference_arguments(Linear()) == {}


def test_functions_around_the_model(tmp_path: Path) -> None:
    def preprocess(features: dict[str, Any]) -> tf.Tensor:
        company = tf.sparse.to_dense(features["company"], "nobody")
        return tf.concat([features["payment"], company[:, :1]], axis=1)

    def postprocess(joined: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"ride": joined}

    class Join(tf.Module):
        def __call__(self, pairs: tf.Tensor) -> tf.Tensor:
            return tf.strings.reduce_join(pairs, axis=1, separator=" ")

    directory = export_model(
        Join(),
        tmp_path / "1",
        schema=taxi.schema(),
        label_keys=("tips",),
        preprocess=preprocess,
        postprocess=postprocess,
    )
    outputs = serve(directory, examples=taxi.examples(2))
    assert outputs["ride"].tolist() == [b"cash Blue", b"card nobody"]


def test_columns_of_any_name_and_with_missing_values_in_a_signature_of_their_own(
    tmp_path: Path, checker: Checker
) -> None:
    spec = {
        "miles (all)": tf.io.FixedLenFeature([1], tf.float32),
        "class": tf.io.FixedLenFeature([], tf.int64),
        "_pixels": tf.io.FixedLenFeature([2, 2], tf.float32),
        "seats": tf.io.VarLenFeature(tf.int64),
        "Seats": tf.io.VarLenFeature(tf.string),
        "self": tf.io.FixedLenFeature([], tf.int64),
        "a.b": tf.io.FixedLenFeature([], tf.int64),
        "a b": tf.io.FixedLenFeature([], tf.int64),
        "1st": tf.io.FixedLenFeature([], tf.int64),
    }

    class Dense(tf.Module):
        def __call__(self, features: dict[str, Any]) -> dict[str, tf.Tensor]:
            dense = {
                name: tf.sparse.to_dense(
                    tf.SparseTensor(x.indices, x.values, [x.dense_shape[0], 1])
                )
                if isinstance(x, tf.SparseTensor)
                else x
                for name, x in features.items()
            }
            return {f"{name}_": value for name, value in dense.items()}

    directory = export_model(
        Dense(), tmp_path / "1", feature_spec=spec, columns_signature="columns"
    )
    assert checker.validate(directory).passed
    outputs = tf.saved_model.load(directory).signatures["columns"](
        **{
            "miles__all_": tf.constant([1.0, 2.0]),
            "class_": tf.constant([2**60, 1], tf.int64),
            "column_pixels": tf.ones([2, 2, 2]),
            "seats": tf.constant([2.0**53 - 1, float("nan")], tf.float64),
            "Seats_2": tf.constant(["", "cash"]),
            "self_": tf.constant([3, 4], tf.int64),
            "a.b": tf.constant([5, 6], tf.int64),
            "a_b_2": tf.constant([7, 8], tf.int64),
            "arg_1st": tf.constant([9, 10], tf.int64),
        }
    )
    found = {name: value.numpy().tolist() for name, value in outputs.items()}
    assert found == {
        "miles (all)_": [[1.0], [2.0]],
        "class_": [2**60, 1],
        "_pixels_": [[[1.0, 1.0], [1.0, 1.0]]] * 2,
        "seats_": [[2**53 - 1], [0]],
        "Seats_": [[b""], [b"cash"]],
        "self_": [3, 4],
        "a.b_": [5, 6],
        "a b_": [7, 8],
        "1st_": [9, 10],
    }


def test_an_adapted_lookup_layer(keras: Any, tmp_path: Path) -> None:
    words = keras.layers.StringLookup(output_mode="one_hot")
    words.adapt(np.array([["a"], ["b"]]))
    inputs = keras.Input((1,), name="word", dtype="string")
    model = keras.Model(inputs, words(inputs))
    spec = {"word": tf.io.FixedLenFeature([1], tf.string)}
    directory = export_model(model, tmp_path / "1", feature_spec=spec, columns_signature="words")
    found = tf.saved_model.load(directory).signatures["words"](word=tf.constant(["b", "c"]))
    words = found["outputs"].numpy()
    assert words.sum(axis=1).tolist() == [1, 1] and words[1, 0] == 1 and words[0, 0] == 0
