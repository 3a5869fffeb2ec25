"""Small TFRecord files, TFX's reader beside ours, and the comparison of what the two deliver."""

import itertools
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.data import TensorFlowDatasetOptions, make_dataset_factory
from tests.examples import example

# All that a test of an order needs: each feature more takes longer to trace.
ID = 'feature { name: "id" type: INT presence { min_fraction: 1.0 } shape {} }'
SCHEMA = f"""
    {ID}
    feature {{ name: "price" type: FLOAT presence {{ min_fraction: 1.0 }}
        shape {{ dim {{ size: 2 }} }} }}
    feature {{ name: "city" type: BYTES presence {{ min_fraction: 1.0 }} shape {{}} }}
    feature {{ name: "tags" type: BYTES }}
    feature {{ name: "clicks" type: INT }}
"""


def schema_of(text: str = SCHEMA) -> schema_pb2.Schema:
    return text_format.Parse(text, schema_pb2.Schema())


def numbered(first: int, last: int) -> list[bytes]:
    """Returns examples of `SCHEMA` that are told apart by their id."""
    return [
        example(
            id=number,
            price=[number / 2, -number / 3],
            city=f"city-{number % 7}",
            tags=[f"tag {place}" for place in range(number % 4)],
            clicks=list(range(number % 3)),
        )
        for number in range(first, last)
    ]


def write(path: Path | str, records: Sequence[bytes]) -> str:
    """Writes a TFRecord file, compressed if its name says so, and returns its path."""
    options = "GZIP" if str(path).endswith(".gz") else ""
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def write_files(directory: Path, files: Sequence[Sequence[bytes]], suffix: str = ".gz") -> str:
    """Writes several TFRecord files and returns the pattern that matches them."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, records in enumerate(files):
        write(directory / f"data-{number:05d}{suffix}", records)
    return str(directory / "*")


def options(**changes: Any) -> TensorFlowDatasetOptions:
    """Options of one pass over batches of 32, unless changed."""
    return TensorFlowDatasetOptions(**{"batch_size": 32, "num_epochs": 1, **changes})


def dataset_of(pattern: str | list[str], path: Any = "auto", **changes: Any) -> tf.data.Dataset:
    """Returns examples of `SCHEMA` as our factory reads them."""
    return make_dataset_factory(path=path)(pattern, options(**changes), schema_of())


def tfx_dataset(
    pattern: str | list[str], options: TensorFlowDatasetOptions, schema: schema_pb2.Schema
) -> tf.data.Dataset:
    """Returns what TFX's own factory returns."""
    from tfx_bsl.tfxio import tf_example_record

    record = tf_example_record.TFExampleRecord(
        pattern, schema=schema, telemetry_descriptors=["test"]
    )
    return record.TensorFlowDataset(options)


def ids(dataset: tf.data.Dataset) -> list[int]:
    """Returns the ids of all examples of `SCHEMA`, in order."""
    return [number for batch in dataset for number in batch["id"].numpy().tolist()]


def assert_same_elements(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    for number, (one, other) in enumerate(itertools.zip_longest(ours, theirs)):
        assert one is not None, f"element {number} is missing"
        assert other is not None, f"element {number} is too many"
        assert _plain(one) == _plain(other), f"element {number}"


def rows(element: Any) -> list[Any]:
    """Returns an element of a dataset row by row, as plain values that can be compared."""
    features, label = element if isinstance(element, tuple) else (element, None)
    named = features if label is None else {**features, "the label": label}
    cut = {name: _rows_of(tensor) for name, tensor in named.items()}
    return [tuple((name, cut[name][row]) for name in sorted(cut)) for row in range(_len(cut))]


def _len(columns: Mapping[str, list[Any]]) -> int:
    lengths = {len(column) for column in columns.values()}
    assert len(lengths) == 1, "features of different batch sizes"
    return lengths.pop()


def _rows_of(tensor: Any) -> list[Any]:
    if isinstance(tensor, tf.SparseTensor):
        indices, values = tensor.indices.numpy(), tensor.values.numpy()
        return [
            (indices[indices[:, 0] == row, 1:].tolist(), _bits(values[indices[:, 0] == row]))
            for row in range(int(tensor.dense_shape[0]))
        ]
    return [_plain(each) for each in tensor]


def _plain(element: Any) -> Any:
    """Returns an element as values that compare by bits, NaN included, and by type."""
    if isinstance(element, Mapping):
        # TFX's own order of names is that of a map in a proto: another one in every process.
        return {key: _plain(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(_plain(each) for each in element)
    if isinstance(element, tf.SparseTensor):
        shape = element.dense_shape.numpy().tolist()
        return ("sparse", shape, element.indices.numpy().tolist(), _bits(element.values.numpy()))
    if isinstance(element, tf.RaggedTensor):
        splits = [each.numpy().tolist() for each in element.nested_row_splits]
        return ("ragged", element.row_splits.dtype, splits, _bits(element.flat_values.numpy()))
    return _bits(element.numpy())


def _bits(values: Any) -> Any:
    values = np.asarray(values)
    content = values.tolist() if values.dtype == object else values.tobytes()
    return str(values.dtype), values.shape, content


def frame(length: int) -> bytes:
    """Returns the head of a TFRecord of this length, its checksum right.

    Source: CRC-32C, RFC 3720 appendix B.4, masked as TensorFlow does.
    """
    head, crc = struct.pack("<Q", length), 0xFFFFFFFF
    for byte in head:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return head + struct.pack("<I", masked)
