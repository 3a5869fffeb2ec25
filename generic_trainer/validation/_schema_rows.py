"""Rows made from a schema: at the limits of its domains, beyond them, and of observed values.

Each row differs in one feature from a row that scores, so that the cause of a failure is clear. The
meaning of a schema is that of `TensorFlow Metadata <https://github.com/tensorflow/metadata>`_: a
feature is missing in some examples if `min_fraction` is below 1; `min_count`, which all inferred
schemas have, is about the data set as a whole.

For features without a domain, statistics give values that have occurred. `TensorFlow Data
Validation <https://www.tensorflow.org/tfx/data_validation>`_ computes them over all examples, of
which the checks read the first ones only.

The row `{"age": [30], "town": ["Bern"], "ids": [7, 8], "weights": [0.5, 0.5]}` scores. By the
schema, `age` is in 0..120, `ids` and `weights` have 1 to 3 values each, `town` has no domain::

    allowed         age 0; age 120
                    ids [7] with weights [0.5]; ids [7, 8, 7] with weights [0.5, 0.5, 0.5]
    unforeseen      age -1; age 121; age 2147483648
                    town "", a word never seen, not UTF-8, 10,000 characters, ...
    in_statistics   town "Zürich", its most frequent value

`ids` and `weights` change together, because they are parallel in the row and in the schema: three
ids with two weights are no request that a client would send, and a model may rightly refuse them.
"""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from generic_trainer.validation._lists import LISTS, parallel_lists
from generic_trainer.validation._signatures import ParsedFeature

_EXACT = 1 << 53  # beyond it a double, which the statistics have, may be another integer
# TensorFlow Data Validation writes these in the place of long words and of bytes.
_NO_WORDS = ("__BYTES_VALUE__", "__LARGE_BYTES__")
_STATISTICS_DTYPES = ("int64", "float32", "string", "string")  # by FeatureNameStatistics.Type
_MAX_WORDS = 200  # of one feature or domain
_MAX_VALUES = 1000  # of one list
_MANY = 100
_NO_BOUND = 1e30  # beyond it a domain holds all numbers of the type
_NO_INT_BOUND = 1 << 40
_FLOATS = (0.0, -1.0, 0.5, 1.0, 1e-6, 1e-42, 1e9, -1e9)  # one of them denormal
_INTS = (0, -1, 1 << 31)
_UNICODE = "Zürich 東京 🚖 \u202eabc".encode()
_TEXTS = (b"", b"never seen before", _UNICODE, b"\xff\xfe\x00", b"long " * 2000)
_DTYPES = {1: "string", 2: "int64", 3: "float32"}  # schema_pb2.FeatureType


class ObservedFeature(NamedTuple):
    """Statistics of one feature.

    Attributes:
        dtype: `"int64"`, `"float32"` or `"string"`.
        values: numbers or words that it has somewhere, the extremes first.
        lengths: the fewest and the most values in an example that has any.
        is_missing: whether examples lack it.
    """

    dtype: str
    values: tuple[Any, ...]
    lengths: tuple[int, int]
    is_missing: bool


def observed_features(statistics: Any) -> dict[str, ObservedFeature]:
    """Returns name → statistics of a feature in all data sets of a `DatasetFeatureStatisticsList`.

    Features inside others, features without a value in any example, and features of several types
    are left out.
    """
    statistics_of: dict[str, list[Any]] = {}
    for dataset in statistics.datasets:
        for feature in dataset.features:
            if len(feature.path.step) < 2 and feature.type < len(_STATISTICS_DTYPES):
                name = feature.name or "".join(feature.path.step)
                statistics_of.setdefault(name, []).append(feature)
    merged = {name: _merged(features) for name, features in statistics_of.items()}
    return {name: feature for name, feature in merged.items() if feature is not None}


