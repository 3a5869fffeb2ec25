"""Contents of a model in another format: signatures, weights, code, and a way to run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from generic_trainer.validation._scoring import Outputs
from generic_trainer.validation._signatures import describe_info

# Calls one signature, by its name, with input name → array [rows, ...].
Run = Callable[[str, Mapping[str, Any]], Outputs]


class MissingLibraryError(Exception):
    """What can run a model is not here; its text says what, and how to get it if that is known."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """One model file, read.

    Attributes:
        summary: the format and what is worth knowing of the file, in a few words.
        signatures: name → `SignatureDef`, as far as the file tells; its tensors have the numbers
            that its users see, also where it computes in integers.
        quantised: the type of weights of lower precision, such as `"int8"`; empty for none.
        feature_names: names of the columns that it was trained on, where it keeps them.
        flaws: what is wrong, and the remedy, with what it does not refuse to load.
        refused: what it would do to who loads it, as `module.name` or as an op.
        unknown: code that it names and nobody here has looked at.
        start: returns what runs it; None where nothing here may or can. It raises
            `MissingLibraryError`.
    """

    summary: str
    signatures: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    quantised: str = ""
    feature_names: Sequence[str] = ()
    flaws: Sequence[tuple[str, str]] = ()
    refused: Sequence[str] = ()
    unknown: Sequence[str] = ()
    start: Callable[[], Run] | None = None

    def described(self) -> str:
        """Returns format and signatures in a line."""
        shown = [self.summary, *(f"{n}{_tensors(s)}" for n, s in self.signatures.items())]
        if self.feature_names:
            names = ", ".join(self.feature_names[:8])
            shown.append(f"features {names}" + (", ..." if len(self.feature_names) > 8 else ""))
        return "; ".join(shown)


def make_signature(
    inputs: Mapping[str, tuple[Any, Sequence[int | None] | None]],
    outputs: Mapping[str, tuple[Any, Sequence[int | None] | None]],
) -> Any:
    """Returns a `SignatureDef` of name → dtype and dimensions, None for unknown ones."""
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

    signature = SignatureDef()
    for tensors, infos in ((inputs, signature.inputs), (outputs, signature.outputs)):
        for name, (dtype, shape) in tensors.items():
            _fill(infos[name], name, dtype, shape)
    return signature


def _fill(info: Any, name: str, dtype: Any, shape: Sequence[int | None] | None) -> None:
    import tensorflow as tf

    info.name = name
    info.dtype = tf.as_dtype(dtype).as_datatype_enum
    info.tensor_shape.unknown_rank = shape is None
    for size in shape or ():
        info.tensor_shape.dim.add(size=-1 if size is None or size < 0 else size)


def _tensors(signature: Any) -> str:
    takes, returns = (
        ", ".join(f"{name}: {describe_info(info)}" for name, info in sorted(infos.items()))
        for infos in (signature.inputs, signature.outputs)
    )
    return f"({takes}) → {returns or 'nothing named'}"
