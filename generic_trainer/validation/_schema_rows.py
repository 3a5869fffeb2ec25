"""Rows made from a schema: at the limits of its domains, and beyond them.

For features without a domain, statistics give values that have occurred.

Each row differs in one feature from a row that scores, so that the cause of a failure is clear. The
meaning of a schema is that of `TensorFlow Metadata <https://github.com/tensorflow/metadata>`_: a
feature is missing in some examples if `min_fraction` is below 1; `min_count`, which all inferred
schemas have, is about the data set as a whole.
"""

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from generic_trainer.validation._observed import ObservedFeature
from generic_trainer.validation._signatures import ParsedFeature

_MAX_WORDS = 200  # of one domain
_MAX_VALUES = 1000  # of one list
_MANY = 100
_NO_BOUND = 1e30  # beyond it a domain holds all numbers of the type
_NO_INT_BOUND = 1 << 40
_FLOATS = (0.0, -1.0, 0.5, 1.0, 1e-6, 1e-42, 1e9, -1e9)  # one of them denormal
_INTS = (0, -1, 1 << 31)
_TEXTS = (
    b"",
    b"never seen before",
    "Zürich 東京 🚖 \u202eabc".encode(),
    b"\xff\xfe\x00",
    b"long " * 2000,
)
LISTS = {"string": "bytes_list", "int64": "int64_list", "float32": "float_list"}
DTYPE_OF_LIST = {kind: dtype for dtype, kind in LISTS.items()}
_DTYPES = {1: "string", 2: "int64", 3: "float32"}  # schema_pb2.FeatureType


@dataclasses.dataclass(frozen=True)
class ProbeRow:
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
    """

    schema: Any
    features: Mapping[str, ParsedFeature]
    base: Any
    absent: AbstractSet[str]
    vocabulary: Sequence[bytes] = ()
    observed: Mapping[str, ObservedFeature] = dataclasses.field(default_factory=dict)

    def allowed(self) -> Iterator[ProbeRow]:
        """Yields rows at the limits of the domains that the schema declares."""
        for feature in self._used():
            domain, numbers = self._domain(feature), self._numbers(feature)
            reason = "at the limit of its domain" if numbers else "of its domain"
            for value in domain[:: max(1, len(domain) // _MAX_WORDS)]:
                yield self._with_value(feature.name, value, reason)
            for value in numbers:
                if len(domain) == 2 and domain[0] < value < domain[1]:
                    yield self._with_value(feature.name, value, "in its domain")
            for count in _lengths(feature):
                yield self._with_length(feature.name, count, "which value_count allows")

    def unforeseen(self) -> Iterator[ProbeRow]:
        """Yields rows beyond the domains of the schema, and rows without a domain."""
        for feature in self._used():
            name, domain = feature.name, self._domain(feature)
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
                if value not in domain:
                    yield self._with_value(name, value, reason)
            if feature.HasField("value_count") and not feature.value_count.max:
                for count in (2, _MANY):
                    yield self._with_length(name, count, "as value_count has no max")

    def in_statistics(self) -> Iterator[ProbeRow]:
        """Yields rows with values from the statistics of features that the schema leaves open."""
        from tensorflow_metadata.proto.v0 import schema_pb2

        declared = {feature.name: feature for feature in self.schema.feature}
        reason = "as in the statistics"
        for name in sorted(self.observed.keys() & self.features.keys() - self.absent):
            seen, feature = self.observed[name], declared.get(name, schema_pb2.Feature(name=name))
            if self.features[name].dtype != seen.dtype:
                continue
            if not self._domain(feature):
                for value in seen.values:
                    yield self._with_value(name, value, reason)
            if not (feature.HasField("value_count") or feature.HasField("shape")):
                for count in seen.lengths:
                    yield self._with_length(name, min(count, _MAX_VALUES), reason)

    def _used(self) -> list[Any]:
        """Returns the features of the schema that the signature reads and requests have."""
        return [
            feature
            for feature in features_in_use(self.schema)
            if feature.name in self.features.keys() - self.absent
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
        # Reading a missing feature would add it.
        return list(getattr(features[name], kind).value) if name in features else []

    def _with_value(self, name: str, value: Any, reason: str) -> ProbeRow:
        size = len(self._values(name)) or self.features[name].size
        shown = f"{value[:20]!r}" + "..." * (len(value) > 20) if isinstance(value, bytes) else value
        return self._row(name, [value] * size, f"is {shown}, {reason}")

    def _with_length(self, name: str, count: int, reason: str) -> ProbeRow:
        usual = b"text" if self.features[name].dtype == "string" else 1
        values = (self._values(name) or [usual]) * count
        return self._row(name, values[:count], f"has {count} values, {reason}")

    def _row(self, name: str, values: Sequence[Any], what: str) -> ProbeRow:
        example = copy.deepcopy(self.base)
        into = getattr(example.features.feature[name], LISTS[self.features[name].dtype])
        into.SetInParent()  # an empty list is there all the same
        into.value[:] = values
        return ProbeRow(example, f"feature {name!r} {what}", alone=not values)


def features_in_use(schema: Any) -> list[Any]:
    """Returns the features of a schema that are in production."""
    from generic_trainer.data import is_read  # it imports TensorFlow

    return list(filter(is_read, schema.feature))


def dtype_in_schema(feature: Any) -> str:
    """Returns the dtype of a schema's feature, as in `ParsedFeature`; "" if it has none."""
    return _DTYPES.get(feature.type, "")


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
    return domain_words(schema, feature) if dtype == "string" else domain_limits(feature)


def domain_words(schema: Any, feature: Any) -> list[bytes]:
    """Returns the words of a feature's domain."""
    shared = next((d for d in schema.string_domain if d.name == feature.domain), None)
    domain = feature.string_domain if shared is None else shared
    return [word.encode() for word in domain.value]


def domain_limits(feature: Any) -> list[Any]:
    """Returns the limits of a feature's numeric domain, in order, without meaningless ones."""
    if feature.HasField("bool_domain"):
        return [0, 1]
    for kind, limit in (("int_domain", _NO_INT_BOUND), ("float_domain", _NO_BOUND)):
        if feature.HasField(kind):
            domain = getattr(feature, kind)
            bounds = [getattr(domain, end) for end in ("min", "max") if domain.HasField(end)]
            return [bound for bound in bounds if abs(bound) < limit]
    return []


def _lengths(feature: Any) -> Iterator[int]:
    """Yields the lengths of lists that the schema allows, at their limits."""
    if not feature.HasField("value_count"):
        return
    count = feature.value_count
    if count.HasField("min") and count.min <= _MAX_VALUES:
        yield count.min
    if count.max:
        yield min(count.max, _MAX_VALUES)
