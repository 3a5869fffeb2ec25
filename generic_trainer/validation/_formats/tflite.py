"""TFLite models, as the converter and TFX's `TFLiteRewriter` write them.

The interpreter ends the process for most damaged files. So a file is unpacked in Python first, with
the classes that TensorFlow generates from the format's schema.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer._core import internals
from generic_trainer._core.texts import reason_of
from generic_trainer.validation._access import reaches_out
from generic_trainer.validation._formats.contents import (
    Contents,
    MissingLibraryError,
    make_signature,
)
from generic_trainer.validation._scoring import Outputs

MAGIC = b"TFL3"  # from the fourth byte on
# TensorType of the schema; what has no name here is a handle.
_DTYPES = (
    *("float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64"),
    *("int8", "float64", "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4"),
    "bfloat16",
)
_QUANTISED = ("int4", "int8", "uint8", "int16", "float16")
_FLEX = "Flex"  # before the name of an op of TensorFlow's own
_DEFAULT = "serving_default"
_DAMAGED = (
    *(AttributeError, IndexError, MemoryError, OverflowError, struct.error, TypeError),
    *(UnicodeDecodeError, ValueError),
)
_NAN_REMEDY = "training diverged: look at the loss, lower the learning rate, clip gradients"


def is_tflite(head: bytes, file: Path) -> bool:
    """Returns whether a file is one by its content, or by its name."""
    return head[4:8] == MAGIC or file.suffix == ".tflite" or file.name == "tflite"


def read(file: Path) -> Contents:
    """Reads a model.

    Raises:
        ValueError: it is none, or is damaged.
    """
    content = file.read_bytes()
    if content[4:8] != MAGIC:
        raise ValueError(
            f"a TFLite model has {MAGIC.decode()} at byte 4, this has {content[4:8]!r}"
        )
    try:
        model = internals.TF_LITE_MODEL.get().InitFromPackedBuf(content, 0)
        signatures = _signatures(model)
        precisions = sorted(set(_precisions(model)))
        ops = {_text(code.customCode) for code in model.operatorCodes or () if code.customCode}
        nan = [_text(t.name) for t in _weights(model, "float32") if _has_nan(model, t)]
    except _DAMAGED as error:
        raise ValueError(f"it is damaged or incomplete ({error})") from error
    if not signatures:
        raise ValueError("it is damaged: it has no graph")
    refused = sorted(op for op in ops if _reaches_out(op))
    kept = f"{len(nan)} tensors of weights, {', '.join(map(repr, nan[:3]))}"
    return Contents(
        summary=" with ".join(
            ["TFLite", *([f"{', '.join(precisions)} weights"] * any(precisions))]
        ),
        signatures=signatures,
        quantised=precisions[0] if precisions else "",
        flaws=[(f"NaN in {kept}", _NAN_REMEDY)] if nan else (),
        refused=refused,
        start=None if refused else lambda: _Interpreter(content, signatures, ops),
    )


def _signatures(model: Any) -> dict[str, Any]:
    """Returns those that the file names; else the main graph's tensors, named as TFMA does."""
    graphs = model.subgraphs or []
    named = {
        _text(each.signatureKey): make_signature(
            *(
                {
                    _text(one.name): _tensor(graphs[each.subgraphIndex], one.tensorIndex)
                    for one in maps
                }
                for maps in (each.inputs or (), each.outputs or ())
            )
        )
        for each in model.signatureDefs or ()
    }
    if named or not graphs:
        return named
    main = graphs[0]
    tensors = [
        {_bare(_text(main.tensors[index].name)): _tensor(main, index) for index in indices}
        for indices in (main.inputs, main.outputs)
    ]
    return {_DEFAULT: make_signature(*tensors)}


def _tensor(graph: Any, index: int) -> tuple[str, list[int | None]]:
    """Returns dtype and shape as users see them; a batch of one can always be called row by row."""
    tensor = graph.tensors[index]
    shape = tensor.shapeSignature if tensor.shapeSignature is not None else tensor.shape
    dims = [None if size < 0 else int(size) for size in (shape if shape is not None else ())]
    is_integer = tensor.quantization is not None and tensor.quantization.scale is not None
    dtype = "float32" if is_integer else _DTYPES[tensor.type]
    return dtype, [None, *dims[1:]] if dims[:1] == [1] else dims


