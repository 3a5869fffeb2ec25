"""The contract: what a model must fulfil before it is published, as an object, JSON or YAML."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from generic_trainer.errors import ConfigurationError, raise_problems

Severity = Literal["fail", "warn", "skip"]
_SEVERITIES = ("fail", "warn", "skip")
_FORMATS = ("saved_model", "any")


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
        eval_config: path of the Evaluator's `tfma.EvalConfig` as text or JSON, or the proto.
        base_model: directory of the SavedModel to compare with.
        signatures: names, or `SignatureSpec`s, of the signatures that must exist.
        label_keys: features that are absent when the model serves.
        max_latency_ms: budget in milliseconds for one example, median.
        max_memory_mb: budget in MiB for what loading and scoring add to the resident memory.
        allowed_ops: ops that are accepted although a check would reject them.
        denied_ops: ops that are rejected although every check would accept them.
        severities: check name → `"fail"`, `"warn"` or `"skip"`, instead of the check's own verdict.
        rehearse: export and check untrained weights before training, where the module has
            `export_fn`.
        format: `"saved_model"`, or `"any"`: the directory must not be empty, nothing else is
            checked (scikit-learn, Flax checkpoints and the like).

    Raises:
        ConfigurationError: a value is wrong; all wrong values are listed.
    """

    examples: str | Sequence[bytes] | None = None
    schema: Any = None
    eval_config: Any = None
    base_model: str | None = None
    signatures: tuple[str | SignatureSpec, ...] = ("serving_default",)
    label_keys: tuple[str, ...] = ()
    max_latency_ms: float | None = None
    max_memory_mb: float | None = None
    allowed_ops: tuple[str, ...] = ()
    denied_ops: tuple[str, ...] = ()
    severities: Mapping[str, Severity] = dataclasses.field(default_factory=dict)
    rehearse: bool = False
    format: Literal["saved_model", "any"] = "saved_model"
    examples_transformed: bool = False

    def __post_init__(self) -> None:
        for name in ("signatures", "label_keys", "allowed_ops", "denied_ops"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        raise_problems(ConfigurationError, "ServingContract", list(self._problems()))

    @property
    def signature_specs(self) -> tuple[SignatureSpec, ...]:
        """The required signatures, names alone made into `SignatureSpec`s."""
        return tuple(
            item if isinstance(item, SignatureSpec) else SignatureSpec(item)
            for item in self.signatures
        )

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
            plain = json.loads(text)
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
        import yaml

        try:
            plain = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigurationError(
                f"contract {path} cannot be read: {error}", path=os.fspath(path)
            ) from error
        return _from_plain({} if plain is None else plain, f"contract {path}", os.fspath(path))

    def _problems(self) -> list[str]:
        problems = [
            f"severities[{name!r}] must be one of {_SEVERITIES}, got {severity!r}"
            for name, severity in self.severities.items()
            if severity not in _SEVERITIES
        ]
        if self.format not in _FORMATS:
            problems.append(f"format must be one of {_FORMATS}, got {self.format!r}")
        for name in ("max_latency_ms", "max_memory_mb"):
            budget = getattr(self, name)
            is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
            if budget is not None and not (is_number and budget > 0):
                problems.append(f"{name} must be a positive number, got {budget!r}")
        return problems


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
    unknown = sorted(set(plain) - set(_FIELDS))
    if unknown:
        raise ConfigurationError(
            f"{subject}: unknown fields {unknown}; the fields are {', '.join(_FIELDS)}", path=path
        )
    try:
        return ServingContract(**{name: _decode(name, value) for name, value in plain.items()})
    except ConfigurationError as error:
        error.path = path
        raise
    except TypeError as error:
        raise ConfigurationError(f"{subject}: {error}", path=path) from error


def _decode(field: str, value: Any) -> Any:
    if field == "signatures" and not isinstance(value, str):
        return tuple(SignatureSpec(**item) if isinstance(item, Mapping) else item for item in value)
    if isinstance(value, Mapping) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"])
    if isinstance(value, Mapping) and set(value) == {"proto_text"}:
        return _proto(field, value["proto_text"])
    if isinstance(value, list):
        return tuple(_decode(field, item) for item in value)
    return value


def _proto(field: str, text: str) -> Any:
    from google.protobuf import text_format

    if field == "schema":
        from tensorflow_metadata.proto.v0.schema_pb2 import Schema as Message
    else:
        from tensorflow_model_analysis.proto.config_pb2 import EvalConfig as Message
    return text_format.Parse(text, Message())
