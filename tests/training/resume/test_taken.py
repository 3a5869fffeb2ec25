"""What is taken of variables and iterators is what they held at that moment, whatever follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer.training.resume._taken import TakenVariables, take_iterator


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
    taken = TakenVariables.of({"weights": variables})
    assert taken is not None
    write = taken.take("model")
    for variable in variables:
        change(variable)
    write(str(tmp_path))
    others = [tf.Variable(tf.zeros([3])) for _ in variables]
    read = tf.train.Checkpoint(weights=others).read(str(tmp_path / "model"))
    read.assert_consumed()
    assert [other.numpy().tolist() for other in others] == expected
    assert variables[1].numpy().tolist() != expected[1]


def test_other_objects_are_left_to_tensorflow() -> None:
    assert TakenVariables.of({"model": tf.Module()}) is None
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = tf.Variable(1.0)
    assert TakenVariables.of({"weights": [mirrored]}) is None


def test_iterators_may_go_on_before_they_are_written(tmp_path: Path) -> None:
    dataset = tf.data.Dataset.range(20).shuffle(5, seed=1).batch(2)
    iterator = iter(dataset)
    next(iterator)
    write = take_iterator(iterator, "reader")
    rest = [batch.numpy().tolist() for batch in iterator]
    write(str(tmp_path))
    other = iter(dataset)
    tf.train.Checkpoint(iterator=other).read(str(tmp_path / "reader")).assert_consumed()
    assert [batch.numpy().tolist() for batch in other] == rest
