"""Scalars in the event files of TensorBoard."""

import logging
import math
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_logger = logging.getLogger(__name__)

_SCALARS_PLUGIN = "scalars"
# Of a record: its length and the checksum of that, then the record and its checksum.
_HEAD = struct.Struct("<QI")
_CHECKSUM_BYTES = 4


class Scalar(NamedTuple):
    """A value of an event file.

    Attributes:
        name: "run/tag", as `scalars_by_step` has it.
        value: a number, which may be infinite or NaN.
        step: the step of the value.
        time_s: the time of writing, in seconds since the epoch.
    """

    name: str
    value: float
    step: int
    time_s: float


class ScalarReader:
    """Reads scalars while they are written; each call returns the new ones.

    It reads the summaries of TF1 (`simple_value`) and of TF2 (a tensor of the plugin `scalars`).

    Attributes:
        curves: "run/tag" → step → value, of all scalars so far; of several values of a step the
            last one written.
        errors: path → the error that ended the last look at a file that is damaged or gone. The
            records before the damage count.
    """

    def __init__(self, log_dir: str) -> None:
        """Creates the reader.

        Args:
            log_dir: directory tree for `events.out.tfevents.*` files, which may be created later.
        """
        self._log_dir = log_dir
        self._files: dict[str, tuple[int, dict[str, str]]] = {}  # → bytes read, plugin of each tag
        self.curves: dict[str, dict[float, float]] = {}
        self.errors: dict[str, Exception] = {}

    def read(self) -> list[Scalar]:
        """Returns the scalars since the last call, of each file up to its first partial record."""
        import tensorflow as tf
        from google.protobuf.message import DecodeError

        scalars: list[Scalar] = []
        paths = (
            os.path.join(directory, file)
            for directory, _, files in tf.io.gfile.walk(self._log_dir)
            for file in files
            if "events.out.tfevents." in file
        )
        for path in sorted(paths):
            try:
                for scalar in self._new_in(path):
                    scalars.append(scalar)  # at once: those before an error count
                    self.curves.setdefault(scalar.name, {})[scalar.step] = scalar.value
            except (OSError, tf.errors.OpError, DecodeError) as error:
                self.errors[path] = error
        return scalars

    def _new_in(self, path: str) -> Iterator[Scalar]:
        import tensorflow as tf

        run = os.path.relpath(os.path.dirname(path), self._log_dir)
        # A tag's plugin is written with its first value only.
        offset, plugins = self._files.get(path, (0, {}))
        size = tf.io.gfile.stat(path).length
        with tf.io.gfile.GFile(path, "rb") as file:
            while offset + _HEAD.size <= size:
                file.seek(offset)
                length, _ = _HEAD.unpack(file.read(_HEAD.size))
                end = offset + _HEAD.size + length + _CHECKSUM_BYTES
                if end > size:
                    break
                self._files[path] = offset, plugins = end, plugins
                event = tf.compat.v1.Event.FromString(file.read(length))
                for value in event.summary.value:
                    plugin = plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                    number = _number(value, plugin)
                    if number is not None:
                        name = value.tag if run == "." else f"{run}/{value.tag}"
                        yield Scalar(name, number, event.step, event.wall_time)


def last_scalars(log_dir: str) -> dict[str, float]:
    """Returns the last value of each scalar in event files, by the time of writing.

    The second `fit` of a `run_fn` may count its steps or epochs from 0 again. A file that is
    incomplete or damaged counts up to there; names are those of `scalars_by_step`.
    """
    scalars = sorted(ScalarReader(log_dir).read(), key=lambda scalar: scalar.time_s)
    return {scalar.name: scalar.value for scalar in scalars}


def scalars_by_step(log_dir: str) -> dict[str, list[tuple[float, float]]]:
    """Returns all values of the scalars in event files.

    A file that is incomplete or damaged counts up to there.

    Args:
        log_dir: directory tree with `events.out.tfevents.*` files.

    Returns:
        "run/tag" → (step, value), sorted by step; of several values of a step the last one written.
        The run is the file's directory relative to `log_dir`; files in `log_dir` itself have "tag"
        alone.
    """
    reader = ScalarReader(log_dir)
    reader.read()
    for path, error in reader.errors.items():
        _logger.warning("%s cannot be read to its end; its first records count: %s", path, error)
    return {name: sorted(values.items()) for name, values in sorted(reader.curves.items())}


def _number(value: Any, plugin: str) -> float | None:
    import tensorflow as tf

    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    is_scalar = value.WhichOneof("value") == "tensor" and plugin == _SCALARS_PLUGIN
    if not is_scalar or math.prod(dim.size for dim in value.tensor.tensor_shape.dim) != 1:
        return None
    try:
        return float(tf.make_ndarray(value.tensor).item())
    except (TypeError, ValueError):  # not a number, or its bytes do not match its dtype
        return None
