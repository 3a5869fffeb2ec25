"""The first few real examples, from wherever the contract says they are."""

from __future__ import annotations

from collections.abc import Sequence

from generic_trainer.errors import DataError

__all__ = ["read_records"]

_GZIP_MAGIC = b"\x1f\x8b"


def read_records(source: str | Sequence[bytes], count: int) -> list[bytes]:
    """Returns up to `count` serialized examples.

    Args:
        source: a TFRecord glob, whose files may be gzipped, or the examples themselves.
        count: how many are wanted; they come from as many files as that takes.

    Raises:
        DataError: nothing matches, or a file is no TFRecord.
    """
    if not isinstance(source, str):
        return list(source[:count])
    import tensorflow as tf

    files = sorted(file for file in tf.io.gfile.glob(source) if not tf.io.gfile.isdir(file))
    records: list[bytes] = []
    for file in files:
        if len(records) < count:
            records += _read_file(file, count - len(records))
    if not records:
        raise DataError(f"no examples: {len(files)} files match {source!r} and hold no record")
    return records


def _read_file(file: str, count: int) -> list[bytes]:
    import tensorflow as tf

    with tf.io.gfile.GFile(file, "rb") as stream:
        compressed = stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    dataset = tf.data.TFRecordDataset(file, "GZIP" if compressed else "").take(count)
    try:
        return [bytes(record.numpy()) for record in dataset]
    except tf.errors.OpError as error:
        raise DataError(f"{file} is not a TFRecord file: {error.message}") from error
