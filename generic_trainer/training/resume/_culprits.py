"""The search for what in a batch makes a step fail: rows, features, columns; the first layer.

Each question is a trial: a step from the same state, with some values of the batch replaced. So the
answers hold for any model and loss. Rows are replaced with copies of a good one, because layers
that draw then do the same to the others.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.texts import listed
from generic_trainer.training._walk import walk

_MOST_TRIALS = 400  # of one search
_MOST_GOOD = 16  # rows that are tried as the good one
_NAMES = ("features", "label", "sample weight")


def find_culprits(fails: Callable[[Any], bool], batch: Any) -> tuple[list[int], str]:
    """Finds the rows that make a step fail and, of the first of them, the features.

    Returns:
        The rows that each fail among copies of a good one (none if no single row is to blame), and
        sentences.
    """
    parts = dict(_named(batch))
    size = next((part.shape[0] for part in parts.values() if part.shape.rank), 0)
    trials = iter(range(_MOST_TRIALS))

    def try_(of_parts: Mapping[str, Any]) -> bool:
        new = iter(of_parts.values())
        flat = [None if part is None else next(new) for part in tf.nest.flatten(batch)]
        return next(trials, None) is not None and fails(tf.nest.pack_sequence_as(batch, flat))

    def with_rows(rows: Sequence[int]) -> dict[str, Any]:
        return {name: _rows(part, rows) for name, part in parts.items()}

    def fail_among(good: int, rows: Sequence[int]) -> bool:
        return try_(with_rows([row if row in rows else good for row in range(size)]))

    candidates = sorted({size * n // _MOST_GOOD for n in range(_MOST_GOOD)} if size else ())
    good = next((row for row in candidates if not fail_among(row, ())), None)
    bad = [] if good is None else _culprits(range(size), functools.partial(fail_among, good))
    if good is None or not bad:
        odd = [name for name, part in parts.items() if not is_finite(part)]
        text = f"no single row is to blame, of {size}."
        text += f" Not finite in some: {listed(odd)}." if odd else ""
        return [], f"{text} Values of row 0: {_values_of(parts, 0)}." if size else text
    fine = with_rows([good] * size)
    ill = with_rows(bad[:1] * size)

    def fail_with(names: Sequence[str]) -> bool:
        return try_(fine | {name: ill[name] for name in names})

    def fail_in(name: str, columns: Sequence[int]) -> bool:
        is_ill = [[column in columns for column in range(_width(ill[name]))]]
        is_ill = tf.reshape(is_ill, [1, *ill[name].shape[1:]])
        return try_(fine | {name: tf.where(is_ill, ill[name], fine[name])})

    why = []
    for name in _culprits([*parts], fail_with):
        width = _width(ill[name])
        columns = _culprits(range(width), functools.partial(fail_in, name)) if width > 1 else ()
        why += [_place(ill[name], number, name) for number in columns] or [name]
    text = f"row{'s' * (len(bad) > 1)} {listed(bad)} of {size} (the first is 0) to blame."
    text += f" In row {bad[0]} it is {listed(why)}." if why else ""
    return bad, f"{text} Values of row {bad[0]}: {_values_of(parts, bad[0])}."


def _culprits(candidates: Sequence[Any], fail: Callable[[Sequence[Any]], bool]) -> list[Any]:
    """Returns the candidates that each suffice for a failure, by halving."""
    if not fail(candidates):
        return []
    if len(candidates) == 1:
        return [*candidates]
    middle = len(candidates) // 2
    return _culprits(candidates[:middle], fail) + _culprits(candidates[middle:], fail)


@contextlib.contextmanager
def noted_layers(model: Any) -> Iterator[list[str]]:
    """Notes the names of layers whose output is not finite, the first one first."""
    names: list[str] = []
    parts = [part for _, part in walk(model, deferred={}) if part is not model]
    layers = [part for part in parts if hasattr(type(part), "trainable_weights")]
    layers = [layer for layer in layers if hasattr(layer, "call") and "call" not in vars(layer)]
    for layer in layers:
        vars(layer)["call"] = _noting(layer, names)  # past Keras, which tracks attributes
    try:
        yield names
    finally:
        for layer in layers:
            del vars(layer)["call"]


def _noting(layer: Any, names: list[str]) -> Callable[..., Any]:
    original = layer.call

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if tf.executing_eagerly() and not all(map(is_finite, tf.nest.flatten(output))):
            names.append(layer.name)
        return output

    return call


def is_finite(part: Any) -> bool:
    """Returns whether all numbers of a tensor are finite."""
    value = _flat(part)
    is_number = isinstance(value, tf.Tensor) and value.dtype.is_floating
    return not is_number or bool(tf.reduce_all(tf.math.is_finite(value)))


def without(batch: Any, rows: Sequence[int]) -> Any:
    """Returns a batch without some of its rows."""

    def kept(part: Any) -> Any:
        if part is None or not part.shape.rank:
            return part
        return _rows(part, [row for row in range(part.shape[0]) if row not in rows])

    return tf.nest.map_structure(kept, batch)


def _named(data: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a batch in the order of `tf.nest.flatten`, with names."""
    if isinstance(data, Mapping):
        for key in sorted(data):
            yield from _named(data[key], f"{name} {key!r}".strip())
    elif isinstance(data, (tuple, list)):
        for number, part in enumerate(data):
            known = _NAMES if not name and len(data) <= len(_NAMES) else ()
            yield from _named(part, known[number] if known else f"{name} {number}".strip())
    elif data is not None:
        yield name or _NAMES[0], data


def _rows(part: Any, rows: Sequence[int]) -> Any:
    if isinstance(part, tf.SparseTensor):
        size = [1, *part.shape[1:]]
        starts = ([row, *[0] * (part.shape.rank - 1)] for row in rows)
        return tf.sparse.concat(0, [tf.sparse.slice(part, start, size) for start in starts])
    return tf.gather(part, rows) if part.shape.rank else part


def _flat(part: Any) -> Any:
    return getattr(part, "flat_values", getattr(part, "values", part))


def _width(part: Any) -> int:
    is_dense = isinstance(part, tf.Tensor) and part.shape.rank
    return int(tf.size(part)) // part.shape[0] if is_dense else 0


def _place(part: Any, column: int, name: str) -> str:
    indices = [int(index) for index in np.unravel_index(column, part.shape[1:])]
    place = f"column {column}" if len(indices) == 1 else f"position {indices}"
    return f"{place} of {name} ({part[0].numpy().flat[column]})"


def _values_of(parts: Mapping[str, Any], row: int) -> str:
    rows = {name: _rows(part, [row]) for name, part in parts.items() if part.shape.rank}
    texts = {name: [*map(str, _flat(part).numpy().reshape(-1))] for name, part in rows.items()}
    return listed([f"{name} = [{listed(values)}]" for name, values in texts.items()], "; ")
