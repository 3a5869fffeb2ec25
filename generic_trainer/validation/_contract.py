"""The contract: what a model must fulfil before it is published, as an object, JSON or YAML."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from generic_trainer._core.files import is_remote
from generic_trainer._core.protos import parse_proto
from generic_trainer._core.texts import (
    describe,
    did_you_mean,
    is_number,
    parse_json,
    parse_yaml,
)
from generic_trainer.errors import ConfigurationError, raise_problems

Severity = Literal["fail", "warn", "skip"]
_SEVERITIES = ("fail", "warn", "skip")
# Paths, and the protos that can stand in for them.
_PROTOS = {
    "schema": "Schema", "statistics": "DatasetFeatureStatisticsList", "transform_graph": None,
    "eval_config": "EvalConfig", "base_model": None, "source_model": None,
}  # fmt: skip
SOURCES = ("examples", *_PROTOS)  # which are read when a model is checked
_FORMATS = (None, "saved_model", "any")
# The names in the catalogue of `_checks`, which knows this module.
CHECK_NAMES = (
    "presence", "inputs_read", "manifest_matches", "other_formats", "embedded_code",
    "format_consumers", "format_inputs", "leftovers", "parses", "fingerprint",
    "serve_tag", "tensorflow_version", "signatures_exist", "required_signatures",
    "signature_specs", "serialized_input", "batch_dimension", "output_shape",
    "signature_tensors", "signature_methods", "composite_tensors", "schema_features",
    "label_inputs", "unregistered_ops", "denied_ops", "python_ops", "file_ops",
    "absolute_paths", "devices", "compiled_functions", "assets", "vocabularies", "variables_read",
    "variables_finite", "eval_config", "eval_signatures", "loads", "scores",
    "output_per_row", "outputs_finite", "outputs_vary", "deterministic", "row_independence",
    "golden", "without_label", "warmup", "latency", "memory", "eval_rows", "without_optional",
    "schema_rows", "observed_rows", "batch_sizes", "unforeseen_rows", "state_growth",
    "format_scores", "parity", "eval_rehearsal", "session", "base_model",
)  # fmt: skip
_TENSOR = re.compile(r"\w+(\[((None|-?\d{1,18})(,(None|-?\d{1,18}))*,?)?\])?")
_TUPLES = (
    "signatures", "label_keys", "allowed_ops", "denied_ops", "allowed_globals", "op_libraries",
    "consumers",
)  # fmt: skip
# Names of nodes in a pipeline, whose own ids contain the component's name as a rule.
_MATCHES_ROWS = re.compile(r"evaluator|bulk_?inferr?er", re.IGNORECASE)
_INFERS_IN_BULK = re.compile(r"bulk_?inferr?er", re.IGNORECASE)
_EVALUATES = re.compile(r"evaluator", re.IGNORECASE)
_VALIDATES_INFRA = re.compile(r"infra_?validator", re.IGNORECASE)
_SERVES = re.compile(r"pusher|infra_?validator|serving", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class SignatureSpec:
    """A signature that must exist, and what is required of its tensors.

    Attributes:
        name: the signature's key, e.g. `"serving_default"`.
        inputs: input name → `"dtype"` or `"dtype[d0, d1]"`, e.g. `"string[None]"`. The inputs must
            be exactly these; an empty mapping requires nothing.
        outputs: output name → the same. The outputs must contain these.
    """

    name: str
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ServingContract:
    """What is required of an exported model, beyond being a SavedModel that works.

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
            whose predictions it must have; of a file beside a SavedModel that one by default.
        signatures: names, or `SignatureSpec`s, of the signatures that must exist.
        label_keys: features that are absent when the model serves.
        max_latency_ms: budget in milliseconds for one example, median.
        max_memory_mb: budget in MiB for what loading and scoring add to the resident memory.
        allowed_ops: ops that are accepted although a check would reject them.
        denied_ops: ops that are rejected although every check would accept them.
        severities: check name → `"fail"`, `"warn"` or `"skip"`, instead of the check's own verdict.
        op_libraries: modules whose import registers ops that TensorFlow does not have, such as
            `"tensorflow_text"`; every consumer must load them too.
        consumers: what reads the model, by its name in the pipeline: `"Evaluator"`,
            `"BulkInferrer"`, `"Pusher"`, `"InfraValidator"`. An Evaluator and a BulkInferrer match
            outputs with examples row by row; where there is none, a fixed batch, outputs per batch
            and random ones are nobody's concern. By default what the pipeline says; where that
            is not known, such findings are warnings.
        probe_s: seconds for calls with more rows than the first eval examples: the first 1,000 of
            them, rows made from the schema and the statistics, batches of other sizes; 0 for none
            of these.
        rehearse: export and check untrained weights before training: by `export_fn`, where the
            module has one, else by `run_fn` in a dry run of one step on a few records, which can
            neither connect nor write anywhere else. True refuses a run whose untrained export
            fails any check. By default a run is refused only for what no training changes, such
            as a signature that is missing, and there is no rehearsal where training is known to
            take less than 20 times as long, nor a dry run where nobody knows. False: none.
        format: None for what the export is: a SavedModel, or a model in another format that is
            known (TFLite, `.keras`, pickles, ONNX, ...), which has checks of its own. Or
            `"saved_model"` alone, or `"any"`: the directory must not be empty, nothing else is
            checked.
        parity_atol: how far a prediction may be from that of the source, beside `parity_rtol`; one
            that is farther is a failure. By default 0.001; of float16 weights a warning from 0.01
            on, of integers from 0.05 on, and only where 5 % of the predictions are farther.
        parity_rtol: the same, times the prediction of the source.
        max_accuracy_drop: by how much the share of eval rows that are classified rightly, by the
            first of `label_keys`, may be below that of the source, 0 to 1.
        allowed_globals: what pickles and Keras files may import, as `"package"` or `"module.name"`,
            besides what is known as data.

    Raises:
        ConfigurationError: a value is wrong; all wrong values are listed.
    """

    examples: str | Sequence[bytes] | None = None
    schema: Any = None
    transform_graph: str | None = None
    eval_config: Any = None
    base_model: str | None = None
    signatures: tuple[str | SignatureSpec, ...] = ("serving_default",)
    label_keys: tuple[str, ...] = ()
    max_latency_ms: float | None = None
    max_memory_mb: float | None = None
    allowed_ops: tuple[str, ...] = ()
    denied_ops: tuple[str, ...] = ()
    severities: Mapping[str, Severity] = dataclasses.field(default_factory=dict)
    op_libraries: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    probe_s: float = 2.0
    rehearse: bool | None = None
    format: Literal["saved_model", "any"] | None = None
    examples_transformed: bool = False
    source_model: str | None = None
    parity_atol: float | None = None
    parity_rtol: float | None = None
    max_accuracy_drop: float | None = None
    allowed_globals: tuple[str, ...] = ()
    statistics: Any = None

    def __post_init__(self) -> None:
        for name in _TUPLES:
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, (value,))
            elif isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
                object.__setattr__(self, name, tuple(value))
        raise_problems(ConfigurationError, "ServingContract", list(_problems(self)))

    @property
    def signature_specs(self) -> tuple[SignatureSpec, ...]:
        """The required signatures, names alone made into `SignatureSpec`s."""
        return tuple(
            item if isinstance(item, SignatureSpec) else SignatureSpec(item)
            for item in self.signatures
        )

    @property
    def matches_rows(self) -> bool | None:
        """Whether a consumer matches outputs with examples row by row; None if that is unknown."""
        if self.eval_config is not None or any(map(_MATCHES_ROWS.search, self.consumers)):
            return True
        known = self.consumers and all(map(_SERVES.search, self.consumers))
        return False if known else None

    @property
    def infers_in_bulk(self) -> bool:
        """Whether a BulkInferrer is known to read the model."""
        return any(map(_INFERS_IN_BULK.search, self.consumers))

    @property
    def evaluates(self) -> bool:
        """Whether an Evaluator is known to read the model."""
        return self.eval_config is not None or any(map(_EVALUATES.search, self.consumers))

    @property
    def compares(self) -> bool:
        """Whether predictions have to be near those of the source."""
        bounds = (self.parity_atol, self.parity_rtol, self.max_accuracy_drop)
        return any(bound is not None for bound in bounds)

    @property
    def validates_infra(self) -> bool:
        """Whether an InfraValidator is known to load the model into TF Serving."""
        return any(map(_VALIDATES_INFRA.search, self.consumers))

    def to_json(self) -> str:
        """Returns the contract as a JSON object; protos and records are kept inside it."""
        return json.dumps(_plain(self), indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ServingContract:
        """Reads what `to_json` wrote.

        Raises:
            ConfigurationError: the text is not a contract.
        """
        try:
            plain = parse_json(text)
        except ValueError as error:
            raise ConfigurationError(
                f"ServingContract: the JSON text cannot be read: {error}"
            ) from error
        return _from_plain(plain, "ServingContract")

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Writes the contract as a YAML file."""
        import yaml

        Path(path).write_text(yaml.safe_dump(_plain(self), sort_keys=True), encoding="utf-8")

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> ServingContract:
        """Reads a YAML (or JSON) file that holds a mapping of this class's fields.

        Raises:
            ConfigurationError: the file cannot be read or is not a contract.
        """
        try:
            plain = parse_yaml(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"contract {path} cannot be read: {error}", path=os.fspath(path)
            ) from error
        return _from_plain({} if plain is None else plain, f"contract {path}", os.fspath(path))