def _weights(model: Any, *dtypes: str) -> Iterator[Any]:
    for graph in model.subgraphs or ():
        for tensor in graph.tensors or ():
            data = model.buffers[tensor.buffer].data
            if _DTYPES[tensor.type] in dtypes and data is not None and len(data):
                yield tensor


def _precisions(model: Any) -> Iterator[str]:
    for tensor in _weights(model, *_QUANTISED):
        has_scale = tensor.quantization is not None and tensor.quantization.scale is not None
        if has_scale or _DTYPES[tensor.type] == "float16":
            yield _DTYPES[tensor.type]


def _has_nan(model: Any, tensor: Any) -> bool:
    data = np.asarray(model.buffers[tensor.buffer].data, np.uint8).tobytes()
    return bool(np.isnan(np.frombuffer(data, "<f4")).any())


def _reaches_out(op: str) -> bool:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    return op.startswith(_FLEX) and reaches_out(NodeDef(op=op.removeprefix(_FLEX)))


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name or "")


def _bare(name: str) -> str:
    return re.sub(r":.*", "", name.removeprefix(f"{_DEFAULT}_"))


class _Interpreter:
    """A loaded model, called with numbers as its users have them."""

    def __init__(
        self, content: bytes, signatures: Mapping[str, Any], custom_ops: Collection[str]
    ) -> None:
        import tensorflow as tf

        try:
            self._interpreter = tf.lite.Interpreter(model_content=content)
            if custom_ops:
                self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            if not custom_ops:
                raise
            # Whoever has built an interpreter with them can run it.
            raise MissingLibraryError(
                f"TensorFlow's interpreter lacks some of its ops {', '.join(sorted(custom_ops))}: "
                f"{reason_of(error)}"
            ) from error
        self._is_named = self._interpreter.get_signature_list()
        self._signatures = signatures

    def __call__(self, name: str, inputs: Mapping[str, Any]) -> Outputs:
        rows = max((len(value) for value in inputs.values() if np.ndim(value)), default=1)
        if not self._takes_one_row(name) or rows <= 1:
            return self._call(name, inputs)
        parts = [
            self._call(name, {key: value[row : row + 1] for key, value in inputs.items()})
            for row in range(rows)
        ]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def _takes_one_row(self, name: str) -> bool:
        """Whether the batch is fixed to one, as devices have it."""
        details = self._inputs(name).values()
        return any(len(d["shape"]) and d["shape_signature"][:1] == [1] for d in details)

    def _inputs(self, name: str) -> dict[str, Any]:
        if name in self._is_named:
            return dict(self._interpreter.get_signature_runner(name).get_input_details())
        return {_bare(each["name"]): each for each in self._interpreter.get_input_details()}

    def _call(self, name: str, inputs: Mapping[str, Any]) -> Outputs:
        details = self._inputs(name)
        values = {key: _quantised(value, details[key]) for key, value in inputs.items()}
        if name in self._is_named:
            runner = self._interpreter.get_signature_runner(name)
            returned = runner(**values)
            kinds = runner.get_output_details()
            return {key: _real(value, kinds[key]) for key, value in returned.items()}
        for key, value in values.items():
            if list(details[key]["shape"]) != list(np.shape(value)):
                self._interpreter.resize_tensor_input(details[key]["index"], np.shape(value))
        self._interpreter.allocate_tensors()
        for key, value in values.items():
            self._interpreter.set_tensor(details[key]["index"], value)
        self._interpreter.invoke()
        return {
            _bare(each["name"]): _real(self._interpreter.get_tensor(each["index"]), each)
            for each in self._interpreter.get_output_details()
        }


def _quantised(value: Any, details: Mapping[str, Any]) -> np.ndarray:
    scale, zero = details["quantization"]
    dtype = np.dtype(details["dtype"])
    if not scale or dtype.kind not in "iu":
        return np.asarray(value) if dtype.kind in "OSU" else np.asarray(value, dtype)
    limits = np.iinfo(dtype)
    numbers = np.round(np.asarray(value, np.float64) / scale + zero)
    return np.clip(numbers, limits.min, limits.max).astype(dtype)


def _real(value: np.ndarray, details: Mapping[str, Any]) -> np.ndarray:
    scale, zero = details["quantization"]
    if not scale or value.dtype.kind not in "iu":
        return value
    return ((value.astype(np.float64) - zero) * scale).astype(np.float32)