def _merged(features: list[Any]) -> ObservedFeature | None:
    kinds = ((feature, feature.WhichOneof("stats") or "num_stats") for feature in features)
    common = [getattr(feature, kind).common_stats for feature, kind in kinds]
    present = [stats for stats in common if stats.max_num_values]
    dtypes = {_STATISTICS_DTYPES[feature.type] for feature in features}
    if not present or len(dtypes) > 1:
        return None
    (dtype,) = dtypes
    values = itertools.chain.from_iterable(_values(feature, dtype) for feature in features)
    lengths = min(c.min_num_values for c in present), max(c.max_num_values for c in present)
    is_missing = any(stats.num_missing for stats in common)
    return ObservedFeature(dtype, tuple(dict.fromkeys(values)), lengths, is_missing)


def _values(feature: Any, dtype: str) -> Iterator[Any]:
    words = (top.value for top in feature.string_stats.top_values)
    ranked = (bucket.label for bucket in feature.string_stats.rank_histogram.buckets)
    known = [word for word in dict.fromkeys((*words, *ranked)) if word not in _NO_WORDS]
    if dtype == "string":
        yield from (word.encode() for word in known[:_MAX_WORDS])
        return
    # Of integers that are categories.
    numbers = [float(word) for word in known[:_MAX_WORDS] if word.removeprefix("-").isdecimal()]
    for number in (*_numbers(feature), *numbers):
        if math.isfinite(number) and dtype == "float32":
            yield number
        elif number.is_integer() and abs(number) <= _EXACT:
            yield int(number)


def _numbers(feature: Any) -> Iterator[float]:
    """Yields numbers that examples have: the ends, and the bounds of quantiles."""
    numeric = feature.num_stats
    numbers = [numeric.min, numeric.max, numeric.median]
    for histogram in numeric.histograms:
        if histogram.type == histogram.QUANTILES:  # the others cut into equal parts
            for bucket in histogram.buckets:
                numbers += [bucket.low_value, bucket.high_value]
    yield from filter(None, numbers)  # an unknown number is 0 too
    if numeric.num_zeros:
        yield 0.0


