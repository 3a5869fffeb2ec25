"""What is taken of variables and iterators is what they held at that moment, whatever follows."""

import dataclasses
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras

from generic_trainer.training.resume import _reader
from generic_trainer.training.resume._reader import is_of_python, move_to, take_position
from generic_trainer.training.resume._state import (
    attributes_of,
    read_variables,
    set_attributes,
    taken,
    tensors_in,
    variables_of,
    write_tensors,
)
from generic_trainer.training.resume._unsaved_attributes import UnsavedAttributes
from tests.training.resume.fits import ones


def dense(variable: tf.Variable) -> None:
    tf.raw_ops.ResourceApplyGradientDescent(
        var=variable.handle, alpha=1.0, delta=tf.ones_like(variable)
    )


def sparse(variable: tf.Variable) -> None:
    variable.scatter_sub(tf.IndexedSlices(tf.ones([1]), [0]))


CHANGES: dict[str, Callable[[tf.Variable], Any]] = {
    "assigned": lambda variable: variable.assign_sub(tf.ones_like(variable)),
    "dense": dense,
    "sparse": sparse,
    "in a function": tf.function(dense),
    "compiled": tf.function(lambda variable: variable.assign_sub([1.0] * 3), jit_compile=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_variables_may_change_before_they_are_written(
    change: Callable[[tf.Variable], Any], tmp_path: Path
) -> None:
    variables = [tf.Variable([1.0, 2.0, 3.0]) for _ in range(2)]
    change(variables[0])  # some ops have variables read otherwise from then on
    expected = [variable.numpy().tolist() for variable in variables]
    values = taken({"a": variables[0], "b": variables[1]})
    for variable in variables:
        change(variable)
    write_tensors(str(tmp_path / "model"), values)
    others = [tf.Variable(tf.zeros([3])) for _ in variables]
    read_variables(str(tmp_path / "model"), {"a": others[0], "b": others[1]})
    assert [other.numpy().tolist() for other in others] == expected
    assert variables[1].numpy().tolist() != expected[1]


def test_tables_and_variables_of_several_replicas_are_taken(tmp_path: Path) -> None:
    def parts() -> dict[str, Any]:
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            mirrored = tf.Variable([0.0, 0.0])
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        table.insert(["stale"], [7])
        return {"weights/mirrored": mirrored, "tables/words": table}

    first, other = parts(), parts()
    first["weights/mirrored"].assign([1.0, 2.0])
    first["tables/words"].remove(tf.constant(["stale"]))
    first["tables/words"].insert(["a", "b"], [1, 2])
    write_tensors(str(tmp_path / "model"), taken(first))
    assert read_variables(str(tmp_path / "model"), other) == (set(), set())
    assert other["weights/mirrored"].numpy().tolist() == [1.0, 2.0]
    found = other["tables/words"].lookup(tf.constant(["a", "b", "stale"]))
    assert found.numpy().tolist() == [1, 2, -1]


def test_dense_tables_may_change_before_they_are_written(tmp_path: Path) -> None:
    first, other = (
        tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, -2, -3, initial_num_buckets=4)
        for _ in range(2)
    )
    keys = tf.constant([1, 2, 7], tf.int64)
    first.insert(keys[:2], keys[:2])
    other.insert(keys[1:], keys[1:] * 10)
    values = taken({"table": first})
    first.insert(keys[:1], keys[2:])
    write_tensors(str(tmp_path / "model"), values)
    assert read_variables(str(tmp_path / "model"), {"table": other}) == (set(), set())
    assert other.lookup(keys).numpy().tolist() == [1, 2, -1]


def test_iterators_may_go_on_before_they_are_written(tmp_path: Path) -> None:
    dataset = tf.data.Dataset.range(20).shuffle(5, seed=1).batch(2)
    iterator = iter(dataset)
    next(iterator)
    state = take_position(iterator, 1, 1, is_last=True)
    rest = [batch.numpy().tolist() for batch in iterator]
    write_tensors(tensors_in(str(tmp_path)), state)
    other = iter(dataset)
    move_to(other, str(tmp_path), 1)
    assert [batch.numpy().tolist() for batch in other] == rest


@pytest.mark.parametrize("prefetched", [0, 9])
@pytest.mark.parametrize("batches", [1, 3, 4])
@pytest.mark.parametrize("kind", ["shuffle", "two shuffles", "numbers", "repeated"])
def test_passes_after_the_restored_one_are_shuffled_as_without_it(
    tmp_path: Path, kind: str, batches: int, prefetched: int
) -> None:
    def passes() -> tf.data.Dataset:
        rows = tf.data.Dataset.range(12).shuffle(12, seed=3)
        if kind == "two shuffles":
            rows = rows.concatenate(rows.shuffle(12, seed=4)).take(12)
        elif kind == "numbers":
            seeds = tf.data.Dataset.random(seed=3, rerandomize_each_iteration=True).take(1)
            numbers = seeds.flat_map(lambda seed: tf.data.Dataset.from_tensors(seed).repeat())
            rows = tf.data.Dataset.zip((rows, numbers)).map(lambda row, number: row + number)
        elif kind == "repeated":
            rows = rows.repeat()
        return rows.batch(3).prefetch(prefetched)

    def after(dataset: tf.data.Dataset, iterator: Any) -> list[Any]:
        # An endless pass reads ahead, and draws seeds meanwhile: passes beside it may differ.
        rests = (iterator, *(iter(dataset) for _ in range(2 * (kind != "repeated"))))
        return [[batch.numpy().tolist() for batch in itertools.islice(rest, 9)] for rest in rests]

    undisturbed, resumed = passes(), passes()
    iterator, replayed = iter(undisturbed), iter(resumed)
    for _ in range(batches):
        next(iterator)
    next(replayed)
    time.sleep(0.05)  # for what is prefetched
    state = take_position(iterator, batches, batches, is_last=True)
    write_tensors(tensors_in(str(tmp_path)), state)
    move_to(replayed, str(tmp_path), batches - 1)
    assert after(resumed, replayed) == after(undisturbed, iterator)


def test_variables_that_only_an_operation_of_a_model_holds_are_found() -> None:
    inputs, held = tf_keras.Input([3]), tf.Variable([2.0, 2.0, 2.0])
    model = tf_keras.Model(inputs, tf.multiply(inputs, held))
    assert any(variable is held for variable in variables_of(model).values())
    inputs, held = keras.Input([3]), keras.Variable([2.0, 2.0, 2.0])
    model = keras.Model(inputs, keras.ops.multiply(inputs, held))
    assert any(variable is held.value for variable in variables_of(model).values())


@dataclasses.dataclass
class WithAttributes:
    held: Any


@dataclasses.dataclass(slots=True)
class WithSlots:
    held: Any
    unset: Any = dataclasses.field(init=False)


class WithBoth(WithSlots):
    pass


class WithPrivateSlot:
    __slots__ = ("__held",)

    def __init__(self, held: Any) -> None:
        self.__held = held


@pytest.mark.parametrize("kind", [WithAttributes, WithSlots, WithBoth, WithPrivateSlot])
def test_variables_of_objects_are_found_wherever_these_keep_their_attributes(kind: Any) -> None:
    held = tf.Variable(1.0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.part = [kind(held)]
    assert any(variable is held for variable in variables_of(model).values())


def test_arrays_are_not_copied_in_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow copies them into the graph of a dataset, which says who makes the data."""
    rows = tf.data.Dataset.from_tensor_slices(tf.zeros([1000, 1000])).batch(10)
    assert not is_of_python(rows)
    assert _reader._graph(iter(rows)).ByteSize() < 10_000
    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", None)
    assert not any(map(is_of_python, [rows, iter(rows), iter(rows)]))


@pytest.mark.parametrize("passes", [1, None])
@pytest.mark.parametrize("within", [False, True])
def test_a_snapshot_that_is_being_written_is_not_disturbed(
    within: bool, passes: int | None, tmp_path: Path
) -> None:
    """TensorFlow writes files that it cannot read, if the state of their iterator is taken."""
    rows = tf.data.Dataset.range(64)
    if within:
        one = tf.data.Dataset.from_tensors(0)
        rows = one.flat_map(lambda _: tf.data.Dataset.range(64).snapshot(str(tmp_path)))
    else:
        rows = rows.snapshot(str(tmp_path))
    iterator = iter(rows.repeat(passes).shuffle(1).batch(4).prefetch(1))
    for batch in range(1, 17):
        next(iterator)
        assert take_position(iterator, batch, batch, is_last=True) == {}
    assert next(iterator, None) is None or passes is None
    assert [*rows.as_numpy_iterator()] == [*range(64)]


@pytest.mark.parametrize("kind", [WithAttributes, WithSlots, WithBoth, WithPrivateSlot])
def test_numbers_of_objects_are_restored_wherever_these_keep_their_attributes(kind: Any) -> None:
    first, second = (keras.Sequential([keras.layers.Dense(1)]) for _ in range(2))
    first.part, second.part = [kind(1.0)], [kind(2.0)]
    numbers = attributes_of(first)
    path = next(path for path in numbers if path.startswith(".part.") and path.endswith("held"))
    assert attributes_of(second)[path] == 2.0
    set_attributes(second, numbers)
    assert attributes_of(second)[path] == 1.0


def counting(keras: Any) -> Any:
    """Returns a model with a metric that counts in Python, and keeps a tensor and a list."""

    class Counting(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="counting")
            self.count, self.rows = 0, list[int]()

        def update_state(self, truth: Any, predicted: Any, sample_weight: Any = None) -> None:
            self.count += 1
            self.rows.append(self.count)

        def result(self) -> Any:
            return tf.constant(float(self.count))

        def reset_state(self) -> None:
            self.count = 0

    class Averaging(keras.Sequential):
        average = 0.0

        def train_step(self, data: Any) -> Any:
            self.average = tf.constant(0.5) + self.average
            return super().train_step(data)

    model = Averaging([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Counting()], run_eagerly=True)
    model.fit(ones(2), verbose=0)
    return model


def test_numbers_of_metrics_are_restored_and_other_attributes_that_change_are_named(
    keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = counting(keras), counting(keras)
    second.fit(ones(3), verbose=0)
    set_attributes(second, attributes_of(first))
    assert attributes_of(second) == attributes_of(first)
    counts = [value for path, value in attributes_of(second).items() if path.endswith(".count")]
    assert counts == [2]
    unsaved = UnsavedAttributes(first)
    unsaved.begin()
    unsaved.log()
    assert not caplog.text
    first.fit(ones(2), verbose=0)
    unsaved.log()
    assert [name in caplog.text for name in (".rows", "average", ".count")] == [True, True, False]
