"""A small data set of taxi rides, its schema, its transform graph, and models of it.

Usage: ``python -m tests.training.export.taxi DIRECTORY`` writes the transform graph.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from tests.examples import example

SCHEMA = """
    feature { name: "miles" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
    feature { name: "payment" type: BYTES presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
    feature { name: "company" type: BYTES }
    feature { name: "id" type: INT }
    feature { name: "tips" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
"""
LABEL = "tips"
PAYMENTS = ("cash", "card", "none")
COMPANIES = ("Blue", None, "Yellow")
MILES_MEAN, MILES_DEVIATION = 4.5, 8.25**0.5


def rows(count: int = 10) -> dict[str, list[Any]]:
    """Columns of `count` rides; the mean and deviation above are those of ten."""
    return {
        "miles": [float(index % 10) for index in range(count)],
        "payment": [PAYMENTS[index % 3] for index in range(count)],
        "company": [COMPANIES[index % 3] for index in range(count)],
        "tips": [0.5 * index for index in range(count)],
    }


def examples(count: int = 10, without: tuple[str, ...] = (LABEL,)) -> list[bytes]:
    """The rides as serialized tf.Examples."""
    columns = rows(count)
    records = [
        {name: values[index] for name, values in columns.items() if name not in without}
        for index in range(count)
    ]
    return [example(**{k: v for k, v in each.items() if v is not None}) for each in records]


def schema() -> schema_pb2.Schema:
    """The schema of the raw features."""
    return text_format.Parse(SCHEMA, schema_pb2.Schema())


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    """Scales the miles, looks up two vocabularies, leaves the company sparse as well."""
    import tensorflow_transform as tft

    company = tft.compute_and_apply_vocabulary(inputs["company"], vocab_filename="company")
    dense = tf.sparse.to_dense(
        tf.SparseTensor(company.indices, company.values, [company.dense_shape[0], 1]), -1
    )
    payment = tft.compute_and_apply_vocabulary(inputs["payment"], vocab_filename="payment")
    return {
        "miles_xf": tft.scale_to_z_score(inputs["miles"]),
        "payment_xf": tf.ensure_shape(payment, [None, 1]),
        "company_xf": tf.ensure_shape(dense, [None, 1]),
        "companies_xf": company,
        "tips_xf": tf.cast(inputs["tips"] > 2.0, tf.int64),
    }


def write_transform_graph(directory: Path) -> None:
    """Runs Transform over ten rides."""
    import apache_beam as beam
    import tensorflow_transform.beam as tft_beam
    from tensorflow_transform.tf_metadata import dataset_metadata

    columns = {**rows(), "id": [None] * 10}
    data = [
        {name: [] if values[index] is None else [values[index]] for name, values in columns.items()}
        for index in range(10)
    ]
    metadata = dataset_metadata.DatasetMetadata(schema())
    with beam.Pipeline() as pipeline, tft_beam.Context(temp_dir=tempfile.mkdtemp()):
        rides = pipeline | beam.Create(data)
        graph = (rides, metadata) | tft_beam.AnalyzeDataset(preprocessing_fn)
        _ = graph | tft_beam.WriteTransformFn(str(directory))
        _ = metadata | tft_beam.WriteMetadata(str(directory / "metadata"), pipeline=pipeline)


def raw_batch(count: int = 10) -> dict[str, tf.Tensor]:
    """The dense raw features without the label, as a model reads them that has no Transform."""
    columns = rows(count)
    return {
        "miles": tf.constant(columns["miles"])[:, tf.newaxis],
        "payment": tf.constant(columns["payment"])[:, tf.newaxis],
    }


def raw_model(keras: Any) -> Any:
    """A functional model of two raw features, one of them looked up in a table."""
    inputs = {
        "miles": keras.Input((1,), name="miles"),
        "payment": keras.Input((1,), name="payment", dtype="string"),
    }
    index = keras.layers.StringLookup(vocabulary=list(PAYMENTS))(inputs["payment"])
    embedded = keras.layers.Flatten()(keras.layers.Embedding(4, 2)(index))
    hidden = keras.layers.Concatenate()([inputs["miles"], embedded])
    hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")
    model.fit(raw_batch(), tf.constant(rows()["tips"]), epochs=1, verbose=0)
    return model


def transformed_model(keras: Any) -> Any:
    """A functional model of three transformed features; [N, 2] class scores."""
    names = {"miles_xf": "float32", "payment_xf": "int64", "company_xf": "int64"}
    inputs = {name: keras.Input((1,), name=name, dtype=dtype) for name, dtype in names.items()}
    floats = [keras.layers.Rescaling(0.5)(inputs[name]) for name in names]
    hidden = keras.layers.Dense(4, activation="relu")(keras.layers.Concatenate()(floats))
    return keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(hidden))


def transformed_batch(count: int = 10) -> dict[str, tf.Tensor]:
    """What `preprocessing_fn` makes of the rides, computed by hand."""
    columns = rows(count)
    # By frequency, ties in reverse order of the alphabet.
    payments = {"cash": 0, "none": 1, "card": 2}
    companies = {"Blue": 0, "Yellow": 1, None: -1}
    miles = (np.array(columns["miles"]) - MILES_MEAN) / MILES_DEVIATION
    return {
        "miles_xf": tf.constant(miles[:, np.newaxis], tf.float32),
        "payment_xf": tf.constant([[payments[value]] for value in columns["payment"]], tf.int64),
        "company_xf": tf.constant([[companies[value]] for value in columns["company"]], tf.int64),
    }


if __name__ == "__main__":
    write_transform_graph(Path(sys.argv[1]))
    # Transform with TensorFlow 2.21 crashes while Python 3.13 shuts down.
    os._exit(0)