class ProbeRow(NamedTuple):
    """A row that differs from a usual one.

    Attributes:
        example: the `tf.train.Example`.
        what: the difference, in words.
        alone: whether to call it alone too: a batch pads its lists to the longest.
    """

    example: Any
    what: str
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class SchemaRows:
    """Rows of a schema for the features that a signature parses.

    Args:
        schema: of the raw examples.
        features: name → feature that the signature parses.
        base: a `tf.train.Example` that scores.
        absent: features that do not come with requests, such as labels.
        vocabulary: words that the model's own assets have.
        observed: name → statistics of a feature.
        partitions: see `_lists.partitions`.
    """

    schema: Any
    features: Mapping[str, ParsedFeature]
    base: Any
    absent: AbstractSet[str]
    vocabulary: Sequence[bytes] = ()
    observed: Mapping[str, ObservedFeature] = dataclasses.field(default_factory=dict)
    partitions: Mapping[str, AbstractSet[str]] = dataclasses.field(default_factory=dict)

    def allowed(self) -> Iterator[ProbeRow]:
        """Yields rows at the limits of the domains that the schema declares."""
        for feature in self._used():
            domain = self._domain(feature)
            numbers = self._numbers(feature)
            reason = "at the limit of its domain" if numbers else "of its domain"
            for value in domain[:: max(1, len(domain) // _MAX_WORDS)]:
                yield self._with_value(feature.name, value, reason)
            for value in numbers:
                if len(domain) == 2 and domain[0] < value < domain[1]:
                    yield self._with_value(feature.name, value, "in its domain")
            yield from self._with_lengths(
                feature.name, _lengths(feature), "which value_count allows"
            )

    def unforeseen(self) -> Iterator[ProbeRow]:
        """Yields rows beyond the domains of the schema, and rows without a domain."""
        for feature in self._used():
            name = feature.name
            domain = self._domain(feature)
            values: list[Any] = list(self._numbers(feature))
            if self._holds_text(feature):
                values = list(_TEXTS)
                for word in self.vocabulary:
                    if word not in domain:
                        yield self._with_value(name, word, "of the model's vocabulary")
            elif values and len(domain) == 2:
                beyond = [domain[0] - 1, domain[1] + 1, *values]
                values = [value for value in beyond if not domain[0] <= value <= domain[1]]
            reason = "beyond its domain" if domain else "and has no domain"
            for value in values:
                is_open = bool(domain) and _holds(feature, value)
                if value not in domain:
                    why = "as its domain has no such limit" if is_open else reason
                    yield self._with_value(name, value, why)
            if feature.HasField("value_count") and not feature.value_count.max:
                yield from self._with_lengths(name, (2, _MANY), "as value_count has no max")

    def in_statistics(self) -> Iterator[ProbeRow]:
        """Yields rows with values from the statistics of features that the schema leaves open."""
        from tensorflow_metadata.proto.v0 import schema_pb2

        declared = {feature.name: feature for feature in self.schema.feature}
        reason = "as in the statistics"
        names = self.observed.keys() & self.features.keys() - self.absent - self.partitions.keys()
        for name in sorted(names):
            seen = self.observed[name]
            feature = declared.get(name, schema_pb2.Feature(name=name))
            if self.features[name].dtype != seen.dtype:
                continue
            if not self._domain(feature):
                for value in seen.values:
                    yield self._with_value(name, value, reason)
            if not (feature.HasField("value_count") or feature.HasField("shape")):
                yield from self._with_lengths(name, seen.lengths, reason)

    def _used(self) -> list[Any]:
        """Returns the features of the schema that the signature reads and requests have.

        Those of sparse tensors are left out: an index that occurs twice is an error. So are the row
        lengths of nested lists, which must fit the values.
        """
        sparse = self.schema.sparse_feature
        columns = [
            c.name for feature in sparse for c in (*feature.index_feature, feature.value_feature)
        ]
        unbound = self.features.keys() - self.absent - set(columns) - self.partitions.keys()
        return [
            feature
            for feature in features_in_use(self.schema)
            if feature.name in unbound
            and dtype_in_schema(feature) in ("", self.features[feature.name].dtype)
        ]

    def _domain(self, feature: Any) -> list[Any]:
        return domain_of(self.schema, feature, self.features[feature.name].dtype)

    def _numbers(self, feature: Any) -> Sequence[Any]:
        return {"float32": _FLOATS, "int64": _INTS}.get(self.features[feature.name].dtype, ())

    def _holds_text(self, feature: Any) -> bool:
        """Whether a feature holds text, and not an image or the like."""
        if self.features[feature.name].dtype != "string" or feature.HasField("image_domain"):
            return False
        try:
            for value in self._values(feature.name):
                value.decode()
        except UnicodeDecodeError:
            return False
        return True

    def _values(self, name: str) -> list[Any]:
        features = self.base.features.feature
        kind = LISTS[self.features[name].dtype]
        # Reading a missing feature of a proto's map would add it, to the row that all others copy.
        return list(getattr(features[name], kind).value) if name in features else []

    def _with_value(self, name: str, value: Any, reason: str) -> ProbeRow:
        size = len(self._values(name)) or self.features[name].size
        shown = f"{value[:20]!r}" + "..." * (len(value) > 20) if isinstance(value, bytes) else value
        return self._row(name, {name: [value] * size}, f"is {shown}, {reason}")

    def _with_lengths(self, name: str, counts: Iterable[int], reason: str) -> Iterator[ProbeRow]:
        if any(name in divided for divided in self.partitions.values()):
            return
        for count in (min(count, _MAX_VALUES) for count in counts):
            lists = {}
            for other in self._parallel[name]:
                usual = b"text" if self.features[other].dtype == "string" else 1
                lists[other] = ((self._values(other) or [usual]) * count)[:count]
            yield self._row(name, lists, f"has {count} values, {reason}")

    def _row(self, name: str, lists: Mapping[str, Sequence[Any]], what: str) -> ProbeRow:
        example = copy.deepcopy(self.base)
        for key, values in lists.items():
            into = getattr(example.features.feature[key], LISTS[self.features[key].dtype])
            # An empty list is there all the same: without this, the feature would have no kind, and
            # the row would test a missing feature instead.
            into.SetInParent()
            into.value[:] = values
        # In a batch, other rows give an empty list its width.
        return ProbeRow(example, f"feature {name!r} {what}", alone=not any(lists.values()))

    @functools.cached_property
    def _parallel(self) -> dict[str, list[str]]:
        rules = {
            feature.name: f"{feature.value_count} {feature.shape}"
            for feature in self.schema.feature
        }
        return parallel_lists(self.base, sorted(self.features.keys() - self.absent), rules)


def features_in_use(schema: Any) -> list[Any]:
    """Returns the features of a schema that are in production."""
    from generic_trainer.data import is_read  # it imports TensorFlow

    return list(filter(is_read, schema.feature))


def dtype_in_schema(feature: Any) -> str:
    """Returns the dtype of a schema's feature, as in `ParsedFeature`; "" if it has none."""
    return _DTYPES.get(feature.type, "")


def dtypes_in_schema(features: Iterable[Any]) -> dict[str, str]:
    """Returns name → dtype of a schema's features."""
    return {feature.name: dtype_in_schema(feature) for feature in features}


def is_optional(feature: Any) -> bool:
    """Returns whether rows may lack a feature of a schema.

    A feature with a `shape` and without `presence` counts as dense, as in Transform.
    """
    if any(name.upper() == "SERVING" for name in feature.not_in_environment):
        return True
    if not feature.HasField("presence"):
        return not feature.HasField("shape")
    return feature.presence.min_fraction < 1


def parsed(records: Iterable[bytes]) -> list[Any]:
    """Returns serialized records as `tf.train.Example`s."""
    import tensorflow as tf

    return [tf.train.Example.FromString(record) for record in records]


def without(example: Any, keys: Iterable[str]) -> Any:
    """Returns a copy of a `tf.train.Example` that lacks some features."""
    fewer = copy.deepcopy(example)
    for key in keys:
        fewer.features.feature.pop(key, None)
    return fewer


def domain_of(schema: Any, feature: Any, dtype: str) -> list[Any]:
    """Returns the words of a feature's domain or, for a dtype of numbers, the limits."""
    return domain_words(schema, feature) if dtype == "string" else domain_limits(feature, dtype)


def domain_words(schema: Any, feature: Any) -> list[bytes]:
    """Returns the words of a feature's domain."""
    shared = next((d for d in schema.string_domain if d.name == feature.domain), None)
    domain = feature.string_domain if shared is None else shared
    of_bool = feature.bool_domain.true_value, feature.bool_domain.false_value
    return [word.encode() for word in (*domain.value, *filter(None, of_bool))]


def domain_limits(feature: Any, dtype: str = "") -> list[Any]:
    """Returns the limits of a feature's numeric domain, in order, without meaningless ones."""
    if feature.HasField("bool_domain"):
        return [0, 1]
    for kind in ("int_domain", "float_domain"):
        if feature.HasField(kind):
            is_whole = dtype == "int64"
            limit = _NO_INT_BOUND if is_whole or kind == "int_domain" else _NO_BOUND
            domain = getattr(feature, kind)
            within = {"min": math.ceil, "max": math.floor}
            bounds = {e: getattr(domain, e) for e in within if domain.HasField(e)}
            known = {end: bound for end, bound in bounds.items() if abs(bound) < limit}
            limits = [within[e](b) if is_whole else b for e, b in known.items()]
            return limits if limits == sorted(limits) else []  # 0.2..0.8 has no whole number
    return []


def _holds(feature: Any, value: Any) -> bool:
    """Whether a number is in a feature's numeric domain, which may have one limit alone."""
    kind = feature.WhichOneof("domain_info")
    if kind not in ("int_domain", "float_domain"):
        return False
    domain = getattr(feature, kind)
    above = not domain.HasField("min") or value >= domain.min
    return above and (not domain.HasField("max") or value <= domain.max)


def _lengths(feature: Any) -> Iterator[int]:
    """Yields the lengths of lists that the schema allows, at their limits."""
    if not feature.HasField("value_count"):
        return
    count = feature.value_count
    if count.HasField("min") and count.min <= _MAX_VALUES:
        yield count.min
    if count.max:
        yield count.max
