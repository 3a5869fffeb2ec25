"""The contract: the requirements on a model before it is published, as an object, JSON or YAML."""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic_core import core_schema

from generic_trainer._core.options import AtLeastZero, Expected, Options, Positive, options
from generic_trainer._core.texts import describe, did_you_mean, parse_proto, parse_yaml, shown
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.validation._check import all_checks
from generic_trainer.validation._op_registries import minor_of, minors

Severity = Literal["fail", "warn", "skip"]
# Fields that name files, or hold their content.
SOURCES = (
    "examples", "schema", "statistics", "transform_graph", "eval_config", "base_model",
    "source_model",
)  # fmt: skip
_MODULES = {  # of protos
    "EvalConfig": "tensorflow_model_analysis.proto.config_pb2",
    "Schema": "tensorflow_metadata.proto.v0.schema_pb2",
    "DatasetFeatureStatisticsList": "tensorflow_metadata.proto.v0.statistics_pb2",
}
_TENSOR = re.compile(r"\w+(\[((None|-?\d{1,18})(,(None|-?\d{1,18}))*,?)?\])?")
_SERVED_BY = re.compile(r"tensorflow(?:[-_]serving)?==2\.(\d{1,3})(?:\.\w+)*")
# Names of nodes in a pipeline, whose own ids contain the component's name as a rule.
EVALUATOR = "evaluator"
BULK_INFERRER = "bulk_?inferr?er"
INFRA_VALIDATOR = "infra_?validator"
_SERVER = f"pusher|{INFRA_VALIDATOR}|serving"


def _listed(value: Any) -> Any:
    """Returns a single name, or any iterable of names, as a tuple."""
    if isinstance(value, str):
        return (value,)
    is_list = isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping))
    return tuple(value) if is_list else value


def _tensor(value: str) -> str:
    if not _TENSOR.fullmatch(value.replace(" ", "")):
        raise ValueError(f"must be a tensor such as 'float32[None, 1]', got {describe(value)}")
    return value


def _servers(values: tuple[str, ...]) -> tuple[str, ...]:
    known = minors()
    for value in values:
        match = _SERVED_BY.fullmatch(value.replace(" ", ""))
        if match is None or int(match[1]) not in known:
            kinds = "'tensorflow==2.N' or 'tensorflow_serving==2.N'"
            is_tflite = value.startswith("tflite")
            why = ": ops of TFLite have versions of their own" if is_tflite else ""
            span = f"N from {known[0]} to {known[-1]}"
            raise ValueError(f"must be {kinds}, {span}, got {shown(value)}{why}")
    return values


def _spec(value: Any) -> Any:
    return SignatureSpec(**value) if isinstance(value, Mapping) else value


def _known(severities: Mapping[str, Severity]) -> Mapping[str, Severity]:
    known = [check.name for check in all_checks()] if severities else []
    problems = [
        f"severities: unknown check {shown(name)}{did_you_mean(name, known)}; the checks are "
        f"{', '.join(known)}"
        for name in severities
        if name not in known
    ]
    raise_problems(ConfigurationError, "severities", problems)
    return severities


Names = Annotated[tuple[str, ...], Expected("a list of names"), pydantic.BeforeValidator(_listed)]
Tensors = Mapping[str, Annotated[str, pydantic.AfterValidator(_tensor)]]


