"""Models whose ops a reader of names does not find, or whose paths look like those of assets.

The tests check these too: each of them was once missed, or is easy to miss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.bypasses._hostile import RECIPES, _write, recipe
from tests.validation import models
from tests.validation.catalogue.rows import export_v1
from tests.validation.models import ROWS, after, edit_proto, save, serving

__all__ = ["RECIPES"]

raw = tf.raw_ops


def _edit(folder: Path, edit: Callable[[Any], None]) -> None:
    """Applies `edit` to the only MetaGraph of a model."""
    edit_proto(folder, lambda proto: edit(proto.meta_graphs[0]))


def _function_with(meta_graph: Any, op: str) -> tuple[Any, Any]:
    """Returns the first function that has a node of an op, and the node."""
    functions = meta_graph.graph_def.library.function
    return next((f, node) for f in functions for node in f.node_def if node.op == op)


def _nodes(meta_graph: Any) -> Iterator[Any]:
    graph = meta_graph.graph_def
    yield from graph.node
    yield from (node for function in graph.library.function for node in function.node_def)


def _set_for(meta_graph: Any, function: Any, name: str) -> Any:
    """Returns the attribute that the caller of a function sets for it."""
    for node in _nodes(meta_graph):
        if "f" in node.attr and node.attr["f"].func.name == function.signature.name:
            return node.attr["f"].func.attr[name]
    raise LookupError(function.signature.name)


def _name_file(meta_graph: Any, old: str, new: str, *, packed: bool = False) -> None:
    """Replaces a text in all constants; `packed` in the encoding that has bytes, not strings."""
    for node in _nodes(meta_graph):
        if node.op == "Const" and list(node.attr["value"].tensor.string_val) == [old.encode()]:
            tensor = node.attr["value"].tensor
            tensor.string_val[:] = [] if packed else [new.encode()]
            tensor.tensor_content = bytes([len(new)]) + new.encode() if packed else b""


def _reading(path: Any, **tracked: Any) -> tf.Module:
    """A model that returns the content of a file."""
    return serving(lambda x: {"y": after(x, tf.io.read_file(path))}, ROWS, **tracked)


def _reading_asset(folder: Path) -> tf.Module:
    words = models.asset(folder.parent / f"{folder.name}.txt", "a\n")
    return _reading(words.asset_path, words=words)


# Functions that no node names


@recipe("WriteFile")
def writes_through_a_gradient(folder: Path, target: Path, port: int) -> None:
    """Only the library names the function that computes a gradient."""
    from tensorflow.python.framework.function import Defun

    def build(v1: Any) -> Any:
        @Defun(tf.float32, tf.float32)
        def gradient(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return after(_write(target), y)

        @Defun(tf.float32, grad_func=gradient)
        def forward(x: tf.Tensor) -> tf.Tensor:
            return x * 2.0

        x = v1.placeholder(tf.float32, [None, 2], name="x")
        forward(x)
        (y,) = raw.SymbolicGradient(input=[x, x], Tout=[tf.float32], f=forward)
        return {"x": x}, {"y": y}

    export_v1(folder, build, initialised=False)


@recipe("WriteFile")
def writes_in_another_implementation(folder: Path, target: Path, port: int) -> None:
    """TensorFlow replaces a function with the one for the CPU, as in the LSTM of Keras 2."""

    def double(device: str, act: Callable[[], Any]) -> Any:
        return tf.function(
            lambda x: after(act(), x) * 2.0, input_signature=[ROWS], autograph=False,
            experimental_attributes={"api_implements": "double", "api_preferred_device": device},
        )  # fmt: skip

    on_gpu, on_cpu = double("GPU", lambda: []), double("CPU", lambda: _write(target))

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        on_cpu.get_concrete_function().add_to_graph()
        return {"y": on_gpu(x)}

    save(serving(serve, ROWS, on_cpu=on_cpu), folder)


@recipe("PrintV2")
def prints_into_a_file_that_the_caller_names(folder: Path, target: Path, port: int) -> None:
    """The body of the function has a placeholder for the attribute."""
    stream = f"file://{target}"
    save(serving(lambda x: {"y": after(tf.print(x, output_stream=stream), x)}, ROWS), folder)

    def edit(meta_graph: Any) -> None:
        function, node = _function_with(meta_graph, "PrintV2")
        _set_for(meta_graph, function, "stream").CopyFrom(node.attr["output_stream"])
        node.attr["output_stream"].placeholder = "stream"
        function.signature.attr.add(name="stream", type="string")

    _edit(folder, edit)


# Times and files at which nobody looks


@recipe("WriteFile")
def writes_in_the_first_op_of_a_session(folder: Path, target: Path, port: int) -> None:
    written = folder.parent / f"{folder.name}.written"  # by the export, which runs the op

    def build(v1: Any) -> Any:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, _write(written))
        return {"x": x}, {"y": x * 2.0}

    export_v1(folder, build)
    _edit(folder, lambda meta_graph: _name_file(meta_graph, str(written), str(target)))


@recipe("RestoreV2")
def restores_from_another_checkpoint(folder: Path, target: Path, port: int) -> None:
    weight = tf.Variable(tf.ones([2]))
    save(serving(lambda x: {"y": x * weight}, ROWS, weight=weight), folder)

    def edit(meta_graph: Any) -> None:
        function, node = _function_with(meta_graph, "RestoreV2")
        constants = {"prefix": f"{target}.part", "names": ["x"], "slices": [""]}
        for name, value in constants.items():
            constant = function.node_def.add(name=f"leak/{name}", op="Const")
            constant.attr["dtype"].type = tf.string.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        leak = function.node_def.add(name="leak/read", op="RestoreV2")
        leak.input.extend(f"leak/{name}:output:0" for name in constants)
        leak.attr["dtypes"].list.type.append(tf.float32.as_datatype_enum)
        node.input.append("^leak/read")

    _edit(folder, edit)


@recipe("WriteFile")
def is_written_as_text(folder: Path, target: Path, port: int) -> None:
    save(serving(lambda x: {"y": after(_write(target), x) * 2.0}, ROWS), folder)
    models.write_as_text(folder, "saved_model.pbtxt")
    for name in ("saved_model.pb", "fingerprint.pb"):
        (folder / name).unlink()


# Paths


@recipe("ReadFile")
def reads_a_path_in_another_encoding(folder: Path, target: Path, port: int) -> None:
    save(_reading("file"), folder)
    _edit(folder, lambda meta_graph: _name_file(meta_graph, "file", str(target), packed=True))


@recipe("ReadFile")
def reads_a_path_that_the_caller_sets(folder: Path, target: Path, port: int) -> None:
    """The constant in the body of the function is a placeholder."""
    save(_reading("file"), folder)

    def edit(meta_graph: Any) -> None:
        function, _ = _function_with(meta_graph, "ReadFile")
        constants = (node for node in function.node_def if node.op == "Const")
        path = next(node for node in constants if node.attr["value"].tensor.string_val)
        path.attr["value"].placeholder = "path"
        function.signature.attr.add(name="path", type="tensor")
        _set_for(meta_graph, function, "path").tensor.CopyFrom(tf.make_tensor_proto(str(target)))

    _edit(folder, edit)


@recipe("ReadFile")
def reads_where_an_asset_was_at_the_export(folder: Path, target: Path, port: int) -> None:
    """A session replaces the constant with the asset's path only while it initialises."""
    file = folder.parent / f"{folder.name}.txt"
    file.write_text("a\n")

    def build(v1: Any) -> Any:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        path = tf.constant(str(file))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, path)
        return {"x": x}, {"y": after(x, tf.io.read_file(path))}

    export_v1(folder, build, assets=True)
    _edit(folder, lambda meta_graph: _name_file(meta_graph, str(file), str(target)))


