"""What export_model says when model, features and arguments do not fit together."""

import types
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError, DataError, ExportError
from generic_trainer.training import export_model
from tests.training.export import taxi

MILES = {"miles": tf.io.FixedLenFeature([1], tf.float32)}


def identity(x: Any) -> Any:
    return x


def functional(**dtypes: str) -> keras.Model:
    inputs = {name: keras.Input((1,), name=name, dtype=dtype) for name, dtype in dtypes.items()}
    return keras.Model(inputs, {name: keras.layers.Identity()(x) for name, x in inputs.items()})


def message(error: type[Exception], *arguments: Any, **options: Any) -> str:
    with pytest.raises(error) as caught:
        export_model(*arguments, **options)
    return str(caught.value)


def test_all_mismatches_at_once(tmp_path: Path) -> None:
    model = functional(mile="float32", payment="float32", company="string", zone="int64")
    text = message(ConfigurationError, model, tmp_path / "1", schema=taxi.schema())
    assert (
        "features of the schema" in text and "['company', 'id', 'miles', 'payment', 'tips']" in text
    )
    assert "no feature 'mile' (did you mean 'miles'?)" in text
    assert "no feature 'zone';" in text
    assert "input 'payment' is float32 and the feature is string" in text
    assert "input 'company' is dense and the feature is sparse" in text
    assert not (tmp_path / "1").exists()


def test_a_tensor_of_another_name_than_its_column(tmp_path: Path) -> None:
    schema = taxi.schema()
    tensors = schema.tensor_representation_group[""].tensor_representation
    tensors["distance"].varlen_sparse_tensor.column_name = "miles"
    text = message(ConfigurationError, functional(miles="float32"), tmp_path, schema=schema)
    assert "tensor 'distance' is made of 'miles'" in text and "feature_spec=" in text


def test_label_as_input(tmp_path: Path) -> None:
    model = functional(tips="float32")
    text = message(ConfigurationError, model, tmp_path, schema=taxi.schema(), label_keys=("tips",))
    assert "which without the labels has ['company', 'id', 'miles', 'payment']" in text
    assert "no feature 'tips'" in text


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("tips_xf", "got 'tips_xf' (did you mean 'tips'?)"),
        ("id", "from the raw features ['id'] alone"),
    ],
)
def test_label_that_cannot_be_transformed(
    tmp_path: Path, transform_graph: str, label: str, expected: str
) -> None:
    options: dict[str, Any] = {"transform_graph": transform_graph, "label_keys": (label,)}
    model = functional(miles_xf="float32")
    assert expected in message(ConfigurationError, model, tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "export_model needs the raw features"),
        ({"label_keys": "tips"}, "such as ('tips',)"),
        ({"inputs": "miles", "preprocess": identity}, "pass one"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in message(ConfigurationError, tf.Module(), tmp_path / "1", **options)


def test_no_directory() -> None:
    fn_args = types.SimpleNamespace(serving_model_dir=None)
    assert "with a serving_model_dir" in message(ConfigurationError, tf.Module(), fn_args)


def test_unreadable_places(tmp_path: Path) -> None:
    (tmp_path / "schema.pbtxt").write_text("feature { nonsense: 1 }")
    model = functional(miles="float32")
    for name in ("schema.pbtxt", "none.pbtxt"):
        text = message(DataError, model, tmp_path / "1", schema=tmp_path / name)
        assert name in text
    pytest.importorskip("tensorflow_transform")
    text = message(DataError, model, tmp_path / "1", transform_graph=tmp_path / "none")
    assert "must be the transform_graph of a Transform component" in text


def test_model_that_cannot_be_called(tmp_path: Path) -> None:
    class Broken(tf.Module):
        def __call__(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
            return features["miles"] @ tf.ones([2, 1])

    text = message(ExportError, Broken(), tmp_path / "1", feature_spec=MILES)
    assert "cannot be called with {'miles': 'miles'}" in text
    assert not (tmp_path / "1").exists()


def test_outputs_that_cannot_be_served(tmp_path: Path) -> None:
    class Outputs(tf.Module):
        def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
            miles = features["miles"]
            return {
                "ragged": tf.RaggedTensor.from_tensor(miles),
                "mean": tf.reduce_mean(miles),
                "good": miles,
            }

    text = message(ExportError, Outputs(), tmp_path / "1", feature_spec=MILES)
    assert "output 'ragged' should be a dense tensor [batch, ...], found a RaggedTensor" in text
    assert "output 'mean'" in text and "of shape ()" in text and "'good'" not in text


def test_table_that_the_model_does_not_own(tmp_path: Path) -> None:
    initializer = tf.lookup.KeyValueTensorInitializer([1], [2])
    table = tf.lookup.StaticHashTable(initializer, 0)

    class Borrower(tf.Module):
        def __call__(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
            return table.lookup(tf.cast(features["miles"], tf.int32))

    text = message(ExportError, Borrower(), tmp_path / "1", feature_spec=MILES)
    assert "self.table = ..." in text
