"""Scalars in the event files of TensorBoard."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Iterator
from typing import Any

from generic_trainer.errors import DataError

_logger = logging.getLogger(__name__)

_SCALARS_PLUGIN = "scalars"


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
        run = os.path.relpath(os.path.dirname(path), log_dir)
        for step, tag, value in _scalars(path):
            found.setdefault(tag if run == "." else f"{run}/{tag}", {})[step] = value
    return {name: sorted(values.items()) for name, values in sorted(found.items())}


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
            for value in event.summary.value:
                plugin = plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                scalar = _scalar(value, plugin)
                if scalar is not None:
                    yield event.step, value.tag, scalar
    except (*READ_ERRORS, DecodeError):
        _logger.warning("%s ends in the middle of a record; what comes before it counts.", path)


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
