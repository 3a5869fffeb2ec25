"""Lists of a `tf.train.Example` that belong together: parallel ones, and parts of nested ones.

A value of one of them fits only some values of the others, so they cannot be changed alone.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from generic_trainer.validation._signatures import ParsedFeature

LISTS = {"string": "bytes_list", "int64": "int64_list", "float32": "float_list"}
DTYPE_OF_LIST = {kind: dtype for dtype, kind in LISTS.items()}
_EMPTY = 2  # bytes of a feature with an empty list; one without a list has none


def filled(example: Any, names: Iterable[str] | None = None) -> set[str]:
    """Returns the features of a `tf.train.Example` that have a value, of all or of some names."""
    features = example.features.feature
    there = features if names is None else filter(features.__contains__, names)
    # To look into the list takes three times as long, which wide tables have millions of.
    return {name for name in there if features[name].ByteSize() > _EMPTY}


def _size(feature: Any) -> int:
    return sum(len(getattr(feature, kind).value) for kind in DTYPE_OF_LIST)


def parallel_lists(
    example: Any,
    names: Iterable[str],
    rules: Mapping[str, str],
    divided: Mapping[str, AbstractSet[str]] | None = None,
) -> dict[str, list[str]]:
    """Returns name → the features that may only change together with it, such as ids and weights.

    Args:
        example: a usual `tf.train.Example`. Lists of as many values, if there are several, may
            belong together.
        names: of features.
        rules: name → the number of values that the schema allows, the same for such lists.
        divided: see `partitions`.
    """
    sizes = {name: _size(feature) for name, feature in example.features.feature.items()}
    groups: dict[Any, list[str]] = {}
    for name in names:
        key = (sizes[name], rules.get(name)) if sizes.get(name, 0) > 1 else name
        groups.setdefault(key, []).append(name)
    group_of = {name: group for group in groups.values() for name in group}
    for name, lists in (divided or {}).items():
        for other in sorted(lists):
            if name in group_of and other in group_of and group_of[name] is not group_of[other]:
                joined = group_of[name] + group_of[other]
                group_of |= dict.fromkeys(joined, joined)
    return group_of


def partitions(
    examples: Sequence[Any], features: Mapping[str, ParsedFeature], schema: Any = None
) -> dict[str, set[str]]:
    """Returns name → the lists that a feature divides into rows, as `tf.io.RaggedFeature` reads.

    Its integers are the row lengths, splits, limits or ids of nested lists. The graph of a model
    has no simple trace of that, so examples show it.

    Args:
        examples: usual `tf.train.Example`s, of several lengths.
        features: name → feature that a signature parses.
        schema: perhaps with a `tensor_representation_group`, which states it.
    """
    divided_by: dict[str, set[str]] = {}
    for group in () if schema is None else schema.tensor_representation_group.values():
        for representation in group.tensor_representation.values():
            for partition in representation.ragged_tensor.partition:
                if partition.row_length:
                    path = representation.ragged_tensor.feature_path.step
                    divided_by.setdefault(partition.row_length, set()).update(path[-1:])
    lists = [name for name, feature in features.items() if feature.dense_size is None]
    by_lengths: dict[tuple[int, ...], set[str]] = {}
    rows = [example.features.feature for example in examples]
    for name in lists:
        lengths = tuple(_size(row[name]) if name in row else 0 for row in rows)
        if max(lengths, default=0) > 1:
            by_lengths.setdefault(lengths, set()).add(name)
    for name in lists:
        if features[name].dtype == "int64":
            numbers = [list(row[name].int64_list.value) if name in row else [] for row in rows]
            divided = {other for key in _divisions(numbers) for other in by_lengths.get(key, ())}
            if divided := divided - {name}:
                divided_by.setdefault(name, set()).update(divided)
    return divided_by


def _divisions(rows: list[list[int]]) -> Iterator[tuple[int, ...]]:
    """Yields the lengths of lists that integers may divide, as lengths, as ends or as row ids."""
    if min(map(min, filter(None, rows)), default=-1) < 0:
        return
    lengths = tuple(map(sum, rows))
    # A list of ones, for example, is no evidence.
    if max(map(len, rows)) > 1 or len(set(lengths)) > 1:
        yield lengths
    if all(row == sorted(row) for row in rows):
        yield tuple(row[-1] if row else 0 for row in rows)
        steps = (b - a for row in rows for a, b in itertools.pairwise([0, *row]))
        if max(steps) < 2:
            yield tuple(map(len, rows))
