"""ONNX models: the protocol buffer read without its library, run by onnxruntime.

Source: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, whose numbers of fields stand here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer.validation._formats.contents import (
    Contents,
    MissingLibraryError,
    Run,
    make_signature,
)
from generic_trainer.validation._scoring import Outputs

_HEAD = re.compile(rb"\x08[\x01-\x20]\x12", re.DOTALL)  # ir_version, then the producer's name
_PRODUCER, _GRAPH, _OPSETS = 2, 7, 8  # of ModelProto
_NODES, _INITIALIZERS, _INPUTS, _OUTPUTS = 1, 5, 11, 12  # of GraphProto
_OP, _DOMAIN = 4, 7  # of NodeProto
_TENSOR_NAME, _EXTERNAL = 8, 13  # of TensorProto
_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    16: "bfloat16",
}  # fmt: skip
_QUANTISED = re.compile(r"QLinear|DequantizeLinear|DynamicQuantize|MatMulInteger|ConvInteger")
_OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # those that onnxruntime has
_DEFAULT = "serving_default"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
INSTALL = "install GenericTrainer with its extra `onnx` (pip install '.[onnx]' in a checkout)"


def is_onnx(head: bytes, file: Path) -> bool:
    """Returns whether a file is one by its content, or by its name."""
    if file.suffix == ".onnx":
        return True
    if not _HEAD.match(head):
        return False
    try:
        return {_GRAPH, _OPSETS} <= {number for number, _ in _fields(file.read_bytes())}
    except ValueError:
        return False


def read(file: Path) -> Contents:
    """Reads a model, and looks whether the files that it keeps weights in are there.

    Raises:
        ValueError: it is none, or is damaged.
    """
    model = _by_number(file.read_bytes())
    if not model.get(_GRAPH) or not model.get(_OPSETS):
        raise ValueError("it is no ONNX model: it has no graph, or no opset")
    graph = _by_number(model[_GRAPH][-1])
    nodes = [_by_number(node) for node in graph.get(_NODES, [])]
    initializers = [_by_number(each) for each in graph.get(_INITIALIZERS, [])]
    outside = sorted({path for each in initializers for path in _external(each)})
    escaping = [path for path in outside if Path(path).is_absolute() or ".." in Path(path).parts]
    missing = [path for path in outside if not (file.parent / path).is_file()]
    weights = {_text(each, _TENSOR_NAME) for each in initializers}
    is_quantised = any(_QUANTISED.match(_text(node, _OP)) for node in nodes)
    foreign = sorted({_text(node, _DOMAIN) for node in nodes} - set(_OWN_DOMAINS))
    signature = make_signature(
        {n: t for n, t in _tensors(graph, _INPUTS) if n not in weights},
        dict(_tensors(graph, _OUTPUTS)),
    )
    remedy = "copy the model with the files that its weights are in, or pass their directory"
    return Contents(
        summary=f"ONNX of {_text(model, _PRODUCER) or 'an unknown producer'}"
        + " with int8 weights" * is_quantised,
        signatures={_DEFAULT: signature},
        quantised="int8" if is_quantised else "",
        flaws=[(f"{path}, where it keeps weights, is missing", remedy) for path in missing],
        refused=[f"reads {path}, outside of its directory" for path in escaping],
        unknown=[f"ops of the domain {domain}" for domain in foreign],
        start=None if escaping or missing or foreign else lambda: _session(file),
    )


def _session(file: Path) -> Run:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingLibraryError(
            f"onnxruntime, which runs it, is not installed: {INSTALL}"
        ) from error
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(_: str, inputs: Mapping[str, Any]) -> Outputs:
        values = zip(names, session.run(names, dict(inputs)), strict=True)
        # Lists of maps, as classifiers of scikit-learn return, are compared with nothing.
        return {name: value for name, value in values if isinstance(value, np.ndarray)}

    return run


def _external(tensor: Mapping[int, list[Any]]) -> Iterator[str]:
    """Yields the files, relative to the model's directory, that a tensor's values are in."""
    for entry in map(_by_number, tensor.get(_EXTERNAL, [])):
        if _text(entry, 1) == "location":
            yield _text(entry, 2)


def _tensors(graph: Mapping[int, list[Any]], number: int) -> Iterator[tuple[str, Any]]:
    """Yields name, and dtype with dimensions, of what a graph takes or returns as tensors."""
    for info in map(_by_number, graph.get(number, [])):
        kind = _by_number(info.get(2, [b""])[-1])
        tensor = _by_number(kind.get(1, [b""])[-1])
        if 1 not in tensor:
            continue  # a sequence or a map, as classifiers of scikit-learn return
        dims: list[int | None] | None = None
        if 2 in tensor:
            sizes = [_by_number(dim) for dim in _by_number(tensor[2][-1]).get(1, [])]
            dims = [size[1][-1] if 1 in size else None for size in sizes]
        yield _text(info, 1), (_DTYPES.get(tensor[1][-1], "float32"), dims)


def _text(message: Mapping[int, list[Any]], number: int) -> str:
    value = message.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no text")
    return value.decode(errors="replace")


def _by_number(message: Any) -> dict[int, list[Any]]:
    """Returns number → values of the fields of a serialized message, in their order."""
    if not isinstance(message, bytes):
        raise ValueError("it is damaged: a number where a message should be")
    found: dict[int, list[Any]] = {}
    for number, value in _fields(message):
        found.setdefault(number, []).append(value)
    return found


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields number and value of each field; bytes are copied, as protocol buffers do too."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"it is damaged: there is no wire type {kind}, at byte {at}")
        if number == 0 or at + size > len(message):
            raise ValueError(f"it is damaged, or ends too early, at byte {at}")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError(f"it ends too early, at byte {at}")
        value |= (message[at] & 0x7F) << shift
        at += 1
        if not message[at - 1] & 0x80:
            return value, at
    raise ValueError(f"it is damaged: a number without end, at byte {at}")