_FIELDS = tuple(field.name for field in dataclasses.fields(ServingContract))


def _plain(contract: ServingContract) -> dict[str, Any]:
    """Returns the fields that differ from the defaults, as JSON and YAML can hold them."""
    default = ServingContract()
    return {
        name: _encode(getattr(contract, name))
        for name in _FIELDS
        if getattr(contract, name) != getattr(default, name)
    }


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, SignatureSpec):
        return {"name": value.name, "inputs": dict(value.inputs), "outputs": dict(value.outputs)}
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "SerializeToString"):
        return {"proto_text": str(value)}
    return [_encode(item) for item in value]


def _from_plain(plain: Any, subject: str, path: str | None = None) -> ServingContract:
    if not isinstance(plain, Mapping):
        raise ConfigurationError(
            f"{subject}: expected a mapping of fields, found {type(plain).__name__}", path=path
        )
    unknown = [name for name in plain if name not in _FIELDS]
    if unknown:
        nearest = "".join(did_you_mean(name, _FIELDS) for name in unknown)
        raise ConfigurationError(
            f"{subject}: unknown fields {unknown}{nearest}; the fields are {', '.join(_FIELDS)}",
            path=path,
        )
    problems, values = [], {}
    for name, value in plain.items():
        try:
            values[name] = _decode(name, value)
        except (TypeError, ValueError) as error:
            problems.append(f"{name}: {error}")
    raise_problems(ConfigurationError, subject, problems, path=path)
    try:
        return ServingContract(**values)
    except ConfigurationError as error:
        raise_problems(ConfigurationError, subject, error.problems, path=path)
        raise


