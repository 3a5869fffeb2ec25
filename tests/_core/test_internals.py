"""Every private name of another library is there, and its loss is told as that."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.internals import PrivateAttribute, PrivateName
from generic_trainer.errors import ConfigurationError

NAMES = {key: one for key, one in vars(internals).items() if isinstance(one, PrivateName)}
ATTRIBUTES = {key: one for key, one in vars(internals).items() if isinstance(one, PrivateAttribute)}


def in_tf(make: Callable[[], Any]) -> Callable[[Path], Any]:
    return lambda folder: make()


def operation() -> Any:
    with tf.Graph().as_default():
        return tf.constant(1).op


def seeded_context() -> Any:
    tf.random.set_seed(1)
    return internals.TF_EAGER_CONTEXT.get()()


def session_run_context() -> Any:
    return tf.compat.v1.train.SessionRunContext(original_args=None, session=None)


def keras_2(make: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda folder: make(importlib.import_module("tf_keras"))


def keras_3(make: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda folder: make(importlib.import_module("keras"))


def built_dropout(keras: Any) -> Any:
    layer = keras.layers.Dropout(0.5)
    layer.build((1,))
    return layer


def estimator(folder: Path) -> Any:
    from generic_trainer.estimator import Estimator

    return Estimator(lambda features, labels, mode: None, model_dir=str(folder))


def run_config(folder: Path) -> Any:
    from generic_trainer.estimator import RunConfig

    return RunConfig()


def example_record(folder: Path) -> Any:
    from tfx_bsl.tfxio import tf_example_record

    return tf_example_record.TFExampleRecord


def fanned_out(folder: Path) -> Any:
    import apache_beam as beam

    return beam.CombinePerKey(sum).with_hot_key_fanout(2)


def ray_trainer(folder: Path) -> Any:
    return internals.RAY_DATA_PARALLEL_TRAINER.get()


# Owner as an entry names it → an object that has the attributes, or their class where that has.
OWNERS: dict[str, Callable[[Path], Any]] = {
    "BaseRandomLayer": keras_2(built_dropout),
    "Callback": keras_2(lambda keras: keras.callbacks.Callback()),
    "CombinePerKey.with_hot_key_fanout": fanned_out,
    "DataParallelTrainer": ray_trainer,
    "Estimator": estimator,
    "Model": keras_2(lambda keras: keras.Sequential()),
    "RandomGenerator": keras_2(lambda keras: built_dropout(keras)._random_generator),
    "RunConfig": run_config,
    "TFExampleRecord": example_record,
    "TensorBoard": keras_3(lambda keras: keras.callbacks.TensorBoard()),
    "autograph.core.config": lambda folder: internals.TF_AUTOGRAPH_CONFIG.get(),
    "autograph.impl.conversion": lambda folder: internals.TF_AUTOGRAPH_CONVERSION.get(),
    "keras.Model": keras_3(lambda keras: keras.Sequential()),
    "keras.optimizers.legacy.Optimizer": keras_2(lambda keras: keras.optimizers.legacy.SGD()),
    "keras.optimizers.Optimizer": keras_3(lambda keras: keras.optimizers.SGD()),
    "keras.callbacks.MonitorCallback": keras_3(lambda keras: keras.callbacks.EarlyStopping()),
    "tf.Operation": in_tf(operation),
    "tf.compat.v1.Session": in_tf(lambda: tf.compat.v1.Session),
    "tf.compat.v1.train.SessionRunContext": in_tf(session_run_context),
    "tf.data.Dataset": in_tf(lambda: tf.data.Dataset.range(1).batch(1)),
    "tf.data.Iterator": in_tf(lambda: iter(tf.data.Dataset.range(1))),
    "tf.random.set_seed": in_tf(seeded_context),
    "tf_keras.Model": keras_2(lambda keras: keras.Sequential()),
    "worker_group": lambda folder: internals.RAY_WORKER_GROUP.get(),
}


def skip_without(entry: PrivateName | PrivateAttribute) -> None:
    """Skips where the library of an entry, such as Ray, is not installed."""
    package = entry.library.replace("-", "_")
    if package != "python" and importlib.util.find_spec(package) is None:
        pytest.skip(f"{entry.library} is not installed")


@pytest.mark.parametrize("key", sorted(NAMES))
def test_every_name_is_there(key: str) -> None:
    skip_without(NAMES[key])
    if key != "TF_GLOBAL_GENERATOR":  # which nobody may have made yet
        assert NAMES[key].get() is not None
    assert NAMES[key].purpose


@pytest.mark.parametrize("key", sorted(ATTRIBUTES))
def test_every_attribute_is_there(key: str, tmp_path: Path) -> None:
    entry = ATTRIBUTES[key]
    assert entry.owner in OWNERS, f"add to OWNERS how to make a {entry.owner}"
    skip_without(entry)
    entry.of(OWNERS[entry.owner](tmp_path))
    assert entry.purpose


@pytest.mark.parametrize(
    "path", ["tensorflow.python.gone", "tensorflow.python:gone", "tensorflow.python:eager.gone.far"]
)
def test_a_name_that_is_gone_is_told_with_library_and_version(path: str) -> None:
    expected = rf"tensorflow {tf.__version__} has no {path}, which .* needs for a test\. Install"
    with pytest.raises(ConfigurationError, match=expected):
        PrivateName("tensorflow", path, "a test").get()


def test_an_attribute_that_is_gone_is_told_with_library_and_version() -> None:
    gone = PrivateAttribute("tensorflow", "tf.Module", "_gone", "a test")
    module = tf.Module()
    for use in (lambda: gone.of(module), lambda: gone.set(module, 1)):
        with pytest.raises(ConfigurationError, match=r"tensorflow .* has no tf\.Module\._gone, "):
            use()
    assert not hasattr(module, "_gone")


def test_a_library_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no_such_library \(not installed\) has no"):
        PrivateName("no_such_library", "no_such_library:name", "a test").get()


def test_an_attribute_is_set() -> None:
    class Owner:
        _private = 1

    owner = Owner()
    PrivateAttribute("python", "Owner", "_private", "a test").set(owner, 2)
    assert owner._private == 2
