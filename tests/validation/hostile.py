"""Models that write, read or connect, in every place from which something can be run.

A recipe gets the folder for the model, a file that must not be touched, and the port of a server
that must not be contacted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.distribute.experimental.rpc.kernels import gen_rpc_ops

from tests.validation.models import SERIALIZED, edit_proto, save, serving

Make = Callable[[Path, Path, int], Any]
ROWS = tf.TensorSpec([None, 2], tf.float32, name="x")
raw = tf.raw_ops


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A hostile model: how it is made, and the op that the report must name."""

    make: Make
    op: str


RECIPES: dict[str, Recipe] = {}


def recipe(op: str) -> Callable[[Make], Make]:
    """Registers a recipe under its function's name."""

    def register(make: Make) -> Make:
        RECIPES[make.__name__] = Recipe(make, op)
        return make

    return register


def _save_with(folder: Path, act: Callable[[tf.Tensor], Any]) -> None:
    """Saves a model that doubles its rows after it has done something else."""

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies(tf.nest.flatten(act(x))):
            return {"y": x * 2.0}

    save(serving(serve, ROWS), folder)


def _write(target: Path) -> tf.Operation:
    return tf.io.write_file(str(target), "written")


def _first(dataset: tf.data.Dataset) -> Any:
    return next(iter(dataset.take(1)))


def _count(dataset: tf.data.Dataset) -> tf.Tensor:
    return dataset.reduce(0, lambda count, _: count + 1)


def _debugged(url: str) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: raw.DebugIdentityV2(
        input=x, op_name="x", output_slot=0, tensor_debug_mode=8, tfdbg_run_id="r", debug_urls=[url]
    )


# Writes.


@recipe("WriteFile")
def writes_on_every_call(folder: Path, target: Path, port: int) -> None:
    _save_with(folder, lambda x: [_write(target)])


@recipe("WriteFile")
def writes_in_a_branch(folder: Path, target: Path, port: int) -> None:
    def act(x: tf.Tensor) -> tf.Tensor:
        def leak() -> tf.Tensor:
            with tf.control_dependencies([_write(target)]):
                return tf.identity(x)

        return tf.cond(tf.size(x) > 0, leak, lambda: x)

    _save_with(folder, act)


@recipe("WriteFile")
def writes_in_a_loop(folder: Path, target: Path, port: int) -> None:
    def body(i: tf.Tensor) -> tuple[tf.Tensor]:
        with tf.control_dependencies([_write(target)]):
            return (i + 1,)

    _save_with(folder, lambda x: tf.while_loop(lambda i: i < 2, body, (0,)))


@recipe("WriteFile")
def writes_in_a_map_of_rows(folder: Path, target: Path, port: int) -> None:
    def one(row: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([_write(target)]):
            return tf.identity(row)

    _save_with(folder, lambda x: tf.map_fn(one, x))


class _Table(tf.lookup.StaticHashTable):
    """A table that does something else while it is made, filled or let go of."""

    def __init__(self, when: str, target: Path) -> None:
        self._when, self._target = when, target
        values = tf.lookup.KeyValueTensorInitializer(["a"], tf.constant([1.0]))
        super().__init__(values, 0.0)

    def _act(self, when: str) -> None:
        if when == self._when and not tf.executing_eagerly():
            _write(self._target)

    def _create_resource(self) -> tf.Tensor:
        self._act("create")
        return super()._create_resource()

    def _initialize(self) -> Any:
        self._act("initialize")
        return super()._initialize()


def _save_with_table(folder: Path, table: _Table) -> None:
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x + table.lookup(tf.constant("a"))}

    save(serving(serve, ROWS, table=table), folder)


@recipe("WriteFile")
def writes_in_an_initialiser(folder: Path, target: Path, port: int) -> None:
    _save_with_table(folder, _Table("initialize", target))


@recipe("WriteFile")
def writes_while_a_table_is_made(folder: Path, target: Path, port: int) -> None:
    _save_with_table(folder, _Table("create", target))


@recipe("WriteFile")
def writes_while_variables_are_restored(folder: Path, target: Path, port: int) -> None:
    weight = tf.Variable(tf.ones([2, 1]))
    save(serving(lambda x: {"y": x @ weight}, ROWS, weight=weight), folder)

    def edit(proto: Any) -> None:
        (meta_graph,) = proto.meta_graphs
        graph = meta_graph.graph_def
        with tf.Graph().as_default() as extra:
            tf.io.write_file(tf.constant(str(target), name="leak/path"), "x", name="leak/write")
        graph.node.extend(extra.as_graph_def().node)
        restore = meta_graph.saver_def.restore_op_name
        (node,) = (node for node in graph.node if node.name == restore)
        node.input.append("^leak/write")

    edit_proto(folder, edit)


@recipe("SaveV2")
def saves_a_checkpoint(folder: Path, target: Path, port: int) -> None:
    _save_with(
        folder,
        lambda x: raw.SaveV2(
            prefix=str(target), tensor_names=["x"], shape_and_slices=[""], tensors=[x]
        ),
    )


@recipe("MergeV2Checkpoints")
def moves_checkpoints(folder: Path, target: Path, port: int) -> None:
    _save_with(
        folder,
        lambda x: raw.MergeV2Checkpoints(
            checkpoint_prefixes=[f"{target}.part"], destination_prefix=str(target)
        ),
    )


