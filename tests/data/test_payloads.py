"""Records other than tf.Examples: the reader delivers what TFX's delivers of them too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import text_format
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.coders import tf_graph_record_decoder
from tfx_bsl.tfxio import parquet_tfxio, record_to_tensor_tfxio, tf_sequence_example_record
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from generic_trainer.data import explain_read_errors, make_dataset_factory
from generic_trainer.data._parser import Parser
from generic_trainer.errors import ConfigurationError, DataError
from tests.data.reading import (
    SCHEMA,
    assert_same_elements,
    feature_of,
    numbered,
    schema_of,
    write,
    write_files,
)
from tests.data.test_equivalence import DEFAULTS, VALUES, Case, cases, check, drawn_options

SEQUENCES = {"payload_format": "FORMAT_TF_SEQUENCE_EXAMPLE"}
OPTIONS = TensorFlowDatasetOptions(batch_size=8, num_epochs=1, shuffle=False)
SOME = settings(
    max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


# ---- tf.SequenceExamples -------------------------------------------------------------------------


def tfx_sequences(pattern: Any, options: Any, schema: Any) -> tf.data.Dataset:
    record = tf_sequence_example_record.TFSequenceExampleRecord(pattern, ["test"], schema=schema)
    return record.TensorFlowDataset(options)


def sequence_example(context: Mapping[str, Any], lists: Mapping[str, Any]) -> bytes:
    proto = tf.train.SequenceExample()
    for name, values in context.items():
        proto.context.feature[name].CopyFrom(feature_of(values))
    for name, steps in lists.items():
        proto.feature_lists.feature_list[name].feature.extend(map(feature_of, steps))
    return proto.SerializeToString(deterministic=True)


def sessions(first: int, last: int) -> list[bytes]:
    """Returns sequence examples of `SESSIONS`; some lack this or that feature."""
    made = []
    for number in range(first, last):
        context = {"user": [number], "tags": [f"tag {number % 3}"] * (number % 4)}
        lists = {
            "item": [list(range(step)) for step in range(number % 4)],
            "query": [["a", "b" * number][: step % 3] for step in range(number % 5)],
            "pair": [[number / 2, -1.0]] * (number % 3),
        }
        filled = ({name: each for name, each in part.items() if each or number % 2}
                  for part in (context, lists))  # fmt: skip
        made.append(sequence_example(*filled))
    return made


def _step(name: str) -> str:
    return f'feature_path {{ step: "##SEQUENCE##" step: "{name}" }}'


def _represented(name: str, text: str) -> str:
    return f'tensor_representation {{ key: "{name}" value {{ {text} }} }}'


def sequence_schema(context: Mapping[str, tuple[str, str]], lists: Mapping[str, Any]) -> Any:
    """Returns a schema: feature → type and tensor representation, of context and of lists."""
    declared = "".join(f'feature {{ name: "{k}" type: {t} }}' for k, (t, _) in context.items())
    steps = "".join(f'feature {{ name: "{k}" type: {t} }}' for k, (t, _) in lists.items())
    tensors = "".join(_represented(k, text) for k, (_, text) in {**context, **lists}.items())
    text = f"""{declared}
        feature {{ name: "##SEQUENCE##" type: STRUCT struct_domain {{ {steps} }} }}
        tensor_representation_group {{ key: "" value {{ {tensors} }} }}"""
    return text_format.Parse(text, schema_pb2.Schema())


def _context_of(draw: Any, name: str, kind: str) -> tuple[str, Any]:
    """Returns a representation of a feature of the context, and what fills it."""
    form = draw(st.sampled_from(["dense", "list", "ragged"]))
    if form == "list":
        return f'varlen_sparse_tensor {{ column_name: "{name}" }}', st.lists(
            VALUES[kind], max_size=4
        )
    if form == "ragged":
        splits = draw(st.sampled_from(["INT32", "INT64"]))
        return (
            f"""ragged_tensor {{ feature_path {{ step: "{name}" }}
            row_partition_dtype: {splits} }}""",
            st.lists(VALUES[kind], max_size=4),
        )
    default = f"default_value {{ {DEFAULTS[kind]} }}"
    return (
        f'dense_tensor {{ column_name: "{name}" shape {{ dim {{ size: 2 }} }} {default} }}',
        st.lists(VALUES[kind], min_size=2, max_size=2),
    )


def _list_of(draw: Any, name: str, kind: str) -> tuple[str, Any]:
    """Returns a representation of a feature of the sequence, and what fills it."""
    splits = draw(st.sampled_from(["", "row_partition_dtype: INT32"]))
    uniform = draw(st.sampled_from([0, 0, 2]))
    partition = f"partition {{ uniform_row_length: {uniform} }}" if uniform else ""
    values = st.lists(VALUES[kind], max_size=3)
    if uniform:
        values = values.map(lambda drawn: drawn * uniform)
    return (
        f"""ragged_tensor {{ feature_path {{ step: "##SEQUENCE##" step: "{name}" }}
        {partition} {splits} }}""",
        st.lists(values, max_size=4),
    )


@st.composite
def sequence_cases(draw: Any) -> Case:
    kinds = st.lists(st.sampled_from(["INT", "FLOAT", "BYTES"]), max_size=3)
    drawn = [
        {f"{letter}{number}": (kind, *make(draw, f"{letter}{number}", kind))
         for number, kind in enumerate(draw(kinds))}
        for letter, make in (("c", _context_of), ("s", _list_of))
    ]  # fmt: skip
    if not any(drawn):
        drawn[1] = {"s0": ("INT", *_list_of(draw, "s0", "INT"))}
    filled = [
        st.fixed_dictionaries({}, optional={name: fill for name, (_, _, fill) in each.items()})
        for each in drawn
    ]
    records = st.tuples(*filled).map(lambda parts: sequence_example(*parts))
    files = draw(st.lists(st.lists(records, max_size=9), min_size=1, max_size=3))
    described = [{name: (kind, text) for name, (kind, text, _) in e.items()} for e in drawn]
    options = drawn_options(draw, [name for each in drawn for name in each])
    return sequence_schema(*described), files, options


SESSIONS = sequence_schema(
    {
        "user": ("INT", 'dense_tensor { column_name: "user" shape {} }'),
        "tags": ("BYTES", 'varlen_sparse_tensor { column_name: "tags" }'),
    },
    {
        "item": ("INT", f"ragged_tensor {{ {_step('item')} }}"),
        "query": ("BYTES", f"ragged_tensor {{ {_step('query')} row_partition_dtype: INT32 }}"),
        "pair": (
            "FLOAT",
            f"ragged_tensor {{ {_step('pair')} partition {{ uniform_row_length: 2 }} }}",
        ),
    },
)


def test_sequence_examples_are_those_of_tfx(tmp_path: Path) -> None:
    check((SESSIONS, [sessions(0, 30), sessions(30, 37), []], OPTIONS), tfx_sequences, **SEQUENCES)


@pytest.mark.slow
@given(sequence_cases())
@SOME
def test_sequence_examples_are_those_of_tfx_in_many_cases(case: Case) -> None:
    check(case, tfx_sequences, **SEQUENCES)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (sequence_example({"user": 1}, {"item": [[1], [0.5]]}), "'item': expected int64_list"),
        (sequence_example({}, {"item": [[1]]}), "'user': expected 1 value"),
        (b"no proto", "expected a serialized tf.SequenceExample, found 8 bytes"),
    ],
)
def test_a_bad_sequence_example_is_named(tmp_path: Path, record: bytes, expected: str) -> None:
    good = sequence_example({"user": 1}, {"item": [[1], [2, 3]]})
    path = write(tmp_path / "data.gz", [good, good, record])
    with pytest.raises(DataError, match=f"record 2 .*{expected}"):
        make_dataset_factory(**SEQUENCES)(path, OPTIONS, SESSIONS)


@pytest.mark.parametrize(
    ("schema", "label", "expected"),
    [
        (None, None, "no schema"),
        (schema_of(), None, "TensorRepresentations are required"),
        (SESSIONS, "price", "label_key"),
    ],
)
def test_schemas_that_sequence_examples_cannot_be_read_by(
    schema: Any, label: str | None, expected: str
) -> None:
    factory = make_dataset_factory(**SEQUENCES)
    with pytest.raises(ConfigurationError, match=expected):
        factory("unread", OPTIONS._replace(label_key=label), schema)


# ---- Data views ----------------------------------------------------------------------------------


NESTED = f"""{SCHEMA}
    tensor_representation_group {{ key: "" value {{ tensor_representation {{ key: "visits" value {{
        ragged_tensor {{ feature_path {{ step: "clicks" }}
            partition {{ uniform_row_length: 1 }} row_partition_dtype: INT32 }} }} }} }} }}"""


class Decoder(tf_graph_record_decoder.TFGraphRecordDecoder):
    """The decoder of a data view: a function of a string tensor [records]."""

    def __init__(
        self, function: Callable[[tf.Tensor], dict[str, Any]], index: str | None = None
    ) -> None:
        self._function, self._index = function, index

    def decode_record(self, records: tf.Tensor) -> dict[str, Any]:
        return self._function(records)

    @property
    def record_index_tensor_name(self) -> str | None:
        return self._index


def saved(folder: Path | str, decoder: Decoder) -> str:
    """Saves a data view and returns its URI."""
    uri = str(Path(folder) / "view")
    tf_graph_record_decoder.save_decoder(decoder, uri)
    return uri


def view(uri: str) -> dict[str, str]:
    """Returns what tells the reader of a data view."""
    return {"payload_format": "FORMAT_PROTO", "data_view_uri": uri}


def tfx_view(uri: str) -> Callable[..., tf.data.Dataset]:
    def factory(pattern: Any, options: Any, schema: Any) -> tf.data.Dataset:
        record = record_to_tensor_tfxio.TFRecordToTensorTFXIO(pattern, uri, ["test"])
        return record.TensorFlowDataset(options)

    return factory


def parsed_by(schema: schema_pb2.Schema) -> Callable[[tf.Tensor], dict[str, Any]]:
    """Returns a decoder of tf.Examples."""
    parser = Parser.from_schema(schema, None)
    return lambda records: parser.element(parser.parse(records))


def check_view(case: Case, folder: Path) -> None:
    """Reads tf.Examples through a data view, so that there are tensors of all kinds."""
    uri = saved(folder, Decoder(parsed_by(case[0])))
    check(case, tfx_view(uri), **view(uri))


def test_tensors_of_a_data_view_are_those_of_tfx(tmp_path: Path) -> None:
    files = [numbered(0, 30), numbered(30, 37), []]
    check_view((schema_of(NESTED), files, OPTIONS._replace(label_key="id")), tmp_path)


@pytest.mark.slow
@given(cases())
@SOME
def test_tensors_of_a_data_view_are_those_of_tfx_in_many_cases(
    tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    check_view(case, tmp_path_factory.mktemp("view"))


def per_tag(records: tf.Tensor) -> dict[str, Any]:
    """A decoder that makes a row of each tag, of any number for a record."""
    tags = parsed_by(schema_of())(records)["tags"]
    rows = tf.RaggedTensor.from_row_lengths(
        tags.indices[:, :1][:, 0], tf.ones_like(tags.indices[:, 0])
    )
    return {"tag": tags.values, "record": rows}


def middle(records: tf.Tensor) -> dict[str, Any]:
    """A decoder whose rows depend on those beside them."""
    price = parsed_by(schema_of())(records)["price"]
    return {"price": price - tf.reduce_mean(price, axis=0)}


def wide(records: tf.Tensor) -> dict[str, Any]:
    """A decoder of lists that are wider than the longest of them."""
    clicks = parsed_by(schema_of())(records)["clicks"]
    return {"clicks": tf.sparse.reset_shape(clicks, [tf.size(records, tf.int64), 100])}


def late(records: tf.Tensor) -> dict[str, Any]:
    """A decoder that leaves rows out behind those that are looked at first."""
    parsed = parsed_by(schema_of())(records)
    return {"id": tf.boolean_mask(parsed["id"], parsed["id"] < 35)}


@pytest.mark.parametrize(
    ("function", "index", "expected"),
    [
        (parsed_by(schema_of()), None, "from memory"),
        (per_tag, "record", "any number of rows of a record"),
        (middle, None, "depends on those beside it"),
        (wide, None, "does not make a row of each record"),
        (late, None, "does not make a row of each record"),
    ],
)
def test_a_view_is_kept_in_columns_only_where_that_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, function: Any, index: Any, expected: str
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    uri = saved(tmp_path, Decoder(function, index))
    pattern = write_files(tmp_path / "data", [numbered(0, 40)])
    factory = make_dataset_factory(**view(uri))
    ours, theirs = factory(pattern, OPTIONS, None), tfx_view(uri)(pattern, OPTIONS, None)
    assert expected in caplog.text
    assert_same_elements(list(ours), list(theirs))


def test_a_view_that_draws_is_asked_anew_in_every_epoch(tmp_path: Path) -> None:
    tf.random.set_seed(None)  # or each iterator draws alike
    drawn = Decoder(lambda records: {"drawn": tf.random.uniform([tf.size(records)])})
    factory = make_dataset_factory(**view(saved(tmp_path, drawn)))
    dataset = factory(write_files(tmp_path / "data", [numbered(0, 8)]), OPTIONS, None)
    first, second = (next(iter(dataset))["drawn"].numpy().tolist() for _ in range(2))
    assert first != second


def test_a_record_that_a_view_cannot_decode_is_named(tmp_path: Path) -> None:
    uri = saved(tmp_path, Decoder(parsed_by(schema_of())))
    path = write(tmp_path / "data.gz", [*numbered(0, 3), b"no proto"])
    factory = make_dataset_factory(**view(uri))
    with pytest.raises(DataError, match=r"data\.gz, record 3"):
        factory(path, OPTIONS, None)
    with explain_read_errors(), pytest.raises(ConfigurationError, match="cannot use the data view"):
        make_dataset_factory(**view(path))(path, OPTIONS, None)


def test_a_view_in_a_graph_of_tensorflow_1_is_left_to_tfx(tmp_path: Path) -> None:
    uri = saved(tmp_path, Decoder(parsed_by(schema_of())))
    pattern = write_files(tmp_path / "data", [numbered(0, 8)])
    asked: list[str] = []

    def tfx(pattern: Any, options: Any, schema: Any) -> tf.data.Dataset:
        asked.append(pattern)
        return tfx_view(uri)(pattern, options, schema)

    factory = make_dataset_factory(tfx, **view(uri))
    with tf.Graph().as_default():
        factory(pattern, OPTIONS, None)
    assert asked == [pattern]


# ---- Parquet -------------------------------------------------------------------------------------


def test_tfx_reads_no_parquet_into_datasets() -> None:
    parquet = parquet_tfxio.ParquetTFXIO("unread", schema=schema_of())
    for read in (parquet.TensorFlowDataset, parquet.RecordBatches):
        with pytest.raises(NotImplementedError):
            read(OPTIONS)
