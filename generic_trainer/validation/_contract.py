"""What a model must fulfil before it is published."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from generic_trainer.errors import ConfigurationError, raise_problems

__all__ = ["ServingContract", "Severity", "SignatureSpec"]

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
        from generic_trainer.validation import _contract_files

        return _contract_files.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> ServingContract:
        """Reads what `to_json` wrote.

        Raises:
            ConfigurationError: the text is not a contract.
        """
        from generic_trainer.validation import _contract_files

        return _contract_files.from_json(text)

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Writes the contract as a YAML file."""
        from generic_trainer.validation import _contract_files

        Path(path).write_text(_contract_files.to_yaml(self), encoding="utf-8")

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> ServingContract:
        """Reads a YAML (or JSON) file that holds a mapping of this class's fields.

        Raises:
            ConfigurationError: the file cannot be read or is not a contract.
        """
        from generic_trainer.validation import _contract_files

        return _contract_files.from_yaml(path)

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
