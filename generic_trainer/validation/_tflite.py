"""TFLite models, as the converter and TFX's `TFLiteRewriter` write them.

TensorFlow's interpreter crashes on most damaged files, so that the check that starts it fails.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer.validation._access import may_reach_out
from generic_trainer.validation._graph import Graph
from generic_trainer.validation._scoring import Outputs
from generic_trainer.validation._signatures import Signature, described

# Calls one signature, by its name, with input name → array [rows, ...].
Run = Callable[[str, Mapping[str, Any]], Outputs]

_MAGIC = b"TFL3"  # from the fourth byte on
_NAME = re.compile(rb"[A-Z]\w{3,}")


class TFLiteModel:
    """One TFLite file.

    Args:
        directory: the export.
        path: of the file, relative to the export.

    Attributes:
        path: the same.
        problem: why the file is not a TFLite model although its name promises one; else empty.
        reaching_ops: TensorFlow's own ops that reach files or the network.
    """

    def __init__(self, directory: Path, path: Path) -> None:
        self.path = path
        self._content = (directory / path).read_bytes()
        start = self._content[4:8]
        problem = f"a TFLite model has {_MAGIC.decode()} at byte 4, this file has {start!r}"
        self.problem = "" if start == _MAGIC else problem
        ops = sorted(set(_tensorflow_ops(self._content)))
        has_file = b"file:" in self._content
        self.reaching_ops = [f"Flex{op}" for op in ops if may_reach_out(op, has_file)]

    def __str__(self) -> str:
        kind = f"TFLite with {self.precision} weights" if self.precision else "TFLite"
        signatures = [
            f"{name}{described(signature.inputs)} → {described(signature.outputs)}"
            for name, signature in self.signatures.items()
        ]
        return "; ".join([f"{self.path}: {kind}", *signatures])

    @property
    def may_run(self) -> bool:
        """Whether the interpreter may load the file."""
        return not (self.problem or self.reaching_ops)

    @functools.cached_property
    def _interpreter(self) -> Any:
        import tensorflow as tf

        return tf.lite.Interpreter(model_content=self._content)

    @functools.cached_property
    def _runners(self) -> dict[str, Any]:
        names = self._interpreter.get_signature_list()
        return {name: self._interpreter.get_signature_runner(name) for name in names}

    @functools.cached_property
    def signatures(self) -> dict[str, Signature]:
        """Name → signature, with the dtypes that users see, also of quantised tensors."""
        return {name: _signature(runner) for name, runner in self._runners.items()}

    @functools.cached_property
    def precision(self) -> str:
        """The type of the quantised weights, such as `"int8"`; empty for none."""
        names = {
            np.dtype(tensor["dtype"]).name
            for tensor in self._interpreter.get_tensor_details()
            if tensor["quantization_parameters"]["scales"].size or tensor["dtype"] == np.float16
        }
        return ", ".join(sorted(names - {"int32", "int64"}))  # those are biases

    def run(self, name: str, inputs: Mapping[str, Any]) -> Outputs:
        """Calls a signature; row by row, without scalars, if its batch is fixed to one."""
        details = self._runners[name].get_input_details().items()
        first = {key: list(tensor["shape_signature"][:1]) for key, tensor in details}
        cut = {key for key, size in first.items() if size in ([1], [-1])}
        rows = max((len(inputs[key]) for key in cut), default=1)
        if [1] not in first.values() or rows <= 1:
            return self._call(name, inputs)
        parts = []
        for row in range(rows):
            alone = {key: inputs[key][row : row + 1] for key in cut}
            parts.append(self._call(name, {**inputs, **alone}))
        # A number for the whole batch is none for a row.
        keys = (key for key, value in parts[0].items() if np.ndim(value))
        return {key: np.concatenate([part[key] for part in parts]) for key in keys}

    def _call(self, name: str, inputs: Mapping[str, Any]) -> Outputs:
        runner = self._runners[name]
        details = runner.get_input_details()
        returned = runner(**{key: _quantised(value, details[key]) for key, value in inputs.items()})
        details = runner.get_output_details()
        return {key: _real(value, details[key]) for key, value in returned.items()}


def _tensorflow_ops(content: bytes) -> Iterator[str]:
    """Yields possible names of TensorFlow's own ops in a TFLite file.

    The interpreter takes the op from the options of an operator, whatever the operator is called.
    There, a name follows its length, a number of one or more bytes.
    """
    if b"Flex" not in content:  # the start of the name of each such operator
        return
    for match in _NAME.finditer(content):
        length = content[max(match.start() - 8, 0) : match.start()].rstrip(b"\0")[-1:]
        yield match[0][: int.from_bytes(length, "little")].decode()


def find_models(directory: Path, files: Iterable[Path]) -> Iterator[TFLiteModel]:
    """Yields the TFLite files of an export, known by their content or their name."""
    for path in files:
        with open(directory / path, "rb") as file:
            is_by_content = file.read(8)[4:] == _MAGIC
        if is_by_content or path.suffix == ".tflite" or path.name == "tflite":
            yield TFLiteModel(directory, path)


def _signature(runner: Any) -> Signature:
    import tensorflow as tf
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, SignatureDef

    signature = SignatureDef()
    for infos, details in (
        (signature.inputs, runner.get_input_details()),
        (signature.outputs, runner.get_output_details()),
    ):
        for name, tensor in details.items():
            dims = [None if size < 0 else int(size) for size in tensor["shape_signature"]]
            # A batch of one can be called row by row.
            shape = [None, *dims[1:]] if dims[:1] == [1] else dims
            dtype = tf.float32 if tensor["quantization"][0] else tf.as_dtype(tensor["dtype"])
            infos[name].name = name
            infos[name].dtype = dtype.as_datatype_enum
            infos[name].tensor_shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return Signature(signature, Graph(MetaGraphDef()))


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