@recipe("ReadFile")
def reads_an_asset_outside_of_the_model(folder: Path, target: Path, port: int) -> None:
    save(_reading_asset(folder), folder)

    def edit(meta_graph: Any) -> None:
        meta_graph.asset_file_def[0].filename = os.path.relpath(target, folder / "assets")

    _edit(folder, edit)


@recipe("ReadFile")
def reads_a_second_asset_outside_of_the_model(folder: Path, target: Path, port: int) -> None:
    """The graph reads the first asset; `tf.saved_model.load` passes the second one instead."""
    save(_reading_asset(folder), folder)

    def edit(meta_graph: Any) -> None:
        second = meta_graph.asset_file_def.add(filename=str(target))
        second.tensor_info.name = "serving_default_x:0"
        for node in meta_graph.object_graph_def.nodes:
            if node.WhichOneof("kind") == "asset":
                node.asset.asset_file_def_index = 1

    _edit(folder, edit)


@recipe("ReadFile")
def reads_a_path_that_a_second_handle_assigns(folder: Path, target: Path, port: int) -> None:
    """Two handles of the same name are one variable, here the one with the path of an asset."""
    save(_reading_asset(folder), folder)

    def edit(meta_graph: Any) -> None:
        graph = meta_graph.graph_def
        nodes = {node.name: node for node in graph.node}
        nodes["ReadVariableOp"].input.append("^leak/assign")
        with tf.Graph().as_default() as constants:
            tf.constant(str(target), name="leak/path")
        for name in ("Variable", "Variable/Assign"):
            graph.node.add().CopyFrom(nodes[name])
        handle, assign = graph.node[-2:]
        handle.name, assign.name = "leak/handle", "leak/assign"
        assign.input[:] = ["leak/handle", "leak/path"]
        graph.node.extend(constants.as_graph_def().node)

    _edit(folder, edit)


@recipe("ReadFile")
def reads_a_path_that_a_hidden_handle_assigns(folder: Path, target: Path, port: int) -> None:
    """A function makes the handle, and its caller sets the name."""
    save(_reading_asset(folder), folder)

    def edit(meta_graph: Any) -> None:
        graph = meta_graph.graph_def
        nodes = {node.name: node for node in graph.node}
        name = nodes["Variable"].attr["shared_name"]

        @tf.function(autograph=False)
        def leak() -> None:
            handle = raw.VarHandleOp(dtype=tf.string, shape=[], shared_name=name.s)
            raw.AssignVariableOp(resource=handle, value=tf.constant(str(target)))

        with tf.Graph().as_default() as added:
            leak()
        [function] = added.as_graph_def().library.function
        [handle] = (node for node in function.node_def if node.op == "VarHandleOp")
        handle.attr["shared_name"].placeholder = "named"
        function.signature.attr.add(name="named", type="string")
        graph.library.function.add().CopyFrom(function)
        [call] = (node for node in added.as_graph_def().node if "f" in node.attr)
        call.name = "leak"
        call.attr["f"].func.attr["named"].CopyFrom(name)
        graph.node.add().CopyFrom(call)
        nodes["ReadVariableOp"].input.append("^leak")

    _edit(folder, edit)
