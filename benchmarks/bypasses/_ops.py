"""Models that read, write or connect by more ops, beside those of `_hostile.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.bypasses._hostile import RECIPES, _count, _write, acts, add, recipe
from tests.validation.models import ROWS, after, asset, save, serving

__all__ = ["RECIPES"]

raw = tf.raw_ops
TEXT = tf.TensorSpec([], tf.string)


def _columns(target: str) -> tf.Tensor:
    """Returns the count of a text's rows, read by an op that TensorFlow has renamed."""
    variant = raw.ExperimentalCSVDataset(
        filenames=target, compression_type="", buffer_size=tf.constant(99, tf.int64), header=False,
        field_delim=",", use_quote_delim=True, na_value="", select_cols=tf.constant([], tf.int64),
        record_defaults=[tf.constant([""])], output_shapes=[[]],
    )  # fmt: skip
    return _count(tf.data.experimental.from_variant(variant, TEXT))


for name, op, act in (
    # Reads
    ("reads_a_checkpoint_by_an_older_op", "RestoreSlice", lambda x, target, port:
     raw.RestoreSlice(file_pattern=f"{target}.part*", tensor_name="x", shape_and_slice="",
                      dt=tf.float32)),
    ("reads_records", "TFRecordDatasetV2", lambda x, target, port:
     _count(tf.data.TFRecordDataset(target))),
    ("reads_records_of_fixed_length", "FixedLengthRecordDatasetV2", lambda x, target, port:
     _count(tf.data.FixedLengthRecordDataset(target, 1))),
    ("reads_columns_by_an_older_op", "ExperimentalCSVDataset", lambda x, target, port:
     _columns(target)),
    ("queries_a_database", "SqlDataset", lambda x, target, port:
     _count(tf.data.experimental.SqlDataset("sqlite", f"{target}.db", "SELECT word FROM words",
                                            (tf.string,)))),
    ("loads_a_dataset", "LoadDataset", lambda x, target, port:
     _count(tf.data.Dataset.load(os.path.dirname(target), TEXT))),
    ("reads_a_vocabulary_that_an_attribute_names", "FixedUnigramCandidateSampler",
     lambda x, target, port: raw.FixedUnigramCandidateSampler(
         true_classes=tf.zeros([1, 1], tf.int64), num_true=1, num_sampled=1, unique=False,
         range_max=1, vocab_file=target).sampled_candidates),
    ("reads_the_descriptors_of_protos", "DecodeProtoV2", lambda x, target, port:
     raw.DecodeProtoV2(bytes=[b""], message_type="x", field_names=[], output_types=[],
                       descriptor_source=target).sizes),
    ("reads_two_vocabularies", "GenerateVocabRemapping", lambda x, target, port:
     raw.GenerateVocabRemapping(new_vocab_file=target, old_vocab_file=target, new_vocab_offset=0,
                                num_new_vocab=1).num_present),
    ("reads_a_matrix", "LoadAndRemapMatrix", lambda x, target, port:
     raw.LoadAndRemapMatrix(ckpt_path=f"{target}.part", old_tensor_name="x", row_remapping=[0],
                            col_remapping=[], initializing_values=[], num_rows=1, num_cols=1)),
    ("reads_records_in_the_background", "RecordInput", lambda x, target, port:
     raw.RecordInput(file_pattern=target, file_buffer_size=1, batch_size=1)),
    # Writes
    ("writes_a_checkpoint_by_an_older_op", "SaveSlices", lambda x, target, port:
     raw.SaveSlices(filename=f"{target}.old", tensor_names=["x"], shapes_and_slices=[""],
                    data=[x])),
    ("writes_a_database_of_summaries", "CreateSummaryDbWriter", lambda x, target, port:
     raw.CreateSummaryDbWriter(writer=raw.SummaryWriter(), db_uri=f"{target}.new",
                               experiment_name="", run_name="", user_name="")),
    ("writes_a_snapshot", "SnapshotDatasetV2", lambda x, target, port:
     _count(tf.data.Dataset.range(2).snapshot(f"{target}.snapshot"))),
    ("counts_in_a_debugger", "DebugNumericSummary", lambda x, target, port:
     raw.DebugNumericSummary(input=x, tensor_name="x:0", debug_urls=[f"file://{target}.d"])),
    # Places
    ("writes_in_a_map_of_a_dataset", "WriteFile", lambda x, target, port:
     _count(tf.data.Dataset.range(1).map(lambda row: after(_write(target), row)))),
    ("writes_in_the_case_of_a_switch", "WriteFile", lambda x, target, port:
     tf.switch_case(tf.cast(tf.size(x) > 0, tf.int32),
                    [lambda: x, lambda: after(_write(target), x)])),
):  # fmt: skip
    add(name, op, act)


