"""Which strategy a process gets."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training import get_strategy, keras_3_on_one_worker_only


def cluster(monkeypatch: pytest.MonkeyPatch, task: str, **tasks: int) -> None:
    """Sets a TF_CONFIG with so many tasks of each type, in which this process is task 0."""
    hosts: dict[str, Any] = {
        name: [f"localhost:{9000 + number}" for number in range(count)]
        for name, count in tasks.items()
    }
    config = {"cluster": hosts, "task": {"type": task, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_alone_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert not tf.config.list_physical_devices("GPU")
    assert get_strategy() is tf.distribute.get_strategy()


def test_so_it_is_in_a_cluster_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, "worker", worker=1)
    assert get_strategy() is tf.distribute.get_strategy()


@pytest.mark.skipif(not hasattr(tf.keras, "__version__"), reason="Keras 2 can")
def test_keras_3_on_several_workers_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster(monkeypatch, "worker", worker=2)
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    with pytest.raises(ConfigurationError, match=r"Keras 3.*TF_USE_LEGACY_KERAS=1 before"):
        get_strategy()


def test_a_server_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, "ps", chief=1, worker=1, ps=1)
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
        keras_3_on_one_worker_only(),
        pytest.raises(ConfigurationError, match="cannot train on several workers"),
    ):
        Model().fit()
