"""Keras models in one file: `.keras`, which is a zip, and HDF5.

Loading builds what the configuration names, from any module in older releases, and runs the code of
Lambda layers where `safe_mode` is off. Here the configuration is read as data, and only a model of
Keras's own layers is loaded.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from generic_trainer._core.keras import keras_3_package, keras_version
from generic_trainer.validation._formats.contents import (
    Contents,
    MissingLibraryError,
    Run,
    make_signature,
)
from generic_trainer.validation._formats.imports import Verdict, verdict
from generic_trainer.validation._scoring import Outputs

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_CONFIG, _METADATA, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_PACKAGES = ("keras", "tf_keras")
# Functions of Keras's own that read, write or download files.
_DANGEROUS = re.compile(r"\.(utils|saving|models|datasets|tree)(\.|$)")
_DEFAULT = "serving_default"


def is_keras(head: bytes, file: Path) -> bool:
    """Returns whether a file is one by its content, or by its name."""
    if file.suffix == ".keras":
        return True
    if head.startswith(_HDF5_MAGIC):
        return file.name != _WEIGHTS
    return zipfile.is_zipfile(file) and {_CONFIG, _WEIGHTS} <= set(_members(file))


def read(file: Path, allowed: Collection[str]) -> Contents:
    """Reads a model, or a file of weights alone.

    Args:
        file: `.keras`, or HDF5.
        allowed: modules and globals that the contract allows.

    Raises:
        ValueError: it is none, or is damaged.
    """
    config, version, nan = _zipped(file) if zipfile.is_zipfile(file) else _hdf5(file)
    if config is None:
        # Of other data, NaN may be a part.
        is_of_keras = file.name.endswith(".weights.h5")
        return Contents("HDF5, no whole model of Keras", flaws=_flaws(nan) if is_of_keras else ())
    verdicts: dict[str, dict[str, None]] = {"refused": {}, "unknown": {}}
    for module, name in _named(config):
        full = f"{module}.{name}" if module else name
        verdicts.get(_verdict(module, name, allowed), {})[full] = None
    if any(_lambdas(config)):
        verdicts["unknown"]["the code of a Lambda layer, which needs safe_mode=False"] = None
    is_plain = not (verdicts["refused"] or verdicts["unknown"])
    return Contents(
        summary=f"Keras {version}, {_what_kind(file)}, {config.get('class_name')}",
        flaws=_flaws(nan),
        refused=tuple(verdicts["refused"]),
        unknown=tuple(verdicts["unknown"]),
        signatures=_signatures(config),
        start=(lambda: _loaded(file, version)) if is_plain else None,
    )


def _verdict(module: str, name: str, allowed: Collection[str]) -> Verdict:
    if not module:
        return "allowed" if name in allowed else "unknown"
    if module.partition(".")[0] not in _PACKAGES:
        return verdict(module, name, allowed)
    is_class = name.lstrip("_")[:1].isupper()
    return "refused" if _DANGEROUS.search(module) and not is_class else "allowed"


def _what_kind(file: Path) -> str:
    return "a .keras file" if zipfile.is_zipfile(file) else "HDF5"


def _flaws(nan: list[str]) -> list[tuple[str, str]]:
    what = f"{len(nan)} arrays of weights, {', '.join(map(repr, nan[:3]))}"
    return [(f"NaN in {what}", "training diverged: look at the loss, clip gradients")] * bool(nan)


def _members(file: Path) -> list[str]:
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return []


def _zipped(file: Path) -> tuple[Any, str, list[str]]:
    """Returns the configuration, the version of Keras, and arrays of weights that have a NaN."""
    try:
        with zipfile.ZipFile(file) as archive:
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"{damaged} inside of it is damaged")
            config = json.loads(archive.read(_CONFIG))
            version = str(json.loads(archive.read(_METADATA)).get("keras_version", ""))
            with archive.open(_WEIGHTS) as weights:
                nan = _not_a_number(weights)
    except (KeyError, OSError, AttributeError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is no whole .keras file ({error})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{_CONFIG} inside of it is no object")
    return config, version, nan


def _hdf5(file: Path) -> tuple[Any, str, list[str]]:
    import h5py

    if not h5py.is_hdf5(file):
        raise ValueError("it is neither a whole zip nor HDF5")
    try:
        with h5py.File(file, "r") as opened:
            config = opened.attrs.get("model_config")
            version = str(opened.attrs.get("keras_version", ""))
        return None if config is None else json.loads(config), version, _not_a_number(file)
    except (OSError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"it is no whole HDF5 file ({error})") from error


def _not_a_number(source: Any) -> list[str]:
    """Returns the arrays of weights with a NaN; each is read, which finds what is cut off."""
    import h5py

    found: list[str] = []

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "f" and np.isnan(item[()]).any():
            found.append(name)

    with h5py.File(source, "r") as opened:
        opened.visititems(look)
    return found


def _objects(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yields every object in a configuration."""
    waiting = [config]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            yield each
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def _named(config: Any) -> Iterator[tuple[str, str]]:
    """Yields module and name of all that is made or imported; what is registered has no module."""
    for each in _objects(config):
        name, registered = each.get("class_name"), each.get("registered_name")
        if not isinstance(name, str) or "config" not in each:
            continue
        module = each.get("module")
        if isinstance(module, str):
            function = each["config"] if name == "function" else None
            yield module, function if isinstance(function, str) else name
        elif isinstance(registered, str) and ">" in registered:
            yield "", registered
        elif ">" in name:  # HDF5
            yield "", name


