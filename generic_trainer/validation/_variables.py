"""The variables of a model: read once, looked through, and lent to those who load the model.

Whoever loads a model reads all of its variables, and so does the check of their values; of a large
model nothing else takes as long. Here each is read once, in several threads. `Variables.lent` gives
what is in memory to `tf.saved_model.load`, and `Variables.lent_to_session` makes a copy of a graph
whose restoring takes it from there. Which variables are restored, from which key, and of which type
and shape, is still what the model says. What is not in memory is read from the files, as ever.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from generic_trainer._core import internals
from generic_trainer._core.machine import available_cpus, free_memory_bytes
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.texts import reason_of
from generic_trainer.validation._graph import Node, node_name, upstream_of

_CHUNK = 1 << 22  # values of a variable that are looked at together
_PART_BYTES = 1 << 24  # that a thread reads at a time, or one variable
_PART_NAMES = 64
_MAX_THREADS = 8


class Variables:
    """What came out of reading every tensor of a checkpoint; TensorFlow verifies their checksums.

    Args:
        prefix: of the checkpoint's files.
        keep: whether to hold what has been read, for those who load the model.

    Attributes:
        unreadable: name → why it could not be read.
        nan: float variables with a NaN.
        infinite: float variables with an infinity and no NaN.
    """

    def __init__(self, prefix: Path, *, keep: bool) -> None:
        import tensorflow as tf

        self._prefix = str(prefix)
        self._tensors: dict[str, Any] = {}
        reader = tf.train.load_checkpoint(self._prefix)
        self._dtypes = reader.get_variable_to_dtype_map()
        shapes = reader.get_variable_to_shape_map()
        sizes = {n: self._dtypes[n].size * math.prod(shapes[n]) for n in sorted(shapes)}
        unreadable: dict[str, str] = {}
        odd: dict[str, str] = {}
        # Whoever loads the model needs memory as well.
        keep = keep and sum(sizes.values()) < free_memory_bytes() / 2

        def read(names: Sequence[str]) -> None:
            try:
                tensors = tf.raw_ops.RestoreV2(
                    prefix=self._prefix,
                    tensor_names=names,
                    shape_and_slices=[""] * len(names),
                    dtypes=[self._dtypes[name] for name in names],
                )
            except Exception as error:
                if len(names) == 1:
                    unreadable[names[0]] = reason_of(error)
                    return
                for name in names:
                    read([name])
                return
            for name, tensor in zip(names, tensors, strict=True):
                odd[name] = _oddity(tensor)
                if keep:
                    self._tensors[name] = tensor

        with ThreadPoolExecutor(min(_MAX_THREADS, len(available_cpus()))) as pool:
            list(pool.map(read, _parts(sizes)))
        self.unreadable = dict(sorted(unreadable.items()))
        self.nan = [name for name in sizes if odd.get(name) == "nan"]
        self.infinite = [name for name in sizes if odd.get(name) == "infinite"]

    def forget(self) -> None:
        """Lets go of the memory; what is loaded from now on is read from the files."""
        self._tensors.clear()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Lets what TensorFlow restores eagerly inside come from memory."""
        import tensorflow as tf

        io_ops = internals.TF_IO_OPS.get()
        restore = io_ops.restore_v2

        def restore_v2(
            prefix: Any, tensor_names: Any, shape_and_slices: Any, dtypes: Any, name: Any = None
        ) -> Any:
            tensors = None
            if tf.executing_eagerly() and tf.get_static_value(prefix) == self._prefix.encode():
                tensors = self._known(tensor_names, shape_and_slices, dtypes)
            if tensors is None:
                return restore(prefix, tensor_names, shape_and_slices, dtypes, name)
            return tensors

        io_ops.restore_v2 = restore_v2
        try:
            yield
        finally:
            io_ops.restore_v2 = restore

    def _known(self, names: Any, slices: Any, dtypes: Any) -> list[Any] | None:
        """Returns tensors as they are asked for, None where one of them is not here as such."""
        if not all(isinstance(each, str) for each in (*names, *slices)) or any(slices):
            return None
        tensors = [self._tensors.get(name) for name in names]
        asked = zip(tensors, dtypes, strict=True)
        return tensors if all(t is not None and t.dtype == dtype for t, dtype in asked) else None

    @contextlib.contextmanager
    def lent_to_session(
        self, directory: Path, meta_graph: Any, nodes: Sequence[Node]
    ) -> Iterator[str]:
        """Yields a directory from which a session loads a model with the variables in memory.

        Args:
            directory: of the model.
            meta_graph: the one tagged exactly `{serve}`.
            nodes: of it and of its functions.
        """
        import tensorflow as tf

        # A new one: to look for an attribute in a map of protos is to set it.
        copy = internals.TF_PARSE_SAVED_MODEL.get()(str(directory))
        graph_def = next(
            each.graph_def for each in copy.meta_graphs if set(each.meta_info_def.tags) == {"serve"}
        )
        restoring = _restoring(meta_graph, nodes)
        # The graph holds what the new nodes call.
        with ScratchFolder("session-") as folder, tf.Graph().as_default():
            _replace(graph_def.node, "", restoring, self._known)
            for function in graph_def.library.function:
                name = function.signature.name
                replaced = _replace(function.node_def, name, restoring, self._known)
                for output, tensor in function.ret.items():
                    function.ret[output] = _renamed(tensor, replaced)
            Path(folder, "saved_model.pb").write_bytes(copy.SerializeToString())
            for path in directory.iterdir():
                if path.is_dir():
                    Path(folder, path.name).symlink_to(path)
            yield folder


