"""A published model, called with rows as a server calls it, by the code of the checks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer._core.texts import did_you_mean, reason_of, shown
from generic_trainer.errors import ConfigurationError, DataError
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._feeds import feed_for
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import LISTS
from generic_trainer.validation._scoring import Outputs, call
from generic_trainer.validation._signatures import ParsedFeature, described

_logger = logging.getLogger(__name__)

_BATCH = 256
_DEFAULT = "serving_default"


class ServedModel:
    """A SavedModel whose predictions are asked for.

    Args:
        model_dir: local directory with `saved_model.pb`. Its ops run in this process.
        signature: None for `serving_default`, or the only one.

    Raises:
        ConfigurationError: the model does not have the signature.
        DataError: the model cannot be read.
    """

    def __init__(self, model_dir: str, signature: str | None = None) -> None:
        self._model = ModelUnderTest(Path(model_dir), ServingContract(signatures=()), model_dir)
        try:
            signatures = self._model.signatures
        except Exception as error:  # of TensorFlow, protobuf, or of a model without {serve}
            raise DataError(
                f"{model_dir} is not a SavedModel for serving: {reason_of(error)}", path=model_dir
            ) from error
        name = signature or (next(iter(signatures)) if len(signatures) == 1 else _DEFAULT)
        if name not in signatures:
            raise ConfigurationError(
                f"{model_dir} has no signature {name!r}{did_you_mean(name, signatures)}; it has "
                f"{sorted(signatures)}",
                path=model_dir,
            )
        self._name = name
        self._signature = signatures[name]

    @property
    def features(self) -> dict[str, ParsedFeature]:
        """Name → feature that the signature parses from examples, or takes as a tensor."""
        if self._takes_examples:
            return self._signature.features
        return {
            name: ParsedFeature(name, _dtype(tensor.dtype), 1, is_required=True)
            for name, tensor in self._signature.inputs.items()
        }

    def predict(self, rows: Sequence[Mapping[str, Any]], places: Sequence[str]) -> Outputs:
        """Returns output name → array [rows, ...].

        Args:
            rows: feature name → value, a list of values, or None and "" for a missing value; values
                that the model does not use are ignored.
            places: of the rows, for messages.

        Raises:
            DataError: a row lacks a value that the model needs or has one of another type, or the
                model fails; names the first such row. Or no row has any of its columns.
        """
        self._compare_names(rows)
        records = [self._record(row, place) for row, place in zip(rows, places, strict=True)]
        parts = []
        for start in range(0, len(records), _BATCH):
            feed = feed_for(self._model, self._signature, records[start : start + _BATCH])
            if feed is None or not feed.real or feed.whole:
                raise DataError(
                    f"signature {self._name!r} takes {described(self._signature.inputs)}, which "
                    "cannot be made of any number of rows"
                )
            try:
                parts.append(call(self._model.loaded.signatures[self._name], feed.inputs))
            except Exception as error:  # whatever an op of the model raises
                raise DataError(
                    f"the model fails for {places[start]} and the next: {reason_of(error)}"
                ) from error
            for name, output in parts[-1].items():
                if output.shape[:1] != (feed.rows,):
                    raise DataError(
                        f"output {name!r} has the shape {list(output.shape)} for {feed.rows} rows: "
                        "expected one value or list for each row"
                    )
        return {name: np.concatenate([part[name] for part in parts]) for name in sorted(parts[0])}

    def _compare_names(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Warns of columns that the model uses and no row has; an error if these are all."""
        given = {name for row in rows for name in row}
        missing = [name for name in self.features if name not in given]
        listed = ", ".join(f"{name!r}{did_you_mean(name, given)}" for name in missing)
        if missing and len(missing) == len(self.features):
            raise DataError(f"no row has any of the model's columns: {listed}")
        if missing:
            _logger.warning("The model gets no values for columns that no row has: %s", listed)

    @property
    def _takes_examples(self) -> bool:
        return self._signature.is_serialized and bool(self._signature.features)

    def _record(self, row: Mapping[str, Any], place: str) -> bytes:
        import tensorflow as tf

        example = tf.train.Example()
        for name, feature in self.features.items():
            try:
                values = list(_values(row.get(name), feature, is_tensor=not self._takes_examples))
                if values:
                    getattr(example.features.feature[name], LISTS[feature.dtype]).value[:] = values
            except (TypeError, ValueError, OverflowError) as error:
                raise DataError(f"{place}, column {name!r}: {error}", feature=name) from error
        return bytes(example.SerializeToString(deterministic=True))


def _dtype(dtype: Any) -> str:
    if dtype.name == "string":
        return "string"
    return "float32" if dtype.is_floating else "int64"


def _values(value: Any, feature: ParsedFeature, *, is_tensor: bool) -> Iterator[Any]:
    """Yields the values of a feature in a row.

    Raises:
        ValueError: they are missing, or are not of the feature's type.
    """
    if value is None or value == "":
        if is_tensor and feature.dtype != "int64":
            yield b"" if feature.dtype == "string" else float("nan")
        elif feature.is_required:
            raise ValueError("the model needs a value, and there is none")
        return
    for item in value if isinstance(value, list) else [value]:
        if feature.dtype == "string":
            if not isinstance(item, (str, bytes)):
                raise ValueError(f"expected a string, found {shown(item)}")
            yield item.encode() if isinstance(item, str) else item
            continue
        try:
            number = float(item)
        except (TypeError, ValueError):
            raise ValueError(f"expected a number, found {shown(item)}") from None
        if feature.dtype == "int64" and not number.is_integer():
            raise ValueError(f"expected an integer, found {shown(item)}")
        yield _integer(item) if feature.dtype == "int64" else number


def _integer(value: Any) -> int:
    """Returns an integer of 64 bits, of "3.0" as well."""
    try:
        return int(value)
    except ValueError:
        return int(float(value))
