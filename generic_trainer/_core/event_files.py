"""Scalars in the event files of TensorBoard."""

from __future__ import annotations

import itertools
import logging
import math
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from generic_trainer.errors import DataError

_logger = logging.getLogger(__name__)

_SCALARS_PLUGIN = "scalars"
# Of a record: its length and the checksum of that, then the record and its checksum.
_HEAD, _CHECKSUM_BYTES = struct.Struct("<QI"), 4


class Scalar(NamedTuple):
    """A value that was written for TensorBoard.

    Attributes:
        name: "run/tag", as `last_scalars` has it.
        value: of any kind of number.
        step: at which it was written.
        time_s: when, in seconds since the epoch.
    """

    name: str
    value: float
    step: int
    time_s: float


class ScalarReader:
    """Reads scalars while they are written: each time those that are new."""

    def __init__(self, log_dir: str) -> None:
        """Reads nothing yet.

        Args:
            log_dir: directory tree with `events.out.tfevents.*` files, which may come later.
        """
        self._log_dir = log_dir
        self._files: dict[str, tuple[int, dict[str, str]]] = {}  # → bytes read, plugin of each tag

    def read(self) -> list[Scalar]:
        """Returns what was written since the last call; a record that is not whole comes later."""
        return [scalar for path in _event_files(self._log_dir) for scalar in self._new_in(path)]

    def _new_in(self, path: str) -> Iterator[Scalar]:
        import tensorflow as tf

        offset, plugins = self._files.get(path, (0, {}))
        size = tf.io.gfile.stat(path).length
        with tf.io.gfile.GFile(path, "rb") as file:
            while offset + _HEAD.size <= size:
                file.seek(offset)
                length, _ = _HEAD.unpack(file.read(_HEAD.size))
                end = offset + _HEAD.size + length + _CHECKSUM_BYTES
                if end > size:
                    break
                event = tf.compat.v1.Event.FromString(file.read(length))
                offset = end
                for tag, value in _of_event(event, plugins):
                    yield Scalar(
                        _name(path, tag, self._log_dir), value, event.step, event.wall_time
                    )
        self._files[path] = offset, plugins


def last_scalars(log_dir: str) -> dict[str, float]:
    """Returns the last value of each scalar that was written for TensorBoard.

    Reads the summaries of TF1 (`simple_value`) and of TF2 (a tensor of the plugin `scalars`). A
    file that ends in the middle of a record, or is damaged, counts up to there.

    Args:
        log_dir: directory tree with `events.out.tfevents.*` files.

    Returns:
        "run/tag" → value, where run is the file's directory relative to `log_dir`; "tag" alone for
        files that lie in `log_dir` itself.
    """
    return {name: points[-1][1] for name, points in scalars_by_step(log_dir).items()}


def scalars_by_step(log_dir: str) -> dict[str, list[tuple[float, float]]]:
    """Returns all values of the scalars that were written for TensorBoard, as `last_scalars` does.

    Returns:
        "run/tag" → (step, value), sorted by step; of several values of a step the last one written.
    """
    found: dict[str, dict[int, float]] = {}
    for path in _event_files(log_dir):
        for step, tag, value in _scalars(path):
            found.setdefault(_name(path, tag, log_dir), {})[step] = value
    return {name: sorted(values.items()) for name, values in sorted(found.items())}


def _name(path: str, tag: str, log_dir: str) -> str:
    run = os.path.relpath(os.path.dirname(path), log_dir)
    return tag if run == "." else f"{run}/{tag}"


def _event_files(log_dir: str) -> list[str]:
    import tensorflow as tf

    return sorted(
        os.path.join(directory, file)
        for directory, _, files in tf.io.gfile.walk(log_dir)
        for file in files
        if "events.out.tfevents." in file
    )


def _scalars(path: str) -> Iterator[tuple[int, str, float]]:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    from generic_trainer._core.records import READ_ERRORS, check_lengths, look_at

    plugins: dict[str, str] = {}  # a tag's plugin is written with its first value only
    whole: int | None = None  # records before one that must not be read
    try:
        check_lengths(look_at(path))
    except DataError as error:
        whole = error.record
        _logger.warning("%s What comes before it counts.", error)
    try:
        for event in itertools.islice(tf.compat.v1.train.summary_iterator(path), whole):
            for tag, value in _of_event(event, plugins):
                yield event.step, tag, value
    except (*READ_ERRORS, DecodeError):
        _logger.warning("%s ends in the middle of a record; what comes before it counts.", path)


def _of_event(event: Any, plugins: dict[str, str]) -> Iterator[tuple[str, float]]:
    for value in event.summary.value:
        plugin = plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
        scalar = _scalar(value, plugin)
        if scalar is not None:
            yield value.tag, scalar


def _scalar(value: Any, plugin: str) -> float | None:
    import tensorflow as tf

    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if value.WhichOneof("value") != "tensor" or plugin != _SCALARS_PLUGIN:
        return None
    if math.prod(dim.size for dim in value.tensor.tensor_shape.dim) != 1:
        return None
    try:
        return float(tf.make_ndarray(value.tensor).item())
    except (TypeError, ValueError):  # no number, or not what its dtype says
        return None
