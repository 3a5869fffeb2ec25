"""Every variable of a checkpoint is read, and odd values are found."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.validation._model import read_variables
from tests.validation.conftest import Check
from tests.validation.models import ROWS, serving
from tests.validation.recipes import EVALUATED


def test_odd_and_damaged_variables_are_found(tmp_path: Path) -> None:
    prefix = tf.train.Checkpoint(
        good=tf.Variable(np.arange(1000.0)),
        nan=tf.Variable([1.0, np.nan, np.inf]),
        infinite=tf.Variable([np.inf], dtype=tf.bfloat16),
        word=tf.Variable(["word"]),
        number=tf.Variable([3]),
    ).write(str(tmp_path / "variables"))
    key = "{}/.ATTRIBUTES/VARIABLE_VALUE".format
    found = read_variables(tmp_path / "variables")
    assert (found.nan, found.infinite) == ([key("nan")], [key("infinite")])
    assert not found.unreadable

    (shard,) = tmp_path.glob("variables.data-*")
    content = bytearray(shard.read_bytes())
    content[content.index(np.arange(1000.0).tobytes())] ^= 1
    shard.write_bytes(content)
    assert list(read_variables(Path(prefix)).unreadable) == [key("good")]


@pytest.mark.parametrize(("kind", "status"), [("table", "warn"), ("variable", "fail")])
def test_nan_that_stands_for_an_unknown_mean(kind: str, status: str, check: Check) -> None:
    means = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    means.insert([0, 1], [0.5, np.nan])
    variable = tf.Variable([0.5, np.nan])

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        keys = tf.constant([0, 1], tf.int64)
        mean = means.lookup(keys) if kind == "table" else variable
        return {"y": x - tf.where(tf.math.is_nan(mean), 0.0, mean)}

    kept = {"means": means} if kind == "table" else {"variable": variable}
    report = check(serving(serve, ROWS, **kept), EVALUATED)
    result = report["variables_finite"]
    assert result.status == status, result
    assert ("severities" in result.remedy) == (status == "warn"), result
    assert report.passed == (status == "warn"), report.summary()


@pytest.mark.parametrize(
    ("place", "status"), [("idle", "warn"), ("used", "fail"), ("used, idle", "fail")]
)
def test_nan_in_one_of_two_variables_without_a_name(place: str, status: str, check: Check) -> None:
    both = {name: tf.Variable([np.nan if name in place else 1.0]) for name in ("idle", "used")}
    report = check(serving(lambda x: {"y": x * both["used"]}, ROWS, **both), EVALUATED)
    result = report["variables_finite"]
    assert result.status == status, result
    spoilt, _, idle = result.message.rpartition("NaN in")
    assert ("'used'" in spoilt + idle) == ("used" in place)
    assert ("'idle', which no signature reads" in idle) == ("idle" in place)


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
@pytest.mark.parametrize(("place", "status"), [("optimizer", "warn"), ("kernel", "fail")])
def test_nan_in_a_network_or_its_optimizer(
    name: str, place: str, status: str, check: Check
) -> None:
    """Keras 3 names each kernel alike."""
    keras: Any = pytest.importorskip(name)
    network = keras.Sequential([keras.Input([2]), keras.layers.Dense(3), keras.layers.Dense(1)])
    network.compile("adam", "mse")
    network.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)
    moments = network.optimizer.variables
    moments = moments() if callable(moments) else moments
    variables = moments if place == "optimizer" else network.trainable_variables
    kernels = [variable for variable in variables if len(variable.shape) == 2]
    kernels[-1].assign(np.full(kernels[-1].shape, np.nan))
    every = (*network.variables, *moments)
    tracked = [v if isinstance(v, tf.Variable) else v.value for v in every]
    module = serving(lambda x: {"y": network(x)}, ROWS, tracked=tracked)
    assert check(module, EVALUATED)["variables_finite"].status == status


def test_a_model_kept_inside_another_may_have_other_shards(
    check: Check, good_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(good_model, tmp_path / "model"))
    shutil.copytree(good_model, folder / "assets.extra" / "kept")
    shard = folder / "assets.extra/kept/variables/variables.data-00000-of-00001"
    shard.rename(shard.with_name("variables.data-00000-of-00002"))
    result = check(folder)["leftovers"]
    assert result.status == "pass", result
