"""What the checks know about ops: who provides them, and how to name where they are."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Collection, Iterable

from generic_trainer.validation._graph import Node

__all__ = ["import_library", "library_of", "listed", "using"]

# Ops of the add-on libraries, by the start of their names, and the module that registers them.
_LIBRARIES = (
    (r"Addons>", "tensorflow_addons"),
    (r"SimpleML", "tensorflow_decision_forests"),
    (r"IO>", "tensorflow_io"),
    (r"(DecodeProtoSparse|EquiJoin|RunLengthBefore|Struct2Tensor)", "struct2tensor"),
    (r"(TFText>|Sentencepiece|Wordpiece|Unicode(Regex|Script)|Regex(Split)|WhitespaceTokenize"
     r"|FastWordpiece|FastBertNormalize|NormalizeUTF8|CaseFoldUTF8|ConstrainedSequence|NgramsString"
     r"|RougeL|SentenceFragments|SplitMergeTokenize|TokenizerFromLogits|ByteSplit)",
     "tensorflow_text"),
    (r"(Recommenders|TFRA)>", "tensorflow_recommenders_addons"),
    (r"(Scann)", "scann"),
    (r"(TRT|TensorRT)", "tensorrt"),
)  # fmt: skip
_SHOWN = 4


def library_of(op: str) -> str | None:
    """Returns the module that registers the op, when it is one of the known libraries'."""
    return next((module for start, module in _LIBRARIES if re.match(start, op)), None)


def import_library(op: str) -> None:
    """Registers the op, where its library is known and installed."""
    module = library_of(op)
    if module is not None:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def using(nodes: Iterable[Node], ops: Collection[str], allowed: Collection[str]) -> list[Node]:
    """Returns the nodes with one of the ops, but for those that the contract allows."""
    return [node for node in nodes if node.op in ops and node.op not in allowed]


def listed(nodes: list[Node]) -> str:
    """Returns the nodes in words, the first few with their places."""
    shown = "; ".join(f"{node.op} {node.where}" for node in nodes[:_SHOWN])
    rest = len(nodes) - _SHOWN
    return shown + (f" and {rest} more" if rest > 0 else "")
