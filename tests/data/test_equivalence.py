"""Whatever schema, records and options: the reader delivers what TFX's delivers."""

import collections
import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from google.protobuf import text_format
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from generic_trainer.data import make_dataset_factory
from generic_trainer.data._cache import DIRECTORY_VARIABLE, OFF
from tests.data.reading import assert_same_elements, rows, tfx_dataset, write_files
from tests.examples import example

# Path, and where columns are cached: the second one in memory maps what the first has parsed.
READS = [("memory", "{}/cache"), ("memory", "{}/cache"), ("disk", OFF), ("stream", OFF)]
VALUES = {
    "INT": st.integers(-(2**63), 2**63 - 1),
    "FLOAT": st.floats(width=32),
    "BYTES": st.one_of(
        st.binary(max_size=6),
        st.text(max_size=6).map(str.encode),
        st.sampled_from([b"", b"cash", b"credit card"]),  # repeats: a vocabulary is worth it
    ),
}
DEFAULTS = {"INT": "int_value: -7", "FLOAT": "float_value: 0.5", "BYTES": 'bytes_value: "none"'}

SPARSE = 'sparse_feature { name: "s" index_feature { name: "i" } value_feature { name: "v" } }'
LIST = """tensor_representation_group { key: "" value { tensor_representation {
    key: "list" value { varlen_sparse_tensor { column_name: "v" } } } } }"""

# In no order, and one begins another: a model may join the values in their order.
NAMES = ["z", "f1", "f", "a", "B"]

Case = tuple[schema_pb2.Schema, list[list[bytes]], TensorFlowDatasetOptions]


class Drawn(NamedTuple):
    """A feature of the schema: how it is declared, and how it is filled."""

    name: str
    declared: str
    represented: str
    filled: Any


def _declared(name: str, kind: str, rest: str = "") -> str:
    return f'feature {{ name: "{name}" type: {kind} {rest} }}'


def _dims(shape: list[int]) -> str:
    return "shape {" + " ".join(f"dim {{ size: {size} }}" for size in shape) + "}"


def _dense(draw: Any, name: str, kind: str) -> Drawn:
    shape = draw(st.sampled_from([[], [1], [3], [2, 2]]))
    size = math.prod(shape)
    values = st.lists(VALUES[kind], min_size=size, max_size=size).map(lambda drawn: {name: drawn})
    if draw(st.booleans()):
        declared = _declared(name, kind, f"presence {{ min_fraction: 1.0 }} {_dims(shape)}")
        return Drawn(name, declared, "", values)
    represented = f"""dense_tensor {{
        column_name: "{name}" {_dims(shape)} default_value {{ {DEFAULTS[kind]} }} }}"""
    return Drawn(name, _declared(name, kind), represented, st.one_of(st.just({}), values))


def _varlen(draw: Any, name: str, kind: str, represented: str = "") -> Drawn:
    values = st.lists(VALUES[kind], max_size=4).map(lambda drawn: {name: drawn})
    return Drawn(name, _declared(name, kind), represented, st.one_of(st.just({}), values))


def _ragged(draw: Any, name: str, kind: str) -> Drawn:
    splits = draw(st.sampled_from(["", "row_partition_dtype: INT32", "row_partition_dtype: INT64"]))
    represented = f'ragged_tensor {{ feature_path {{ step: "{name}" }} {splits} }}'
    return _varlen(draw, name, kind, represented)


def _nested(draw: Any, name: str, kind: str) -> Drawn:
    uniform = draw(st.sampled_from([0, 2]))
    lengths = f"{name}_lengths"
    inner = f"partition {{ uniform_row_length: {uniform} }}" if uniform else ""
    represented = f"""ragged_tensor {{ feature_path {{ step: "{name}" }}
        partition {{ row_length: "{lengths}" }} {inner} }}"""

    def filled(drawn: list[list[Any]]) -> dict[str, Any]:
        flat = [value for row in drawn for value in row * (uniform or 1)]
        return {name: flat, lengths: [len(row) for row in drawn]}

    values = st.lists(st.lists(VALUES[kind], max_size=3), max_size=3).map(filled)
    declared = _declared(name, kind) + _declared(lengths, "INT")
    return Drawn(name, declared, represented, values)


def _sparse(draw: Any, name: str, kind: str) -> Drawn:
    rank = draw(st.sampled_from([1, 2]))
    indices = [f"{name}_index_{place}" for place in range(rank)]
    columns = " ".join(f'index_column_names: "{index}"' for index in indices)
    dims = " ".join("dim { size: 5 }" for _ in indices)
    represented = f"""sparse_tensor {{ {columns} value_column_name: "{name}"
        dense_shape {{ {dims} }} }}"""

    def filled(drawn: list[tuple[Any, ...]]) -> dict[str, Any]:
        columns = list(zip(*drawn, strict=True)) or [()] * (rank + 1)
        return {key: list(each) for key, each in zip([*indices, name], columns, strict=True)}

    place = st.integers(0, 4)
    entry = st.tuples(*[place] * rank, VALUES[kind])
    values = st.lists(entry, max_size=4, unique_by=_place).map(filled)
    declared = _declared(name, kind) + "".join(_declared(index, "INT") for index in indices)
    return Drawn(name, declared, represented, values)


