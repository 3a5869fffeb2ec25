"""Bad input: the error names file, record and feature, and says what to do."""

import gc
import pickle
import re
import weakref
import zlib
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer.data import count_examples, explain_read_errors, make_dataset_factory
from generic_trainer.errors import ConfigurationError, DataError, TrainingError
from tests.data.reading import dataset_of, numbered, options, schema_of, write, write_files
from tests.examples import example

GOOD: dict[str, Any] = {"id": 1, "price": [1.0, 2.0], "city": "Oslo"}


def read(pattern: str | list[str], path: str = "memory") -> None:
    for _ in dataset_of(pattern, path, batch_size=4):
        pass


def with_bad_record(directory: Path, record: bytes) -> str:
    """Two files; record 1500 of the second is bad."""
    rest = numbered(0, 1500)
    return write_files(directory, [numbered(0, 3), [*rest, record, *rest[:9]]])


def test_a_corrupt_record(tmp_path: Path) -> None:
    pattern = write_files(tmp_path, [numbered(0, 3), numbered(3, 2003)], suffix="")
    file = tmp_path / "data-00001"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(bytes(content))
    expected = (
        r"data-00001, record 1\d\d\d .*: cannot be read. Expected a TFRecord file, found: "
        "DataLossError: corr"
    )
    with pytest.raises(DataError, match=expected):
        read(pattern)
    with pytest.raises(DataError, match="data-00001: cannot be read while counting"):
        count_examples(pattern)


def test_a_shape_that_cannot_be(tmp_path: Path) -> None:
    path = write(tmp_path / "data", numbered(0, 3))
    schema = schema_of()
    for sizes in ([10**11], [10**8], [2**63 - 1, 0]):
        (price,) = (feature for feature in schema.feature if feature.name == "price")
        del price.shape.dim[:]
        for size in sizes:
            price.shape.dim.add().size = size
        with pytest.raises(DataError, match="feature 'price'"):
            make_dataset_factory()(path, options(), schema)
    schema = schema_of()
    schema.feature[0].shape.dim.add().size = -7  # tfx_bsl refuses it
    with pytest.raises(ConfigurationError, match="by the schema"):
        make_dataset_factory()(path, options(), schema)


@pytest.mark.parametrize(("path", "others"), [("disk", 0), ("memory", 40)])  # read together
def test_a_file_that_is_cut_off_between_two_records(path: str, others: int, tmp_path: Path) -> None:
    write_files(tmp_path / "others", [numbered(0, 3)] * others)
    content = Path(write(tmp_path / "data", numbered(0, 20))).read_bytes()
    (tmp_path / "data").unlink()
    compressor = zlib.compressobj(wbits=31)
    file = tmp_path / "data.gz"
    file.write_bytes(compressor.compress(content) + compressor.flush(zlib.Z_FULL_FLUSH))
    with pytest.raises(DataError, match=r"data.gz: cannot be read to the end"):
        read([str(tmp_path / "others" / "*")] * bool(others) + [str(file)], path)
    with pytest.raises(DataError, match=r"data.gz: cannot be read to the end"):
        count_examples(str(file))


@pytest.mark.parametrize(
    ("record", "features"),
    [
        (example(**{**GOOD, "tags": [1.5]}), {"tags": "expected bytes_list .*, found float_list"}),
        (example(**{**GOOD, "price": [1.0]}), {"price": r"expected 2 value\(s\) .*, found 1"}),
        (
            example(**{**GOOD, "id": 1.0, "city": []}),
            {"id": "expected int64_list", "city": r"expected 1 value\(s\) .*, found none"},
        ),
        (b"\xff\xff not a proto", {None: "expected a serialized tf.Example"}),
    ],
)
def test_an_error_has_path_record_and_feature(
    record: bytes, features: dict[str | None, str], tmp_path: Path
) -> None:
    pattern = with_bad_record(tmp_path, record)
    with pytest.raises(DataError) as caught:
        read(pattern)
    error = pickle.loads(pickle.dumps(caught.value))  # as it comes from a worker
    assert error.path == str(tmp_path / "data-00001.gz")
    assert error.record == 1500
    assert error.feature in features
    assert len(error.problems) == len(features)
    for name, problem in features.items():
        assert re.search(rf"feature '{name}': {problem}" if name else problem, str(error))


@pytest.mark.parametrize("name", ["data", "data.gz"])
def test_an_error_of_a_truncated_file_has_its_path(name: str, tmp_path: Path) -> None:
    path = Path(write(tmp_path / name, numbered(0, 500)))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=rf"{name}, record \d+ .*: cannot be read") as caught:
        read(str(path))
    assert (caught.value.path, caught.value.feature) == (str(path), None)
    assert caught.value.record == 499 or name == "data.gz"
    with pytest.raises(DataError) as caught:
        count_examples(str(path))
    assert (caught.value.path, caught.value.record) == (str(path), None)


SPARSE = """
    feature { name: "i" type: INT int_domain { min: 0 max: 9 } } feature { name: "v" type: FLOAT }
    feature { name: "j" type: INT int_domain { min: 0 max: 9 } }
    sparse_feature { name: "s" value_feature { name: "v" }
        index_feature { name: "i" } index_feature { name: "j" } }
"""
RAGGED = """
    feature { name: "v" type: FLOAT } feature { name: "i" type: INT }
    feature { name: "j" type: INT }
    tensor_representation_group { key: "" value { tensor_representation { key: "r" value {
        ragged_tensor { feature_path { step: "v" } %s } } } } }
"""
LENGTHS = RAGGED % 'partition { row_length: "i" }'
NESTED = RAGGED % 'partition { row_length: "j" } partition { row_length: "i" }'
PAIRS = RAGGED % "partition { uniform_row_length: 2 }"
PAIRS_OF_LISTS = RAGGED % 'partition { uniform_row_length: 2 } partition { row_length: "i" }'


