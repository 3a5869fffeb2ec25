"""Statistics of a data set: the values, lengths of lists and missing features in it.

`TensorFlow Data Validation <https://www.tensorflow.org/tfx/data_validation>`_ computes them over
all examples, of which the checks read the first ones only.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

_MAX_WORDS = 200  # of one feature
_EXACT = 1 << 53  # beyond it a double, which the statistics have, may be another integer
# TensorFlow Data Validation writes these in the place of long words and of bytes.
_NO_WORDS = ("__BYTES_VALUE__", "__LARGE_BYTES__")
_DTYPES = ("int64", "float32", "string", "string")  # by FeatureNameStatistics.Type


@dataclasses.dataclass(frozen=True)
class ObservedFeature:
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
    found: dict[str, list[Any]] = {}
    for dataset in statistics.datasets:
        for feature in dataset.features:
            if len(feature.path.step) < 2 and feature.type < len(_DTYPES):
                found.setdefault(feature.name or "".join(feature.path.step), []).append(feature)
    merged = {name: _merged(features) for name, features in found.items()}
    return {name: feature for name, feature in merged.items() if feature is not None}


def _merged(features: list[Any]) -> ObservedFeature | None:
    kinds = ((feature, feature.WhichOneof("stats") or "num_stats") for feature in features)
    common = [getattr(feature, kind).common_stats for feature, kind in kinds]
    present = [each for each in common if each.max_num_values]
    dtypes = {_DTYPES[feature.type] for feature in features}
    if not present or len(dtypes) > 1:
        return None
    (dtype,) = dtypes
    values = itertools.chain.from_iterable(_values(feature, dtype) for feature in features)
    return ObservedFeature(
        dtype,
        tuple(dict.fromkeys(values)),
        (min(c.min_num_values for c in present), max(c.max_num_values for c in present)),
        any(each.num_missing for each in common),
    )


def _values(feature: Any, dtype: str) -> Iterator[Any]:
    words = (each.value for each in feature.string_stats.top_values)
    ranked = (each.label for each in feature.string_stats.rank_histogram.buckets)
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
