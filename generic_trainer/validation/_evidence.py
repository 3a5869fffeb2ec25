"""What the files that a contract names tell of a model's rows; each is read at its first use."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core.texts import load_eval_config, load_schema, load_statistics
from generic_trainer._core.tfx_names import TRANSFORMED_SCHEMA
from generic_trainer.errors import DataError
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._lists import DTYPE_OF_LIST
from generic_trainer.validation._schema_rows import (
    ObservedFeature,
    dtypes_in_schema,
    observed_features,
    parsed,
)
from generic_trainer.validation._tfma_lint import evaluates_transformed, labels_of

RECORDS = 32  # examples that every signature is called with
EVAL_ROWS = 1000  # examples that are scored, from all over the files
MAX_EXAMPLES_BYTES = 64 << 20  # images take long to read, and longer to score


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Examples, schema, statistics, transform graph and eval config of a contract.

    Each is read once. What cannot be read raises a `DataError` at every use; the check
    `inputs_read` is the one that reports it.

    Attributes:
        contract: names the files.
        unreadable: input of the contract that could not be fetched → reason.
    """

    contract: ServingContract
    unreadable: Mapping[str, str]

    @functools.cached_property
    def eval_rows(self) -> list[bytes]:
        """A sample of the contract's examples, or none; a `DataError` if they are unreadable."""
        source = self._input("examples")
        if source is None:
            return []
        from google.protobuf.message import DecodeError

        from generic_trainer._core.records import sample_records  # it imports TensorFlow

        records = sample_records(source, EVAL_ROWS, MAX_EXAMPLES_BYTES)
        try:
            parsed(records)
        except DecodeError as error:
            raise DataError("the contract's examples are not serialized tf.Examples") from error
        return records

    @property
    def records(self) -> list[bytes]:
        """The examples with which every signature is called."""
        return self.eval_rows[:RECORDS]

    @property
    def raw_records(self) -> list[bytes]:
        """The same, if a signature may take them.

        Transform's output is not an input of a graph that transforms by itself.
        """
        return [] if self.contract.examples_transformed else self.records

    @property
    def label_keys(self) -> set[str]:
        """The labels that the contract names, or that its eval config does."""
        if self.contract.label_keys or self.contract.eval_config is None:
            return set(self.contract.label_keys)
        return labels_of(self.eval_config)

    @functools.cached_property
    def schema(self) -> Any:
        """The contract's `Schema`, or None; a `DataError` if it cannot be read."""
        return load_schema(self._input("schema"))

    @functools.cached_property
    def observed(self) -> dict[str, ObservedFeature]:
        """Feature → its statistics in the contract; a `DataError` if they are unreadable.

        It is empty for statistics of transformed examples, as names and dtypes show.
        """
        source = self._input("statistics")
        observed = {} if source is None else observed_features(load_statistics(source))
        dtypes = self.transformed_dtypes  # raw features can have the same names
        transformed = all(dtypes.get(name) in ("", each.dtype) for name, each in observed.items())
        return {} if dtypes and transformed else observed

    @functools.cached_property
    def seen_dtypes(self) -> dict[str, set[str]]:
        """Feature → its dtypes in the first examples, none if it has no values in any."""
        seen: dict[str, set[str]] = {}
        for example in parsed(self.records):
            for name, feature in example.features.feature.items():
                kind = feature.WhichOneof("kind")
                seen.setdefault(name, set()).update([DTYPE_OF_LIST[kind]] if kind else [])
        return seen

    @property
    def feature_dtypes(self) -> dict[str, str] | None:
        """Feature → dtype, by the schema or else by the examples; None without either."""
        if self.schema is not None:
            return dtypes_in_schema(self.schema.feature)
        return {name: min(dtypes) for name, dtypes in self.seen_dtypes.items() if dtypes} or None

    @functools.cached_property
    def transformed_dtypes(self) -> dict[str, str]:
        """Feature of the output of Transform → dtype; none without its schema."""
        path = self.transform_graph and self.transform_graph / TRANSFORMED_SCHEMA
        if path is None or not path.exists():
            return {}
        return dtypes_in_schema(load_schema(str(path)).feature)

    @functools.cached_property
    def evaluates_transformed(self) -> bool:
        """Whether the eval config is for an Evaluator that reads the output of Transform."""
        raw, config = self.feature_dtypes, self.eval_config
        if raw is None or config is None:
            return False
        return evaluates_transformed(config, raw, self.transformed_dtypes)

    @functools.cached_property
    def transform_graph(self) -> Path | None:
        """The contract's TransformGraph artifact, or None; a `DataError` if there is no such."""
        source = self._input("transform_graph")
        if source is not None and not Path(source).is_dir():
            raise DataError(f"the transform graph {source} is not a directory", path=source)
        return None if source is None else Path(source)

    @functools.cached_property
    def eval_config(self) -> Any:
        """The contract's `EvalConfig`, or None; a `DataError` if it cannot be read."""
        return load_eval_config(self._input("eval_config"))

    def _input(self, name: str) -> Any:
        if name in self.unreadable:
            raise DataError(self.unreadable[name])
        return getattr(self.contract, name)
