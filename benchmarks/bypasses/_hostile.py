"""Models that write, read or connect, in every place from which something can be run.

A recipe gets the folder for the model, a file that must not be touched, and the port of a server
that must not be contacted.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.distribute.experimental.rpc.kernels import gen_rpc_ops

from tests.validation.models import ROWS, SERIALIZED, after, edit_proto, save, serving

Make = Callable[[Path, Path, int], Any]
Act = Callable[[tf.Tensor, str, int], Any]
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


def add(name: str, op: str, act: Act) -> None:
    """Registers a model that doubles its rows after it has done something else."""

    def make(folder: Path, target: Path, port: int) -> None:
        def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
            done = act(x, str(target), port)
            used = {"done": done} if tf.is_tensor(done) else {}  # or a read would be left out
            return {"y": after(done, x) * 2.0, **used}

        save(serving(serve, ROWS), folder)

    RECIPES[name] = Recipe(make, op)


def acts(op: str) -> Callable[[Act], None]:
    """Registers such a model under its function's name."""
    return lambda act: add(act.__name__, op, act)


def _count(dataset: tf.data.Dataset) -> tf.Tensor:
    return dataset.reduce(0, lambda count, _: count + 1)


def _debugged(x: tf.Tensor, url: str) -> tf.Tensor:
    return raw.DebugIdentityV2(
        input=x, op_name="x", output_slot=0, tensor_debug_mode=8, tfdbg_run_id="r", debug_urls=[url]
    )


def _write(target: Any) -> tf.Operation:
    return tf.io.write_file(str(target), "written")


for name, op, act in (
    ("writes_on_every_call", "WriteFile", lambda x, target, port: _write(target)),
    ("writes_in_a_branch", "WriteFile", lambda x, target, port:
     tf.cond(tf.size(x) > 0, lambda: after(_write(target), x), lambda: x)),
    ("writes_in_a_loop", "WriteFile", lambda x, target, port:
     tf.while_loop(lambda i: i < 2, lambda i: (after(_write(target), i) + 1,), (0,))),
    ("writes_in_a_map_of_rows", "WriteFile", lambda x, target, port:
     tf.map_fn(lambda row: after(_write(target), row), x)),
    ("saves_a_checkpoint", "SaveV2", lambda x, target, port:
     raw.SaveV2(prefix=target, tensor_names=["x"], shape_and_slices=[""], tensors=[x])),
    ("moves_checkpoints", "MergeV2Checkpoints", lambda x, target, port:
     raw.MergeV2Checkpoints(checkpoint_prefixes=[f"{target}.part"], destination_prefix=target)),
    ("caches_rows_on_disk", "CacheDatasetV2", lambda x, target, port:
     _count(tf.data.Dataset.range(2).cache(target))),
    ("dumps_tensors_for_a_debugger", "DebugIdentityV2", lambda x, target, port:
     _debugged(x, f"file://{target}")),
    ("prints_into_a_file", "PrintV2", lambda x, target, port:
     tf.print(x, output_stream=f"file://{target}") or []),
    ("reads_a_file", "ReadFile", lambda x, target, port: tf.io.read_file(target)),
    ("lists_a_directory", "MatchingFiles", lambda x, target, port:
     tf.io.matching_files(f"{target}*")),
    ("reads_lines", "TextLineDataset", lambda x, target, port:
     next(iter(tf.data.TextLineDataset(target).take(1)))),
    ("maps_a_file", "ImmutableConst", lambda x, target, port:
     raw.ImmutableConst(dtype=tf.uint8, shape=[4], memory_region_name=target)),
    ("reads_a_checkpoint", "RestoreV2", lambda x, target, port:
     raw.RestoreV2(prefix=target, tensor_names=["x"], shape_and_slices=[""],
                   dtypes=[tf.float32])),
    ("sends_tensors_to_a_debugger", "DebugIdentity", lambda x, target, port:
     raw.DebugIdentity(input=x, tensor_name="x:0", debug_urls=[f"grpc://127.0.0.1:{port}"])),
):  # fmt: skip
    add(name, op, act)

# Writes.


class _Table(tf.lookup.StaticHashTable):
    """A table that does something else while it is made or filled."""

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
    save(serving(lambda x: {"y": x + table.lookup(tf.constant("a"))}, ROWS, table=table), folder)


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


@acts("DatasetToTFRecord")
def writes_records(x: tf.Tensor, target: str, port: int) -> Any:
    rows = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors("record"))
    return raw.DatasetToTFRecord(input_dataset=rows, filename=target, compression_type="")


@acts("SaveDatasetV2")
def saves_a_dataset(x: tf.Tensor, target: str, port: int) -> Any:
    spec = tf.TensorSpec([], tf.int64)
    shard = tf.function(lambda row: tf.constant(0, tf.int64)).get_concrete_function(spec)
    rows = tf.data.experimental.to_variant(tf.data.Dataset.range(2))
    kind = {"output_types": [tf.int64], "output_shapes": [[]]}
    sharded = {"shard_func": shard, "shard_func_other_args": [], **kind}
    dataset = raw.SaveDatasetV2(input_dataset=rows, path=target, **sharded)
    return _count(tf.data.experimental.from_variant(dataset, spec))


@acts("CreateSummaryFileWriter")
def writes_summaries(x: tf.Tensor, target: str, port: int) -> Any:
    writer = raw.SummaryWriter(shared_name="w", container="")
    made = raw.CreateSummaryFileWriter(
        writer=writer, logdir=target, max_queue=1, flush_millis=1, filename_suffix=".x"
    )
    step = after(made, tf.constant(1, tf.int64))
    written = raw.WriteScalarSummary(writer=writer, step=step, tag="t", value=1.0)
    with tf.control_dependencies([written]):
        return raw.FlushSummaryWriter(writer=writer)


# Reads.


@recipe("ReadFile")
def reads_a_path_from_the_client(folder: Path, target: Path, port: int) -> None:
    save(serving(lambda x: {"y": tf.map_fn(tf.io.read_file, x)}, SERIALIZED), folder)


@acts("DatasetFromGraph")
def runs_a_graph_that_is_data(x: tf.Tensor, target: str, port: int) -> Any:
    with tf.init_scope():
        lines = tf.data.experimental.to_variant(tf.data.TextLineDataset(target))
        graph = raw.DatasetToGraphV2(input_dataset=lines).numpy()
    # Not a constant, which TensorFlow would replace by the dataset, and fail to.
    data = tf.where(tf.size(x) >= 0, graph, "")
    variant = raw.DatasetFromGraph(graph_def=data)
    return _count(tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)))


# Connections.


@acts("DataServiceDataset")
def asks_a_data_service(x: tf.Tensor, target: str, port: int) -> Any:
    service = tf.data.experimental.service.from_dataset_id(
        processing_mode="parallel_epochs",
        service=f"grpc://127.0.0.1:{port}",
        dataset_id="0",
        element_spec=tf.TensorSpec([], tf.int64),
    )
    return _count(service)


@acts("RpcClient")
def calls_another_server(x: tf.Tensor, target: str, port: int) -> Any:
    server = f"127.0.0.1:{port}"
    return gen_rpc_ops.rpc_client(server, 1000, list_registered_methods=True)[1]