def _decode(field: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_decode(field, item) for item in value)
    if not isinstance(value, Mapping):
        return value
    if field == "signatures":
        return SignatureSpec(**value)
    if set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    if set(value) == {"proto_text"}:
        return _proto(field, value["proto_text"])
    return value


def _proto(field: str, text: Any) -> Any:
    if field == "schema":
        from tensorflow_metadata.proto.v0.schema_pb2 import Schema as Message
    elif field == "statistics":
        from tensorflow_metadata.proto.v0.statistics_pb2 import (
            DatasetFeatureStatisticsList as Message,
        )
    else:
        from tensorflow_model_analysis.proto.config_pb2 import EvalConfig as Message
    return parse_proto(text, Message)


def _problems(contract: ServingContract) -> Iterator[str]:
    yield from _wrong_sources(contract)
    yield from _wrong_names(contract)
    yield from _wrong_severities(contract.severities)
    if contract.format not in _FORMATS:
        yield f"format must be one of {_FORMATS}, got {contract.format!r}"
    for name in ("max_latency_ms", "max_memory_mb"):
        budget = getattr(contract, name)
        if budget is not None and not (is_number(budget) and budget > 0):
            yield f"{name} must be a positive number, got {describe(budget)}"
    for name in ("parity_atol", "parity_rtol", "max_accuracy_drop"):
        bound = getattr(contract, name)
        if bound is not None and not (is_number(bound) and bound >= 0):
            yield f"{name} must be a number, 0 or more, got {describe(bound)}"
    if not (is_number(contract.probe_s) and contract.probe_s >= 0):
        yield f"probe_s must be a number of seconds, got {describe(contract.probe_s)}"
    for name in ("rehearse", "examples_transformed"):
        value = getattr(contract, name)
        if not (isinstance(value, bool) or (value is None and name == "rehearse")):
            yield f"{name} must be true or false, got {describe(value)}"


