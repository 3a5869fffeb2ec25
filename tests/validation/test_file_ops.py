"""Ops that reach files or the network: told from TensorFlow's own registry."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from generic_trainer.validation import ServingContract
from generic_trainer.validation._access import Assets, reaches_out
from generic_trainer.validation._model import ModelUnderTest
from tests.validation import models

# What the registry of both stacks has, and what each is there for.
KNOWN = re.findall(r"\w+", """
    ReadFile WriteFile MatchingFiles MatchingFilesDataset Save SaveSlices SaveV2 Restore
    RestoreSlice RestoreV2 MergeV2Checkpoints LoadAndRemapMatrix GenerateVocabRemapping
    DTensorRestoreV2 InitializeTableFromTextFileV2 TFRecordDataset TFRecordDatasetV2
    TextLineDataset CSVDataset CSVDatasetV2 FixedLengthRecordDatasetV2 LMDBDataset SqlDataset
    CacheDataset CacheDatasetV2 DatasetToTFRecord SaveDataset SaveDatasetV2 LoadDataset
    SnapshotDataset SnapshotDatasetV2 SnapshotDatasetReader SnapshotChunkDataset
    ListSnapshotChunksDataset DistributedSave DatasetFromGraph WholeFileReaderV2 TextLineReaderV2
    TFRecordReaderV2 FixedLengthRecordReaderV2 LMDBReader RecordInput Skipgram
    FixedUnigramCandidateSampler CreateSummaryFileWriter CreateSummaryDbWriter WriteSummary
    WriteScalarSummary WriteRawProtoSummary WriteGraphSummary FlushSummaryWriter ImportEvent
    DumpTensor ImmutableConst DecodeProtoV2 EncodeProto FileSystemSetConfiguration DebugIdentity
    DebugIdentityV2 DebugIdentityV3 DebugNanCount DebugNumericSummary Copy CopyHost
    DataServiceDataset DataServiceDatasetV4 RegisterDataset RegisterDatasetV2 RpcServer
    RpcServerStart RpcServerRegister RpcClient RpcCall RpcGetValue
    LoadTPUEmbeddingAdagradParameters RetrieveTPUEmbeddingAdagradParameters
    LoadAllTPUEmbeddingParameters
""")  # fmt: skip
# Their documentation speaks of files or networks, and they reach none: they decode or encode what
# they are fed, compute a name, or read through a reader, which is known itself.
HARMLESS = re.findall(r"\w+", """
    AudioSpectrogram DecodeImage DecodeJxl DecodeWav DecodeWebP EncodeWav Elu PyFunc ReaderRead
    ReaderReadUpTo ReaderReadUpToV2 ReaderReadV2 ShardedFilename ShardedFilespec