@dataclasses.dataclass(frozen=True)
class _Source:
    """Annotation of a field that holds a path, or the content of the file itself.

    Attributes:
        kind: of the content: the name of a proto, `"records"`, or empty if only a path will do.
    """

    kind: str = ""

    def __get_pydantic_core_schema__(self, *_: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            self._checked, serialization=core_schema.plain_serializer_function_ser_schema(_encoded)
        )

    def _checked(self, value: Any) -> Any:
        # No file system has a name with a zero in it, and functions raise all kinds of errors.
        try:
            value = self._read(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot be read: {error}") from error
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        is_path = isinstance(value, str) and "\0" not in value
        is_tuple = self.kind == "records" and isinstance(value, tuple)
        is_records = is_tuple and all(isinstance(record, bytes) for record in value)
        # By name, because importing TensorFlow Model Analysis takes seconds.
        is_proto = getattr(getattr(value, "DESCRIPTOR", None), "name", "") == self.kind != ""
        if value is None or is_path or is_records or is_proto:
            return value
        others = {"": "", "records": " or serialized tf.Examples"}
        expected = f"a path{others.get(self.kind, f' or a {self.kind}')}"
        raise ValueError(f"must be {expected}, got {describe(value)}")

    def _read(self, value: Any) -> Any:
        """Returns a value that `_encoded` has encoded; any other one unchanged."""
        if self.kind == "records":
            is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
            return tuple(map(_decoded, value)) if is_list else value
        if self.kind and isinstance(value, Mapping) and set(value) == {"proto_text"}:
            message = getattr(importlib.import_module(_MODULES[self.kind]), self.kind)
            return parse_proto(value["proto_text"], message)
        return value


def _encoded(value: Any) -> Any:
    """Returns a proto or records as JSON can hold them, and a path as it is."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if hasattr(value, "SerializeToString"):
        return {"proto_text": str(value)}
    return [_encoded(record) for record in value] if isinstance(value, tuple) else value


def _decoded(record: Any) -> Any:
    if isinstance(record, Mapping) and set(record) == {"base64"}:
        return base64.b64decode(record["base64"], validate=True)
    return record


@options(frozen=True)
class SignatureSpec:
    """A signature that must exist, with the requirements on its tensors.

    Attributes:
        name: the signature's key, e.g. `"serving_default"`.
        inputs: input name → `"dtype"` or `"dtype[d0, d1]"`, e.g. `"string[None]"`. The inputs must
            be exactly these; an empty mapping requires nothing.
        outputs: output name → the same. The outputs must contain these.
    """

    name: str
    inputs: Tensors = dataclasses.field(default_factory=dict)
    outputs: Tensors = dataclasses.field(default_factory=dict)


Signature = Annotated[
    str | SignatureSpec, Expected("a name or a SignatureSpec"), pydantic.BeforeValidator(_spec)
]


@options(frozen=True)
class ServingContract(Options):
    """The requirements on an exported model, beyond being a SavedModel that works.

    ::

        ServingContract(
            examples="gs://bucket/CsvExampleGen/examples/1/Split-eval/*",
            label_keys=("tips",),
            max_latency_ms=20,
            severities={"latency": "warn"},
        )

    Attributes:
        examples: a TFRecord glob (gzip or not) or serialized `tf.Example`s: real eval records.
        examples_transformed: whether `examples` are the output of Transform, which the signatures
            that take raw examples cannot read.
        schema: path of a text `tensorflow_metadata.Schema`, or the proto, of the *raw* examples.
        statistics: path or glob of `DatasetFeatureStatisticsList`s of the *raw* examples, as
            StatisticsGen writes them, or the proto.
        transform_graph: path of the TransformGraph artifact that the model was trained with, whose
            vocabularies it must have.
        eval_config: path of the Evaluator's `tfma.EvalConfig` as text or JSON, or the proto.
        base_model: directory of the SavedModel to compare with.
        source_model: directory of the SavedModel that this one was converted or quantised from, and
            whose predictions it must have; by default, for a file beside a SavedModel, that one.
        signatures: names, or `SignatureSpec`s, of the signatures that must exist.
        label_keys: features that are absent when the model serves.
        max_latency_ms: budget in milliseconds for one example, median.
        max_memory_mb: budget in MiB for the resident memory that loading and scoring add.
        allowed_ops: ops that are accepted although a check would reject them.
        denied_ops: ops that are rejected although every check would accept them.
        severities: check name → `"fail"`, `"warn"` or `"skip"`, instead of the check's own verdict.
        op_libraries: modules whose import registers ops that TensorFlow does not have, such as
            `"tensorflow_text"`; every consumer must load them too.
        consumers: the components that read the model, by their names in the pipeline:
            `"Evaluator"`, `"BulkInferrer"`, `"Pusher"`, `"InfraValidator"`. An Evaluator and a
            BulkInferrer match outputs with examples by row; without them, a fixed batch, outputs
            per batch and random outputs pass. By default the pipeline's; if that is not known,
            such findings are warnings.
        probe_s: seconds for calls with more rows than the first eval examples: 1,000 of them
            from all over the files, rows made from the schema and the statistics, batches of
            other sizes; 0 for none of these calls.
        rehearse: export and check untrained weights before training, by the module's `export_fn`;
            without one there is no rehearsal. True refuses a run whose untrained export fails any
            check. By default only failures that training cannot change refuse a run, such as a
            missing signature. False: none.
        format: None for a SavedModel or a model in another format, of which only TFLite is
            checked. `"saved_model"` requires a SavedModel; for `"any"` the directory must not be
            empty and must match its manifest, and nothing more is checked.
        parity_atol: allowed difference of a prediction from the source's, added to `parity_rtol`
            times it; a larger one is a failure. By default 0.001; float16 weights cause a warning
            from 0.01 on and integers from 0.05 on, if 5 % of the predictions differ by more.
        parity_rtol: allowed difference relative to the source's prediction.
        served_by: releases that will serve the model, such as `"tensorflow_serving==2.19"` or
            `"tensorflow==2.16"`. An op, attribute or dtype that one of them lacks is a failure.

    Raises:
        ConfigurationError: a value is wrong; all wrong values are listed.
    """

    examples: Annotated[str | Sequence[bytes] | None, _Source("records")] = None
    schema: Annotated[Any, _Source("Schema")] = None
    transform_graph: Annotated[str | None, _Source()] = None
    eval_config: Annotated[Any, _Source("EvalConfig")] = None
    base_model: Annotated[str | None, _Source()] = None
    signatures: Annotated[tuple[Signature, ...], pydantic.BeforeValidator(_listed)] = (
        "serving_default",
    )
    label_keys: Names = ()
    max_latency_ms: Positive | None = None
    max_memory_mb: Positive | None = None
    allowed_ops: Names = ()
    denied_ops: Names = ()
    severities: Annotated[Mapping[str, Severity], pydantic.AfterValidator(_known)] = (
        dataclasses.field(default_factory=dict)
    )
    op_libraries: Names = ()
    consumers: Names = ()
    probe_s: AtLeastZero = 2.0
    rehearse: bool | None = None
    format: Literal["saved_model", "any"] | None = None
    examples_transformed: bool = False
    source_model: Annotated[str | None, _Source()] = None
    parity_atol: AtLeastZero | None = None
    parity_rtol: AtLeastZero | None = None
    statistics: Annotated[Any, _Source("DatasetFeatureStatisticsList")] = None
    served_by: Annotated[Names, pydantic.AfterValidator(_servers)] = ()

    @property
    def servers(self) -> dict[str, int]:
        """Name of each release that will serve the model → its minor version of TensorFlow 2."""
        return {name: minor_of(name.partition("==")[2]) for name in self.served_by}

    @property
    def signature_specs(self) -> tuple[SignatureSpec, ...]:
        """The required signatures, names alone made into `SignatureSpec`s."""
        specs = (s if isinstance(s, SignatureSpec) else SignatureSpec(s) for s in self.signatures)
        return tuple(specs)

    @property
    def paths(self) -> dict[str, str]:
        """Name → path of each input that is in files."""
        sources = {name: getattr(self, name) for name in SOURCES}
        return {name: path for name, path in sources.items() if isinstance(path, str)}

    @property
    def matches_rows(self) -> bool | None:
        """Whether a consumer matches outputs with examples row by row; None if that is unknown."""
        if self.evaluates or self.is_read_by(BULK_INFERRER):
            return True
        return False if self._are_all(_SERVER) else None

    @property
    def evaluates(self) -> bool:
        """Whether an Evaluator is known to read the model."""
        return self.eval_config is not None or self.is_read_by(EVALUATOR)

    @property
    def only_evaluates(self) -> bool:
        """Whether Evaluators are the only known consumers."""
        return self.evaluates and (not self.consumers or self._are_all(EVALUATOR))

    @property
    def may_serve(self) -> bool:
        """Whether a server may read the model: a consumer is unknown, or does not match rows."""
        return not self._are_all(f"{EVALUATOR}|{BULK_INFERRER}")

    @property
    def loads_in_python(self) -> bool | None:
        """Whether a consumer calls `tf.saved_model.load`; None if that is unknown."""
        if self.evaluates:
            return True
        return False if self._are_all(f"{_SERVER}|{BULK_INFERRER}") else None

    @property
    def compares(self) -> bool:
        """Whether the contract bounds the difference from the source's predictions."""
        return self.parity_atol is not None or self.parity_rtol is not None

    def is_read_by(self, kind: str) -> bool:
        """Returns whether a consumer of a kind, such as `BULK_INFERRER`, is known to be there."""
        return any(re.search(kind, name, re.IGNORECASE) for name in self.consumers)

    def _are_all(self, kinds: str) -> bool:
        """Returns whether there are consumers, and all of them are of these kinds."""
        is_of_kinds = (re.search(kinds, name, re.IGNORECASE) for name in self.consumers)
        return bool(self.consumers) and all(is_of_kinds)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> ServingContract:
        """Reads a YAML (or JSON) file that holds a mapping of this class's fields.

        Raises:
            ConfigurationError: the file cannot be read or is not a contract.
        """
        file = os.fspath(path)
        try:
            plain = parse_yaml(Path(path).read_text(encoding="utf-8"))
            text = json.dumps({} if plain is None else plain, default=str)
        except (OSError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"contract {file} cannot be read: {error}", path=file
            ) from error
        return cls.from_json(text, f"contract {file}", path=file)