@recipe("DatasetToTFRecord")
def writes_records(folder: Path, target: Path, port: int) -> None:
    def act(x: tf.Tensor) -> Any:
        rows = tf.data.Dataset.from_tensors("record")
        return raw.DatasetToTFRecord(
            input_dataset=tf.data.experimental.to_variant(rows),
            filename=str(target),
            compression_type="",
        )

    _save_with(folder, act)


@recipe("SaveDatasetV2")
def saves_a_dataset(folder: Path, target: Path, port: int) -> None:
    def act(x: tf.Tensor) -> Any:
        dataset = raw.SaveDatasetV2(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(2)),
            path=str(target),
            shard_func_other_args=[],
            shard_func=tf.function(lambda row: tf.constant(0, tf.int64)).get_concrete_function(
                tf.TensorSpec([], tf.int64)
            ),
            output_types=[tf.int64],
            output_shapes=[[]],
        )
        spec = tf.TensorSpec([], tf.int64)
        return _count(tf.data.experimental.from_variant(dataset, spec))

    _save_with(folder, act)


@recipe("CacheDatasetV2")
def caches_rows_on_disk(folder: Path, target: Path, port: int) -> None:
    _save_with(folder, lambda x: _count(tf.data.Dataset.range(2).cache(str(target))))


@recipe("CreateSummaryFileWriter")
def writes_summaries(folder: Path, target: Path, port: int) -> None:
    def act(x: tf.Tensor) -> Any:
        writer = raw.SummaryWriter(shared_name="w", container="")
        made = raw.CreateSummaryFileWriter(
            writer=writer, logdir=str(target), max_queue=1, flush_millis=1, filename_suffix=".x"
        )
        with tf.control_dependencies([made]):
            written = raw.WriteScalarSummary(writer=writer, step=1, tag="t", value=1.0)
        with tf.control_dependencies([written]):
            return [raw.FlushSummaryWriter(writer=writer)]

    _save_with(folder, act)


@recipe("DebugIdentityV2")
def dumps_tensors_for_a_debugger(folder: Path, target: Path, port: int) -> None:
    _save_with(folder, _debugged(f"file://{target}"))


@recipe("PrintV2")
def prints_into_a_file(folder: Path, target: Path, port: int) -> None:
    _save_with(folder, lambda x: tf.print(x, output_stream=f"file://{target}") or [])


# Reads.


@recipe("ReadFile")
def reads_a_file(folder: Path, target: Path, port: int) -> None:
    _save_with(folder, lambda x: tf.io.read_file("/etc/passwd"))


@recipe("ReadFile")
def reads_a_path_from_the_client(folder: Path, target: Path, port: int) -> None:
    save(serving(lambda x: {"y": tf.map_fn(tf.io.read_file, x)}, SERIALIZED), folder)


@recipe("MatchingFiles")
def lists_a_directory(folder: Path, target: Path, port: int) -> None:
    _save_with(folder, lambda x: tf.io.matching_files("/etc/*"))


@recipe("TextLineDataset")
def reads_lines(folder: Path, target: Path, port: int) -> None:
    _save_with(folder, lambda x: _first(tf.data.TextLineDataset("/etc/passwd")))


@recipe("ImmutableConst")
def maps_a_file(folder: Path, target: Path, port: int) -> None:
    _save_with(
        folder,
        lambda x: tf.size(
            raw.ImmutableConst(dtype=tf.float32, shape=[4], memory_region_name="/etc/passwd")
        ),
    )


@recipe("RestoreV2")
def reads_a_checkpoint(folder: Path, target: Path, port: int) -> None:
    _save_with(
        folder,
        lambda x: raw.RestoreV2(
            prefix="/etc/passwd", tensor_names=["x"], shape_and_slices=[""], dtypes=[tf.float32]
        ),
    )


@recipe("DatasetFromGraph")
def runs_a_graph_that_is_data(folder: Path, target: Path, port: int) -> None:
    lines = tf.data.TextLineDataset("/etc/passwd")
    graph = raw.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(lines)).numpy()

    def act(x: tf.Tensor) -> Any:
        variant = raw.DatasetFromGraph(graph_def=graph)
        spec = tf.TensorSpec([], tf.string)
        return _count(tf.data.experimental.from_variant(variant, spec))

    _save_with(folder, act)


# Connections.


@recipe("DataServiceDataset")
def asks_a_data_service(folder: Path, target: Path, port: int) -> None:
    def act(x: tf.Tensor) -> Any:
        service = tf.data.experimental.service.from_dataset_id(
            processing_mode="parallel_epochs",
            service=f"grpc://127.0.0.1:{port}",
            dataset_id="0",
            element_spec=tf.TensorSpec([], tf.int64),
        )
        return _count(service)

    _save_with(folder, act)


@recipe("DebugIdentityV2")
def sends_tensors_to_a_debugger(folder: Path, target: Path, port: int) -> None:
    _save_with(folder, _debugged(f"grpc://127.0.0.1:{port}"))


@recipe("RpcClient")
def calls_another_server(folder: Path, target: Path, port: int) -> None:
    _save_with(
        folder,
        lambda x: gen_rpc_ops.rpc_client(f"127.0.0.1:{port}", 1000, list_registered_methods=True)[
            1
        ],
    )