def _lambdas(config: Any) -> Iterator[bool]:
    """Yields for each Lambda layer whether its code lies in the file."""
    for each in _objects(config):
        if each.get("class_name") == "__lambda__":
            yield True
        inner = each.get("config")
        if each.get("class_name") == "Lambda" and isinstance(inner, Mapping):
            yield isinstance(inner.get("function"), list) or inner.get("function_type") == "lambda"


def _signatures(config: Any) -> dict[str, Any]:
    """Returns name, dtype and shape of the inputs, as far as the configuration has them."""
    inputs = {}
    for each in _objects(config):
        inner = each.get("config")
        if each.get("class_name") == "InputLayer" and isinstance(inner, Mapping):
            shape = inner.get("batch_shape") or inner.get("batch_input_shape")
            dtype = inner.get("dtype") or "float32"
            if isinstance(shape, list) and isinstance(dtype, str):
                inputs[str(inner.get("name"))] = (dtype, shape)
    return {_DEFAULT: make_signature(inputs, {})} if inputs else {}


def _loaded(file: Path, version: str) -> Run:
    package = _package(version)
    path = str(file)
    if package is None:
        raise MissingLibraryError(
            f"Keras {version or 'of its release'} is not installed: pip install "
            f"'{'keras>=3' if version.startswith('3') else 'tf-keras'}'"
        )
    model = package.models.load_model(path, compile=False, safe_mode=True)
    inputs = [each.name.partition(":")[0] for each in model.inputs]

    def run(_: str, given: Mapping[str, Any]) -> Outputs:
        tensors = [given[name] for name in inputs]
        returned = model(tensors[0] if len(tensors) == 1 else tensors, training=False)
        named = returned if isinstance(returned, Mapping) else None
        values = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        names = [str(each) for each in getattr(model, "output_names", range(len(values)))]
        pairs = named.items() if named is not None else zip(names, values, strict=True)
        return {str(name): np.asarray(value) for name, value in pairs}

    return run


def _package(version: str) -> ModuleType | None:
    """Returns the Keras that reads a file: 2 and 3 do not read each other's reliably."""
    if version.startswith("3"):
        return keras_3_package()
    try:
        import tf_keras
    except ImportError:
        return None
    return tf_keras if keras_version(tf_keras).startswith("2") else None
