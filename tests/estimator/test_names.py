"""The names of tf.estimator are there, and TensorFlow's own namespace is as it was."""

import importlib
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow

from generic_trainer import estimator
from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator import tf, v1

# Module → its names, from blocks "module:" and indented names.
TABLE = Path(__file__).with_name("names.txt").read_text()
NAMES = dict(re.findall(r"^([\w.]+):\n((?: +.*\n)+)", TABLE, re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    module = importlib.import_module(name)
    assert dir(module) == sorted(NAMES[name].split())
    assert [getattr(module, name) is not None for name in dir(module)].count(False) == 0


def test_the_first_api_has_the_same_names_and_its_own_classes() -> None:
    assert set(dir(estimator)) - set(dir(v1)) == {"tf", "tf1", "v1"}
    assert v1.DNNClassifier is not estimator.DNNClassifier
    assert v1.TrainSpec is estimator.TrainSpec


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Estimatr'"):
        _ = estimator.Estimatr


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        (estimator, "BoostedTreesClassifier", "tensorflow_decision_forests"),
        (estimator, "tpu", "tf.distribute.TPUStrategy"),
        (v1, "TPUEstimator", "tf.distribute.TPUStrategy"),
    ],
)
def test_what_is_gone_says_what_to_do(module: ModuleType, name: str, remedy: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"There is no {module.__name__}.{name}: .*{remedy}"
    ):
        getattr(module, name)


def test_tensorflow_with_estimators() -> None:
    assert tf.estimator is estimator
    assert tf.compat.v1.estimator is v1
    assert tf.compat.v2.estimator is estimator
    assert tf.constant is tensorflow.constant
    assert tf.compat.v1.train.AdamOptimizer is tensorflow.compat.v1.train.AdamOptimizer
    assert tf.compat is tf.compat
    assert {"estimator", "keras", "constant"} <= set(dir(tf))


def test_its_keras_is_keras_2() -> None:
    import tf_keras

    assert tf.keras.Model is tf_keras.Model
    assert tf.keras.optimizers.Adam is tf_keras.optimizers.legacy.Adam
    assert tf.optimizers.Adam is tf_keras.optimizers.legacy.Adam
    assert tf.keras.optimizers.legacy.Adam is tf_keras.optimizers.legacy.Adam
    assert tf.keras.optimizers.experimental.Adam is tf_keras.optimizers.experimental.Adam
    assert tf.losses.MeanSquaredError is tf_keras.losses.MeanSquaredError


def test_tensorflow_is_left_as_it_is() -> None:
    assert estimator.Estimator is not None
    assert not hasattr(tensorflow, "estimator")
    assert "tensorflow.python.distribute.estimator_training" not in sys.modules
    assert tensorflow.keras.__name__ == importlib.import_module("tensorflow").keras.__name__


def test_threads_get_the_same_classes() -> None:
    gate = threading.Barrier(4)

    def load(_: int) -> object:
        gate.wait()
        return estimator.experimental.RNNEstimator

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(load, range(4))] == [estimator.experimental.RNNEstimator] * 4
    finders = [finder for finder in sys.meta_path if type(finder).__module__.startswith("generic_")]
    assert len([f for f in finders if "estimator" in type(f).__module__]) == 1
