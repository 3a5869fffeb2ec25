"""Variables are read once, lent to both loaders, and are what the files hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._variables import _restoring
from tests.validation.models import ROWS, save, serving

WEIGHT = "w/.ATTRIBUTES/VARIABLE_VALUE"


def under_test(folder: Path) -> ModelUnderTest:
    return ModelUnderTest(folder, ServingContract(signatures=()), str(folder))


@pytest.fixture
def counting(tmp_path: Path) -> ModelUnderTest:
    """A model that returns its weights, and then adds to some of them in place."""

    def score(x: tf.Tensor) -> dict[str, tf.Tensor]:
        y = x @ w
        with tf.control_dependencies([y]):
            added = w.assign_add([[1.0], [1.0]])
        with tf.control_dependencies([added]):
            w.scatter_nd_update([[0]], [[7.0]])
        return {"y": y}

    w = tf.Variable([[1.0], [2.0]])
    module = serving(score, ROWS, w=w)
    return under_test(save(module, tmp_path / "model"))


def eagerly(model: ModelUnderTest) -> list[float]:
    scored = model.loaded.signatures["serving_default"](x=tf.eye(2))
    return scored["y"].numpy().ravel().tolist()


def in_session(model: ModelUnderTest) -> list[float]:
    signature = model.signatures["serving_default"]
    with session_of(model) as session:
        fed = {signature.inputs["x"].name: np.eye(2)}
        return session.run(signature.outputs["y"].name, fed).ravel().tolist()


@contextlib.contextmanager
def session_of(model: ModelUnderTest) -> Iterator[tf.compat.v1.Session]:
    with model.for_session() as folder, tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], folder)
        yield session


def test_both_loaders_take_what_has_been_read_and_calls_do_not_change_it(
    counting: ModelUnderTest,
) -> None:
    assert WEIGHT in counting.variables._tensors
    counting.variables._tensors[WEIGHT] = tf.constant([[3.0], [4.0]])
    assert eagerly(counting) == [3.0, 4.0]
    assert eagerly(counting) == [7.0, 5.0]
    assert in_session(counting) == [3.0, 4.0]
    # From now on they read the files themselves.
    assert eagerly(counting) == [1.0, 2.0]
    assert in_session(counting) == [1.0, 2.0]


def test_what_is_of_another_kind_than_asked_for_is_read_from_the_files(
    counting: ModelUnderTest,
) -> None:
    counting.variables._tensors[WEIGHT] = tf.constant([[3], [4]])
    assert eagerly(counting) == [1.0, 2.0]
    assert in_session(counting) == [1.0, 2.0]


def test_a_graph_that_restores_from_elsewhere_is_lent_nothing(counting: ModelUnderTest) -> None:
    nodes, meta_graph = counting.nodes, counting.meta_graph
    assert len(_restoring(meta_graph, nodes)) == 1
    (restore,) = [node for node in nodes if node.op == "RestoreV2" and node.when == "restored"]
    restore.proto.input[0] = restore.proto.input[1]  # a constant
    assert not _restoring(meta_graph, nodes)