@acts("WholeFileReaderV2")
def reads_with_a_reader_and_a_queue(x: tf.Tensor, target: str, port: int) -> Any:
    queue = raw.FIFOQueueV2(component_types=[tf.string])
    with tf.control_dependencies([raw.QueueEnqueueV2(handle=queue, components=[target])]):
        return raw.ReaderReadV2(reader_handle=raw.WholeFileReaderV2(), queue_handle=queue).value


@acts("InitializeTableFromTextFileV2")
def fills_a_table_from_a_text(x: tf.Tensor, target: str, port: int) -> Any:
    table = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="t")
    return raw.InitializeTableFromTextFileV2(
        table_handle=table, filename=target, key_index=-2, value_index=-1
    )


@acts("RegisterDatasetV2")
def registers_a_dataset_with_a_service(x: tf.Tensor, target: str, port: int) -> Any:
    rows = tf.data.experimental.to_variant(tf.data.Dataset.range(2))
    return raw.RegisterDatasetV2(
        dataset=rows, address=f"127.0.0.1:{port}", protocol="grpc", external_state_policy=1
    )


@acts("WriteFile")
def writes_where_a_generator_ends(x: tf.Tensor, target: str, port: int) -> Any:
    from tensorflow.python.data.ops.from_generator_op import _GeneratorDataset

    number = tf.constant(0, tf.int64)
    rows = _GeneratorDataset(
        number, lambda start: start, lambda state: state,
        lambda state: after(_write(target), state), tf.TensorSpec([], tf.int64),
    )  # fmt: skip
    return rows.take(1).reduce(number, tf.add)


@acts("PyFunc")
def calls_a_python_function_of_the_program(x: tf.Tensor, target: str, port: int) -> Any:
    return raw.PyFunc(input=[1.0], token="pyfunc_0", Tout=[tf.float32])[0]


@recipe("ReadFile")
def reads_an_asset_that_is_a_link(folder: Path, target: Path, port: int) -> None:
    words = asset(folder.parent / f"{folder.name}.txt", "a\n")
    save(serving(lambda x: {"y": tf.io.read_file(words.asset_path)}, ROWS, words=words), folder)
    (file,) = (folder / "assets").iterdir()
    file.unlink()
    file.symlink_to(target)


def _tflite(folder: Path, target: Path) -> bytes:
    """Returns a TFLite model with an op of TensorFlow itself that reads a file."""
    source = folder.parent / f"{folder.name}.source"
    save(serving(lambda x: {"y": tf.io.read_file(str(target))}, ROWS), source)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(source))
    ops = tf.lite.OpsSet
    converter.target_spec.supported_ops = [ops.TFLITE_BUILTINS, ops.SELECT_TF_OPS]
    folder.mkdir()
    return bytes(converter.convert())


@recipe("ReadFile")
def reads_in_tflite(folder: Path, target: Path, port: int) -> None:
    content = _tflite(folder, target)
    (folder / "model.tflite").write_bytes(content)


@recipe("ReadFile")
def reads_in_tflite_under_another_name(folder: Path, target: Path, port: int) -> None:
    """TFLite runs the op that the options name, whatever the name of its own op is."""
    content = _tflite(folder, target).replace(b"FlexReadFile", b"FlexIdentity")
    (folder / "model.tflite").write_bytes(content)