""")  # fmt: skip
SPEAKS_OF_FILES = re.compile(
    r"\b(files?|filenames?|director(y|ies)|disk|network|server|socket|rpc|grpc|address|url)\b",
    re.IGNORECASE,
)


def _registry() -> dict[str, Any]:
    buffer = pywrap_tf_session.TF_GetAllOpList()
    ops = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(buffer))
    return {op.name: op for op in ops.op}


def _node(definition: Any) -> Any:
    """A node of an op, all of its texts set."""
    node = node_def_pb2.NodeDef(op=definition.name)
    for attribute in definition.attr:
        if attribute.type == "string":
            node.attr[attribute.name].s = b"file:///x"
        elif attribute.type == "list(string)":
            node.attr[attribute.name].list.s.append(b"grpc://x")
    return node


REGISTRY = _registry()
REACHED = {name for name, definition in REGISTRY.items() if reaches_out(_node(definition))}


def test_all_known_ops_are_found() -> None:
    assert sorted(set(KNOWN) - REACHED) == []


def test_the_documentation_of_no_other_op_speaks_of_files() -> None:
    # A new release of TensorFlow may bring one: look at it, and give it its place.
    speaking = {
        name
        for name in REGISTRY.keys() - REACHED
        if SPEAKS_OF_FILES.search(getattr(tf.raw_ops, name, object).__doc__ or "")
    }
    assert sorted(speaking - set(HARMLESS) - {"Abort"}) == []


def test_few_ops_are_found_that_nobody_has_looked_at() -> None:
    assert not REACHED & set(HARMLESS)
    unseen = {re.sub(r"^Experimental|V\d$", "", name) for name in REACHED - set(KNOWN)}
    unseen -= {re.sub(r"V\d$", "", name) for name in KNOWN}
    assert len(unseen) < 80, sorted(unseen)


def test_files_that_are_not_named_and_protos_that_are_compiled_in_are_not_reached() -> None:
    for op in ("FixedUnigramCandidateSampler", "DebugIdentityV2", "Skipgram"):
        assert not reaches_out(node_def_pb2.NodeDef(op=op))
    node = node_def_pb2.NodeDef(op="DecodeProtoV2")
    for value, reached in ((b"local://", False), (b"bytes://abc", False), (b"/x.pb", True)):
        node.attr["descriptor_source"].s = value
        assert reaches_out(node) is reached


def _found(folder: Path, op: str) -> list[bool]:
    """Returns for each node of an op in a model whether it reads nothing but assets."""
    model = ModelUnderTest(folder, ServingContract(), str(folder))
    nodes = [node for node in model.nodes if node.op == op]
    assert nodes
    assets = Assets(model.graph, model.asset_nodes)
    return [assets.are_all_that_is_read(node) for node in nodes]


def test_a_path_that_is_made_of_an_assets_may_not(tmp_path: Path) -> None:
    asset = models.asset(tmp_path / "words.txt", "a\nb\n")
    made = (
        lambda x: tf.strings.join([asset.asset_path, "/../../secret"]),
        lambda x: tf.io.read_file(asset.asset_path),  # a file that names another
        lambda x: tf.where(tf.size(x) > 2, x[0], asset.asset_path),
    )
    for number, make in enumerate(made):
        module = _reading(make, asset)
        assert not all(_found(models.save(module, tmp_path / str(number)), "ReadFile"))


def _asset_model(folder: Path) -> Path:
    """A model that reads an asset, the path of which TensorFlow keeps in a variable."""
    asset = models.asset(folder / "words.txt", "a\nb\n")
    return models.save(_reading(lambda x: asset.asset_path, asset), folder / "model")


def _handle_in_a_function(meta_graph: Any) -> None:
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    inner = meta_graph.graph_def.library.function[0].node_def.add()
    inner.CopyFrom(nodes["Variable"])
    inner.name = "another"


def _path_as_an_input(meta_graph: Any) -> None:
    signature = meta_graph.signature_def["serving_default"]
    signature.inputs["path"].CopyFrom(signature.inputs["examples"])
    signature.inputs["path"].name = "ReadVariableOp:0"


def _bound_to_a_constant(meta_graph: Any) -> None:
    """Lets `tf.saved_model.load` pass a constant in the place of the asset."""
    objects = meta_graph.object_graph_def
    for node in meta_graph.graph_def.node:
        if node.op == "Const":
            objects.nodes.add().constant.operation = node.name
    for function in objects.concrete_functions.values():
        function.bound_inputs[:] = [len(objects.nodes) - 1] * len(function.bound_inputs)


def _absolute_file(meta_graph: Any) -> None:
    meta_graph.asset_file_def[0].filename = "/etc/passwd"


# More of them are in benchmarks/bypasses/_places.py, which test_sandbox.py checks.
@pytest.mark.parametrize(
    "edit", [_handle_in_a_function, _path_as_an_input, _bound_to_a_constant, _absolute_file]
)
def test_a_path_that_looks_like_one_may_not(edit: Callable[[Any], None], tmp_path: Path) -> None:
    folder = _asset_model(tmp_path)
    assert _found(folder, "ReadFile") == [True]
    models.edit_proto(folder, lambda proto: edit(proto.meta_graphs[0]))
    assert _found(folder, "ReadFile") == [False]


def _reading(make: Callable[[tf.Tensor], tf.Tensor], asset: tf.saved_model.Asset) -> tf.Module:
    """A model that reads the file whose path `make` returns."""
    return models.serving(
        lambda x: {"y": x + tf.io.read_file(make(x))}, models.SERIALIZED, asset=asset
    )