def _wrong_sources(contract: ServingContract) -> Iterator[str]:
    for name, proto in _PROTOS.items():
        value = getattr(contract, name)
        # By name, because importing TensorFlow Model Analysis takes seconds.
        found = getattr(getattr(value, "DESCRIPTOR", None), "name", None)
        if not (value is None or _is_path(value) or (proto and found == proto)):
            expected = "a path" + (f" or a {proto}" if proto else "")
            yield f"{name} must be {expected}, got {describe(value)}"
    examples = contract.examples
    if examples is None or _is_path(examples):
        return
    is_sequence = hasattr(examples, "__len__") and not isinstance(examples, (bytes, Mapping))
    if not is_sequence or not all(isinstance(each, bytes) for each in examples):
        yield f"examples must be a path or serialized tf.Examples, got {describe(examples)}"


def _wrong_names(contract: ServingContract) -> Iterator[str]:
    for name in _TUPLES:
        value = getattr(contract, name)
        kinds = (str, SignatureSpec) if name == "signatures" else str
        if not isinstance(value, tuple):
            yield f"{name} must be a list of names, got {describe(value)}"
        elif wrong := [item for item in value if not isinstance(item, kinds)]:
            yield f"{name} must be names, got {describe(wrong[0])}"
        elif name == "signatures":
            for spec in contract.signature_specs:
                yield from _wrong_spec(spec)


def _wrong_spec(spec: SignatureSpec) -> Iterator[str]:
    if not isinstance(spec.name, str):
        yield f"the name of a signature must be a text, got {describe(spec.name)}"
    for kind in ("inputs", "outputs"):
        tensors = getattr(spec, kind)
        if not isinstance(tensors, Mapping):
            yield f"{kind} of signature {spec.name!r} must be a mapping, got {describe(tensors)}"
            continue
        for key, tensor in tensors.items():
            if not (isinstance(key, str) and _is_tensor(tensor)):
                yield (
                    f"{kind} of signature {spec.name!r}: expected a name and a tensor such as "
                    f"'float32[None, 1]', got {describe({key: tensor})}"
                )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, str) and _TENSOR.fullmatch(value.replace(" ", "")) is not None


def _wrong_severities(severities: Any) -> Iterator[str]:
    if not isinstance(severities, Mapping):
        yield (
            f"severities must be a mapping of check → one of {_SEVERITIES}, got "
            f"{describe(severities)}"
        )
        return
    for name, severity in severities.items():
        if name not in CHECK_NAMES:
            yield (
                f"severities: there is no check {name!r}{did_you_mean(name, CHECK_NAMES)}; the "
                f"checks are {', '.join(CHECK_NAMES)}"
            )
        if severity not in _SEVERITIES:
            yield f"severities[{name!r}] must be one of {_SEVERITIES}, got {describe(severity)}"


def _is_path(value: Any) -> bool:
    # No file system has a name with a zero in it; what asks for one raises whatever it likes.
    return isinstance(value, (str, os.PathLike)) and "\0" not in os.fspath(value)


def remote_sources(contract: ServingContract) -> dict[str, str]:
    """Returns name → where it lies, of the contract's inputs on other machines."""
    sources = {name: getattr(contract, name) for name in SOURCES}
    return {n: each for n, each in sources.items() if isinstance(each, str) and is_remote(each)}
