"""A published model, called with rows as a server calls it, by the code of the checks."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer._core.texts import did_you_mean, listed, reason_of
from generic_trainer.errors import ConfigurationError, DataError
from generic_trainer.validation._cells import array_of, values_of
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._lists import LISTS
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import Inputs, Outputs
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

    @functools.cached_property
    def features(self) -> dict[str, ParsedFeature]:
        """Name → feature that the signature parses from examples, or takes as a tensor."""
        if self._takes_examples:
            return self._signature.features
        return {
            name: ParsedFeature(name, tensor.example_dtype, 1, is_required=True)
            for name, tensor in self._signature.inputs.items()
        }

    def predict(self, rows: Sequence[Mapping[str, Any]], places: Sequence[str]) -> Outputs:
        """Returns output name → array [rows, ...].

        Args:
            rows: feature name → value, a list of values, or None and "" for a missing value; values
                that the model does not use are ignored. A tensor's value may be lists of lists.
            places: of the rows, for messages.

        Raises:
            DataError: a row lacks a value that the model needs or has one of another type, or the
                model fails; names the first such row. Or no row has any of its columns.
        """
        tensors = self._signature.inputs
        if not tensors or not all(t.is_dense and t.is_batched for t in tensors.values()):
            raise DataError(
                f"signature {self._name!r} takes {described(tensors)}, which cannot be made of any "
                "number of rows"
            )
        self._compare_names(rows)
        parts: dict[str, list[np.ndarray]] = {}
        for start, inputs in _batches(
            [self._inputs_of(row, place) for row, place in zip(rows, places, strict=True)]
        ):
            try:
                outputs = self._model.call(self._name, inputs)
            except Exception as error:  # whatever an op of the model raises
                raise DataError(
                    f"the model fails for {places[start]} and the next: {reason_of(error)}"
                ) from error
            count = len(next(iter(inputs.values())))
            for name, output in outputs.items():
                if output.shape[:1] != (count,):
                    raise DataError(
                        f"output {name!r} has the shape {list(output.shape)} for {count} rows: "
                        "expected one value or list for each row"
                    )
                parts.setdefault(name, []).append(output)
        return {name: _joined(parts[name]) for name in sorted(parts)}

    def _compare_names(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Warns of columns that the model uses and no row has; an error if these are all."""
        given = {name for row in rows for name in row}
        missing = [name for name in self.features if name not in given]
        names = listed([f"{name!r}{did_you_mean(name, given)}" for name in missing])
        if missing and len(missing) == len(self.features):
            raise DataError(f"no row has any of the model's columns: {names}")
        if missing:
            _logger.warning("The model gets no values for columns that no row has: %s", names)

    @property
    def _takes_examples(self) -> bool:
        return self._signature.is_serialized and bool(self._signature.features)

    def _inputs_of(self, row: Mapping[str, Any], place: str) -> Inputs:
        """Returns input name → value of a row, without the dimension of the rows.

        Raises:
            DataError: a value is missing, or is not one of the model's type.
        """
        import tensorflow as tf

        example = tf.train.Example()
        arrays = {}
        for name, feature in self.features.items():
            try:
                if not self._takes_examples:
                    # An example would have numbers of 32 or 64 bits.
                    arrays[name] = array_of(row.get(name), self._signature.inputs[name])
                elif values := list(values_of(row.get(name), feature)):
                    getattr(example.features.feature[name], LISTS[feature.dtype]).value[:] = values
            except (TypeError, ValueError, OverflowError) as error:
                raise DataError(f"{place}, column {name!r}: {error}", feature=name) from error
        serialized = np.array(example.SerializeToString(deterministic=True), object)
        return arrays or dict.fromkeys(self._signature.inputs, serialized)


def _batches(rows: Sequence[Inputs]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number of the first row of each batch, and its inputs, of the same shapes."""

    def shapes(numbered: tuple[int, Inputs]) -> list[tuple[int, ...]]:
        return [array.shape for array in numbered[1].values()]

    for _, group in itertools.groupby(enumerate(rows), shapes):
        while batch := list(itertools.islice(group, _BATCH)):
            yield batch[0][0], {name: np.stack([row[name] for _, row in batch]) for name in rows[0]}


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rows of all parts; an array of arrays, if the model gives them several shapes."""
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    rows = list(itertools.chain(*parts))
    joined = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        joined[number] = row
    return joined
