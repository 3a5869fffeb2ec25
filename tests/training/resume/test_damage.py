"""A checkpoint that is damaged, in whatever byte, stands aside for the one before it."""

import json
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer import training
from generic_trainer.errors import TrainingError
from generic_trainer.training import CheckpointManager
from tests.training.resume.fits import fn_args, values

SEED = 0


def model() -> Any:
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def fit(directory: Path) -> Any:
    """Trains for 6 steps, and saves after the last of them and at the end."""
    x = tf.reshape(tf.range(12, dtype=tf.float32), [12, 1]) / 12
    batches = tf.data.Dataset.from_tensor_slices((x, 2 * x)).shuffle(12, seed=3).batch(4)
    trained = model()
    callbacks = training.resume_callbacks(fn_args(directory), every_steps=6)
    trained.fit(batches, epochs=2, verbose=0, callbacks=callbacks)
    return values(trained)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Returns the directory of the last two checkpoints of a fit, and the weights at its end."""
    directory = tmp_path_factory.mktemp("real")
    weights = fit(directory)
    return directory / "fit", weights


def flip(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice([1, 1, 3])):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, dice: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: dice.randrange(path.stat().st_size)])


def lose(path: Path, dice: random.Random) -> None:
    path.unlink()


def replace(path: Path, dice: random.Random) -> None:
    path.write_bytes(dice.choice([b"", b"{}", b"[]", b"null", b"[" * 200_000, b"\x00" * 99]))


def replace_by_another(path: Path, dice: random.Random) -> None:
    others = [each for each in path.parents[1].glob("step-*/*") if each.name != path.name]
    shutil.copy(dice.choice(others), path)


def replace_by_a_folder(path: Path, dice: random.Random) -> None:
    path.unlink()
    path.mkdir()


def change_the_manifest(path: Path, dice: random.Random) -> None:
    """Changes a value as somebody would who edits the file."""
    path = path.with_name("manifest")
    text, checksum = path.read_text(encoding="utf-8").split("\n")
    manifest = json.loads(text)
    place = dice.choice([manifest, manifest["metadata"], manifest["files"]])
    key = dice.choice(sorted(place))
    place[key] = dice.choice([None, 7, "x", [], {}, [1], {"steps": 1}])
    path.write_text(f"{json.dumps(manifest)}\n{checksum}", encoding="utf-8")


DAMAGES: list[Callable[[Path, random.Random], None]] = [
    *(flip, flip, truncate, lose),
    *(replace, replace_by_another, replace_by_a_folder, change_the_manifest),
]


def contents(directory: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in directory.iterdir() if each.is_file()}


@pytest.mark.parametrize("copies", [40, pytest.param(600, marks=pytest.mark.campaign("training"))])
def test_no_byte_of_a_checkpoint_can_change_unseen(
    checkpoints: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, copies: int
) -> None:
    original, _ = checkpoints
    older, newer = (original / name for name in ("step-000000000006.0", "step-000000000006.1"))
    assert {each.name for each in original.glob("step-*")} == {older.name, newer.name}
    dice = random.Random(SEED)
    skipped = 0
    for number in range(copies):
        copy = shutil.copytree(original, tmp_path / str(number))
        target = dice.choice(sorted((copy / newer.name).iterdir()))
        dice.choice(DAMAGES)(target, dice)
        is_damaged = contents(copy / newer.name) != contents(newer)
        caplog.clear()
        with CheckpointManager(str(copy)) as manager, caplog.at_level(logging.WARNING):
            saved = manager.latest()
        assert saved is not None
        expected = older if is_damaged else newer
        assert contents(Path(saved.path)) == contents(expected), f"seed {SEED}, number {number}"
        assert len(caplog.records) == is_damaged
        skipped += is_damaged
        shutil.rmtree(copy)
    assert skipped > 0.8 * copies


def test_a_fit_goes_on_from_the_checkpoint_before(
    checkpoints: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    original, weights = checkpoints
    copy = shutil.copytree(original, tmp_path / "fit")
    (copy / "step-000000000006.1" / "values.pickle").write_text("{}", encoding="utf-8")
    with caplog.at_level(logging.INFO):
        assert fit(tmp_path) == weights
    assert "values.pickle was altered" in caplog.text
    assert "Resuming in epoch 2 after 3 of its batches (6 steps in all)" in caplog.text


def test_a_checkpoint_of_another_release_is_refused(tmp_path: Path) -> None:
    with CheckpointManager(str(tmp_path / "fit")) as manager:
        manager.save(1, lambda directory: None, {"color": "red"})
    with pytest.raises(TrainingError, match=r"does not fit .*'color'.*to start afresh"):
        fit(tmp_path)