# In the sample of the estimate, and behind it; rows are parsed before anything is stored.
@pytest.mark.parametrize(("path", "place"), [("memory", 3), ("disk", 1203)])
@pytest.mark.parametrize(
    ("schema", "good", "bad", "opposite", "problem"),
    [
        (SPARSE, (1, 1, 1), (2, 2, 1), (1, 1, 2), "2 indices and 1 value"),
        (SPARSE, (1, 1, 1), (1, 2, 1), (1, 0, 1), "an index in 'j' .* found 2 indices"),
        (LENGTHS, ([2], 0, 2), ([3], 0, 2), ([1], 0, 2), r"'i' whose sum is 2, .* found \[3\]"),
        (LENGTHS, ([2], 0, 2), ([3, -1], 0, 2), ([2], 0, 2), r"found \[3, -1\]"),
        (NESTED, ([1, 1], [2], 2), ([1, 1], [1], 2), ([1, 1], [3], 2), r"'j' .* found \[1\]"),
        (PAIRS, (0, 0, 2), (0, 0, 1), (0, 0, 3), "lists of 2 values, found 1 value"),
        (PAIRS_OF_LISTS, ([1, 1], 0, 2), ([2], 0, 2), ([1, 1, 0], 0, 2), "2 values, found 1 "),
    ],
)
def test_columns_of_a_tensor_that_do_not_fit_each_other(
    path: Any,
    schema: str,
    good: Any,
    bad: Any,
    opposite: Any,
    problem: str,
    place: int,
    tmp_path: Path,
) -> None:
    """In TensorFlow two such rows cancel out, and the values of those between them move."""
    made = [
        example(
            **{
                key: [1] * each if isinstance(each, int) else each
                for key, each in zip("ij", columns, strict=False)
            },
            v=[0.5] * columns[2],
        )
        for columns in (good, bad, opposite)
    ]
    records = [made[0]] * 1500
    records[place], records[place + 90] = made[1:]
    file = write(tmp_path / "data", records)
    with pytest.raises(DataError, match=rf"feature 'v': .*{problem}") as caught:
        make_dataset_factory(path=path)(file, options(batch_size=8), schema_of(schema))
    assert (caught.value.path, caught.value.record) == (file, place)


@pytest.mark.parametrize("place", [3, 1203])
@pytest.mark.parametrize("path", ["memory", "stream"])
def test_a_sparse_tensor_that_is_in_conflict_with_the_schema(
    path: Any, place: int, tmp_path: Path
) -> None:
    records = [example(i=[1], j=[1], v=[0.5])] * 1500
    records[place] = example(i=[1, 2], j=[1, 2], v=[0.5])
    file = write(tmp_path / "data", records)
    with pytest.raises(DataError, match=r"2 indices and 1 value") as caught, explain_read_errors():
        for _ in make_dataset_factory(path=path)(file, options(), schema_of(SPARSE)):
            pass
    assert (caught.value.path, caught.value.record) == (file, place)


def test_an_error_of_the_project_is_not_explained_by_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ConfigurationError("of the project")

    monkeypatch.setattr("generic_trainer.data._factory.load_columns", broken)
    with pytest.raises(ConfigurationError, match="of the project"):
        dataset_of(with_bad_record(tmp_path, b"no example"), "memory")


def test_missing_and_empty_files(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing*")
    with pytest.raises(DataError, match=r"No file matches '.*nothing\*'") as caught:
        read(nothing)
    assert caught.value.path == nothing
    pattern = write_files(tmp_path / "empty", [[], []])
    assert list(dataset_of(pattern)) == []
    assert count_examples(pattern) == 0
    write(tmp_path / "data.gz", numbered(0, 3))
    assert (
        count_examples([nothing, str(tmp_path / "data*")]) == 3
    )  # as with TFX, one pattern that matches is enough


def test_an_error_of_a_stream_is_explained_also_if_it_is_wrapped(tmp_path: Path) -> None:
    pattern = with_bad_record(tmp_path, example(**{**GOOD, "id": "one"}))
    with pytest.raises(DataError, match=r"record 1500 .* feature 'id'"), explain_read_errors():
        read(pattern, "stream")
    with pytest.raises(DataError, match="feature 'id'") as caught, explain_read_errors():
        try:
            read(pattern, "stream")
        except tf.errors.OpError as error:
            raise TrainingError("run_fn raised") from error
    assert isinstance(caught.value.__cause__, TrainingError)


@pytest.mark.parametrize("error", [tf.errors.OutOfRangeError, tf.errors.ResourceExhaustedError])
def test_an_error_that_no_record_can_cause_passes(
    error: type[tf.errors.OpError], tmp_path: Path
) -> None:
    pattern = with_bad_record(tmp_path, b"no example")
    with pytest.raises(error), explain_read_errors():
        dataset_of(pattern, "stream")
        raise error(None, None, "of the model")


def test_an_error_that_is_explained_lets_go_of_the_iterator(tmp_path: Path) -> None:
    pattern = with_bad_record(tmp_path, b"no example")
    gc.collect()
    gc.disable()
    try:
        raised = False
        try:
            with explain_read_errors():
                dataset = dataset_of(pattern, "stream", batch_size=4)
                iterator = iter(dataset)
                kept = weakref.ref(iterator)
                for _ in iterator:
                    pass
        except DataError:
            raised = True
        del iterator, dataset
        assert raised
        assert kept() is None
    finally:
        gc.enable()
