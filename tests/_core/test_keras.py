"""Keras 2 and Keras 3 in one process."""

import importlib
import sys
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer._core.keras import is_keras_3, same_keras
from tests.house import run_python


@pytest.mark.parametrize(("package", "is_3"), [("keras", True), ("tf_keras", False)])
def test_objects_tell_which_keras_they_are_of(package: str, is_3: bool) -> None:
    keras: Any = importlib.import_module(package)

    class Subclassed(keras.Model):
        pass

    objects = [keras.Sequential(), Subclassed(), keras.layers.Dense(1), keras.optimizers.Adam()]
    objects.append(keras.callbacks.EarlyStopping())
    assert [is_keras_3(each) for each in objects] == [is_3] * len(objects)


def test_other_processes_are_told_what_tf_keras_is_and_not_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    legacy = str(int(not is_keras_3()))
    for value in ("0", "1"):
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", value)
        assert same_keras() == {"TF_USE_LEGACY_KERAS": legacy}
    monkeypatch.setattr(tf, "keras", importlib.import_module("tf_keras"))
    assert same_keras() == {"TF_USE_LEGACY_KERAS": "1"}
    monkeypatch.delitem(sys.modules, "tensorflow")
    assert same_keras() == {}


ASK_EACH_TIME = """
import os
from generic_trainer._core.keras import legacy_setting
answers = [legacy_setting({})]
import tensorflow as tf
for value in ("0", "1", "0"):  # a module that is imported now may still set it
    os.environ["TF_USE_LEGACY_KERAS"] = value
    answers += [legacy_setting({}), legacy_setting({"TF_USE_LEGACY_KERAS": "true"})]
os.environ["TF_USE_LEGACY_KERAS"] = "1"
tf.keras.layers
os.environ["TF_USE_LEGACY_KERAS"] = "0"
print(*answers, legacy_setting({}))
"""


def test_the_setting_of_keras_is_told_without_deciding_it() -> None:
    told = run_python("-c", ASK_EACH_TIME, TF_USE_LEGACY_KERAS="1").stdout.split()
    assert told == ["1", "0", "1", "1", "1", "0", "1", "1"]
