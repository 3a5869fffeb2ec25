"""Which strategy a process gets."""

import json
import socket
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer._core.cluster import Task
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import checked_on_several_workers, distributed, get_strategy
from generic_trainer.training.distributed import _agreement, _runtime
from tests.processes import tf_config, wait_until


def test_alone_and_in_a_cluster_of_one_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if len(tf.config.list_physical_devices("GPU")) > 1:
        pytest.skip("several GPUs have a strategy of their own")
    assert get_strategy() is tf.distribute.get_strategy()
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=1))
    assert get_strategy() is tf.distribute.get_strategy()


@pytest.mark.parametrize(
    "wrong",
    [
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}},
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}},
        {"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}},
    ],
    ids=["an index too many", "no task that trains", "an address twice"],
)
def test_a_cluster_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(wrong))
    with pytest.raises(ConfigurationError, match=r"TF_CONFIG.*(\'worker\'|worker 0, worker 1)"):
        distributed.rank()


def test_workers_that_nobody_has_started_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_runtime, "_ABSENT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as absent:
        absent.bind(("127.0.0.1", 0))  # and does not listen
        ports = [each.getsockname()[1] for each in (there, absent)]
        addresses = {Task("worker", i): f"127.0.0.1:{port}" for i, port in enumerate(ports)}
        with _runtime._absent_workers_named(addresses):
            assert wait_until(lambda: caplog.messages)
    assert f"nothing answers for worker 1 at 127.0.0.1:{ports[1]}." in caplog.messages[0]
    assert "worker 0" not in caplog.messages[0]


def test_alone_each_function_returns_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    variable = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = variable**2
    (gradient,) = distributed.average_gradients(tape, rows=5).gradient(loss, [variable])
    assert (distributed.rank(), distributed.size()) == (0, 1)
    assert float(gradient) == 6.0
    assert [float(each) for each in distributed.all_reduce([1.0, 2.0])] == [1.0, 2.0]
    assert float(distributed.broadcast(4.0)) == 4.0
    assert distributed.gather("all") == ["all"]
    assert not distributed.agree_to_stop(False)
    distributed.barrier()


def test_models_of_keras_2_are_compared_before_they_have_weights() -> None:
    keras = pytest.importorskip("tf_keras")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    params = {"epochs": 2, "steps": 3}
    facts = ["optimizer SGD", "epochs 2", "batches of an epoch 3", "steps_per_execution 1"]
    assert [*_agreement._facts(model, params)] == facts
    model.build((None, 1))
    assert "float32 (1, 1)" in next(_agreement._facts(model, params))


def test_a_server_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config("ps", chief=1, worker=1, ps=1))
    with pytest.raises(ConfigurationError, match=r"this process is ps 0\. Expected the chief"):
        get_strategy()


@pytest.mark.skipif(not hasattr(tf.keras, "__version__"), reason="Keras 2 can")
def test_fit_of_keras_3_is_refused_whatever_the_environment_says_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")  # as importing tensorflow_transform does

    class Model(tf.keras.Model):  # type: ignore[misc]
        distribute_strategy = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)

    with (
        checked_on_several_workers(),
        pytest.raises(ConfigurationError, match=r"Write strategy = training.get_strategy\(\)"),
    ):
        Model().fit()
