"""`ServingContract` to and from JSON and YAML."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.validation._contract import ServingContract, SignatureSpec

__all__ = ["from_json", "from_yaml", "to_json", "to_yaml"]

_FIELDS = tuple(field.name for field in dataclasses.fields(ServingContract))


def to_json(contract: ServingContract) -> str:
    """Returns the contract's fields that differ from the defaults, as a JSON object."""
    return json.dumps(_to_plain(contract), indent=2, sort_keys=True)


def to_yaml(contract: ServingContract) -> str:
    """Returns the same as a YAML mapping."""
    import yaml

    return yaml.safe_dump(_to_plain(contract), sort_keys=True)


def from_json(text: str) -> ServingContract:
    """Reads what `to_json` wrote."""
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"ServingContract: the JSON text cannot be read: {error}"
        ) from error
    return _from_plain(plain, "ServingContract")


def from_yaml(path: str | os.PathLike[str]) -> ServingContract:
    """Reads a file with a mapping of `ServingContract`'s fields."""
    import yaml

    try:
        plain = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"contract {path} cannot be read: {error}") from error
    return _from_plain({} if plain is None else plain, f"contract {path}")


def _to_plain(contract: ServingContract) -> dict[str, Any]:
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


def _from_plain(plain: Any, subject: str) -> ServingContract:
    if not isinstance(plain, Mapping):
        raise ConfigurationError(
            f"{subject}: expected a mapping of fields, found {type(plain).__name__}"
        )
    unknown = sorted(set(plain) - set(_FIELDS))
    if unknown:
        raise ConfigurationError(
            f"{subject}: unknown fields {unknown}; the fields are {', '.join(_FIELDS)}"
        )
    try:
        return ServingContract(**{name: _decode(name, value) for name, value in plain.items()})
    except TypeError as error:
        raise ConfigurationError(f"{subject}: {error}") from error


def _decode(field: str, value: Any) -> Any:
    if field == "signatures" and not isinstance(value, str):
        return tuple(_signature(item) for item in value)
    if isinstance(value, Mapping) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"])
    if isinstance(value, Mapping) and set(value) == {"proto_text"}:
        return _proto(field, value["proto_text"])
    if isinstance(value, list):
        return tuple(_decode(field, item) for item in value)
    return value


def _signature(item: Any) -> str | SignatureSpec:
    return SignatureSpec(**item) if isinstance(item, Mapping) else item


def _proto(field: str, text: str) -> Any:
    from google.protobuf import text_format

    if field == "schema":
        from tensorflow_metadata.proto.v0.schema_pb2 import Schema as Message
    else:
        from tensorflow_model_analysis.proto.config_pb2 import EvalConfig as Message
    return text_format.Parse(text, Message())