def _parts(sizes: Mapping[str, int]) -> list[list[str]]:
    """Returns the names in groups that are worth a thread's while."""
    parts: list[list[str]] = []
    left = -1
    for name, size in sizes.items():
        if left < size or len(parts[-1]) == _PART_NAMES:
            parts.append([])
            left = _PART_BYTES
        parts[-1].append(name)
        left -= size
    return parts


def _oddity(tensor: Any) -> str:
    """Returns whether a tensor holds a NaN or, without one, an infinity; empty for neither."""
    import numpy as np

    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return ""
    flat = np.asarray(tensor).reshape(-1)
    # In pieces, as a variable may fill the memory.
    pieces = [flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK)]
    odd = [piece for piece in pieces if not np.isfinite(piece).all()]
    if any(np.isnan(piece).any() for piece in odd):
        return "nan"
    return "infinite" if odd else ""


def _restoring(meta_graph: Any, nodes: Sequence[Node]) -> set[tuple[str, str]]:
    """Returns function and name of the nodes that restore from the model's own files."""
    from tensorflow.core.framework import node_def_pb2

    found = [node for node in nodes if node.op == "RestoreV2" and node.when == "restored"]
    prefixes = [
        Node(node_def_pb2.NodeDef(input=node.proto.input[:1]), node.function, node.when)
        for node in found
    ]
    own = ("", node_name(meta_graph.saver_def.filename_tensor_name))
    handed_on = {
        (function.signature.name, argument.name)
        for function in meta_graph.graph_def.library.function
        for argument in function.signature.input_arg
    }
    if not upstream_of(prefixes, meta_graph.graph_def) <= {own, *handed_on}:
        return set()
    return {(node.function, node.proto.name) for node in found}


def _replace(
    graph: Any,
    function: str,
    restoring: set[tuple[str, str]],
    known: Callable[[Any, Any, Any], list[Any] | None],
) -> set[str]:
    """Lets nodes of one graph take what is known of what they restore; returns their names."""
    import tensorflow as tf

    constants = {node.name: node for node in graph if node.op == "Const"}
    replaced = set()
    for node in graph:
        # What a call brings along overrides what the session says of optimising.
        if "config_proto" in node.attr:
            node.attr["config_proto"].s = b""
        texts = [constants.get(node_name(name)) for name in node.input[1:3]]
        if (function, node.name) not in restoring or None in texts:
            continue
        names, slices = (
            [text.decode() for text in tf.make_ndarray(each.attr["value"].tensor).flat]
            for each in texts
            if each is not None
        )
        dtypes = [tf.as_dtype(dtype) for dtype in node.attr["dtypes"].list.type]
        if (tensors := known(names, slices, dtypes)) is not None:
            taking = tf.py_function(lambda *_, given=tensors: given, [""] * 3, dtypes)[0].op
            node.op = taking.type
            node.attr.clear()
            for name, value in taking.node_def.attr.items():
                node.attr[name].CopyFrom(value)
            replaced.add(node.name)
    for node in graph:
        node.input[:] = [_renamed(name, replaced) for name in node.input]
    return replaced


def _renamed(tensor: str, replaced: set[str]) -> str:
    """Returns the name of a tensor in a function, whose outputs have names; others as they are."""
    node, _, output = tensor.partition(":")
    return tensor.replace(":tensors:", ":output:", 1) if node in replaced and output else tensor
