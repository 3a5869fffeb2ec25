"""The model as the checks see it: parsed, listed and loaded once, each at its first use."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generic_trainer.validation._contract import ServingContract

__all__ = ["ModelUnderTest", "Node"]

INIT_OP_SIGNATURE = "__saved_model_init_op"


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of the graph or of a function in its library.

    Attributes:
        function: the function's name, empty for the graph itself.
        proto: the `NodeDef`.
    """

    function: str
    proto: Any

    @property
    def where(self) -> str:
        """The node's place in words, for messages."""
        home = f"function {self.function!r}" if self.function else "the main graph"
        return f"{self.proto.name!r} in {home}"


class ModelUnderTest:
    """One SavedModel, examined in a process of its own.

    Args:
        directory: where the files lie for this process; not the place they were exported to.
        contract: what is required.
        exported_to: the directory as the caller knows it.
    """

    def __init__(self, directory: Path, contract: ServingContract, exported_to: str) -> None:
        self.directory = directory
        self.contract = contract
        self.exported_to = exported_to
        self.facts: dict[str, Any] = {}

    @functools.cached_property
    def files(self) -> list[Path]:
        """Every file of the model, sorted, relative to `directory`."""
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.directory) for path in found)

    @functools.cached_property
    def saved_model(self) -> Any:
        """The `SavedModel` proto."""
        from tensorflow.python.saved_model import loader_impl

        return loader_impl.parse_saved_model(str(self.directory))

    @functools.cached_property
    def meta_graph(self) -> Any:
        """The `MetaGraphDef` tagged exactly `{serve}`."""
        for meta_graph in self.saved_model.meta_graphs:
            if set(meta_graph.meta_info_def.tags) == {"serve"}:
                return meta_graph
        raise LookupError("no MetaGraph is tagged exactly {serve}")

    @functools.cached_property
    def signatures(self) -> dict[str, Any]:
        """Name → `SignatureDef` of what the user exported; TensorFlow's own init op left out."""
        declared = self.meta_graph.signature_def
        return {name: declared[name] for name in sorted(declared) if name != INIT_OP_SIGNATURE}

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """Every node: the graph's own, and those inside each library function."""
        return list(self._walk())

    @functools.cached_property
    def loaded(self) -> Any:
        """What `tf.saved_model.load` returns."""
        import tensorflow as tf

        return tf.saved_model.load(str(self.directory))

    def release(self) -> None:
        """Drops the loaded model, so that the next loader does not hold a second copy."""
        self.__dict__.pop("loaded", None)
        gc.collect()

    def _walk(self) -> Iterator[Node]:
        graph = self.meta_graph.graph_def
        for proto in graph.node:
            yield Node("", proto)
        for function in graph.library.function:
            for proto in function.node_def:
                yield Node(function.signature.name, proto)