def _place(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    return entry[:-1]


@st.composite
def cases(draw: Any) -> Case:
    makers = st.sampled_from([_dense, _dense, _varlen, _ragged, _nested, _sparse])
    kind = st.tuples(makers, st.sampled_from(["INT", "FLOAT", "BYTES"]))
    kinds = draw(st.lists(kind, min_size=1, max_size=5))
    features = [make(draw, name, kind) for name, (make, kind) in zip(NAMES, kinds, strict=False)]
    unknown = st.one_of(st.just({}), VALUES["BYTES"].map(lambda value: {"not in schema": value}))
    record = st.tuples(unknown, *(feature.filled for feature in features)).map(
        lambda parts: example(**{key: value for part in parts for key, value in part.items()})
    )
    files = draw(st.lists(st.lists(record, max_size=9), min_size=1, max_size=3))
    return _schema(features), files, drawn_options(draw, [each.name for each in features])


def _schema(features: list[Drawn]) -> schema_pb2.Schema:
    groups = "".join(
        f'tensor_representation {{ key: "{each.name}" value {{ {each.represented} }} }}'
        for each in features
        if each.represented
    )
    group = f'tensor_representation_group {{ key: "" value {{ {groups} }} }}' if groups else ""
    text = "".join(each.declared for each in features) + group
    return text_format.Parse(text, schema_pb2.Schema())


def drawn_options(draw: Any, names: list[str]) -> TensorFlowDatasetOptions:
    """Draws options of an unshuffled dataset; its label, if it has one, is the first name."""
    threads = st.sampled_from([tf.data.AUTOTUNE, 1, 2])
    return TensorFlowDatasetOptions(
        batch_size=draw(st.integers(1, 12)),
        drop_final_batch=draw(st.booleans()),
        num_epochs=draw(st.sampled_from([1, 2, 3, None])),
        shuffle=False,
        reader_num_threads=draw(threads),
        parser_num_threads=draw(threads),
        prefetch_buffer_size=draw(threads),
        label_key=draw(st.sampled_from([None, names[0]])),
    )


def check(case: Case) -> None:
    """Compares all reads of a case with the elements of TFX's factory."""
    schema, files, options = case
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as context:
        pattern = write_files(Path(directory, "data"), files)
        theirs = tfx_dataset(pattern, options, schema)
        expected = list(theirs.take(5))
        counts_all = any(files) and options.num_epochs and not options.drop_final_batch
        expected_rows = _counted(theirs) if counts_all else None
        for path, cache in READS:
            context.setenv(DIRECTORY_VARIABLE, cache.format(directory))
            factory = make_dataset_factory(path=path, cache_dir=directory)
            ours = factory(pattern, options, schema)
            assert ours.element_spec == theirs.element_spec, path
            assert _order_of(ours) == _order_of(theirs), path
            assert_same_elements(list(ours.take(5)), expected)
            if counts_all:
                shuffled = factory(pattern, options._replace(shuffle=True), schema)
                assert _counted(shuffled) == expected_rows, path


def _order_of(dataset: tf.data.Dataset) -> list[str]:
    """Returns the names of the features of an element, in the order that functions see."""
    seen: list[str] = []
    dataset.take(1).map(lambda features, *label: seen.extend(features) or 0)
    return seen


@pytest.mark.parametrize(
    "tensors",
    [
        _declared("i", "INT") + SPARSE,
        _declared("i", "INT", f"int_domain {{ min: 0 max: {2**62} }}") + SPARSE,
        _declared("i", "INT", "int_domain { min: 0 max: 9 }") + SPARSE + LIST,
        _declared("none", "FLOAT", f"presence {{ min_fraction: 1.0 }} {_dims([0])}"),
    ],
)
def test_tensors_that_columns_cannot_hold(tensors: str) -> None:
    schema = text_format.Parse(_declared("v", "FLOAT") + tensors, schema_pb2.Schema())
    none = tf.train.Features(feature={"none": tf.train.Feature(float_list={})})
    empty = tf.train.Example(features=none).SerializeToString()
    records = [example(v=[1.0, 2.0], i=[number, 0]) + empty for number in range(5)]
    check((schema, [records], TensorFlowDatasetOptions(2, num_epochs=1, shuffle=False)))


@pytest.mark.parametrize(
    ("is_sorted", "i", "j", "largest"),
    [
        (False, [1, 1], [2, 2], 4),
        (True, [2, 1], [0, 0], 4),
        (False, [9, 1], [0, 0], 4),
        (False, [0, 0], [-1, 0], 4),
        (False, [1, 1], [2, 2], 2**31),
    ],
    ids=["repeated", "unsorted", "outside", "negative", "of more places than int64 has"],
)
def test_sparse_tensors_that_columns_cannot_hold(
    is_sorted: bool, i: Any, j: Any, largest: int
) -> None:
    sparse = f"""sparse_feature {{ name: "s" index_feature {{ name: "i" }}
        index_feature {{ name: "j" }} value_feature {{ name: "v" }}
        is_sorted: {str(is_sorted).lower()} }}"""
    domain = f"int_domain {{ min: 0 max: {largest} }}"
    declared = _declared("v", "FLOAT") + _declared("i", "INT", domain)
    schema = text_format.Parse(
        declared + _declared("j", "INT", domain) + sparse, schema_pb2.Schema()
    )
    records = [example(v=[number, 0.5], i=[1, 2], j=[3, 0]) for number in map(float, range(1500))]
    records[1203] = example(v=[1.0, 1.0], i=i, j=j)  # TFX sorts equal places in any order
    check((schema, [records], TensorFlowDatasetOptions(300, num_epochs=1, shuffle=False)))


def _counted(dataset: tf.data.Dataset) -> collections.Counter[str]:
    return collections.Counter(repr(row) for element in dataset for row in rows(element))


EVERY_CASE = settings(
    deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


@given(cases())
@settings(EVERY_CASE, max_examples=4, derandomize=True)
def test_elements_are_those_of_tfx(case: Any) -> None:
    check(case)


@pytest.mark.campaign("data")
@given(cases())
@settings(EVERY_CASE, max_examples=45)
def test_elements_are_those_of_tfx_in_many_cases(case: Any) -> None:
    check(case)
