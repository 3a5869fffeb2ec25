"""Every variable of a checkpoint is read, and odd values are found."""

import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

from generic_trainer.validation._model import read_variables
from tests.validation.conftest import Check


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


def test_a_model_kept_inside_another_may_have_other_shards(
    check: Check, good_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(good_model, tmp_path / "model"))
    shutil.copytree(good_model, folder / "assets.extra" / "kept")
    shard = folder / "assets.extra/kept/variables/variables.data-00000-of-00001"
    shard.rename(shard.with_name("variables.data-00000-of-00002"))
    result = check(folder)["leftovers"]
    assert result.status == "pass", result
