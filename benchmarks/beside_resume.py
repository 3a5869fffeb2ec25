"""Exactness of a resume, beside what Keras and TensorFlow offer: kills at random moments.

    python -m benchmarks.beside_resume [--kills 40] [--seed 1] [--only PEER ...]

One small model: shuffled rows, Dropout, Adam, and callbacks with a state of their own
(EarlyStopping, ReduceLROnPlateau, a schedule of learning rates). Each peer trains it once without
a kill. Then a process that trains it is killed by SIGKILL after a random time, and a second process
goes on, each as the peer's own documentation recommends. Printed is a table of how many of the
ends equal the one without a kill, bit by bit: all weights, the optimizer, the random generators,
the best values so far, the learning rate; and how often rows were seen too often or too seldom by
the weights at the end. Steps that were lost with a kill and done again count once.
"""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_ROWS, _BATCH, _EPOCHS, _EVERY_STEPS = 240, 8, 6, 20
_STEP_S = 0.01
_COLUMNS = "weights", "optimizer", "generators", "best", "rate"


def _data(tf: Any, *, shuffled: bool = True, endless: bool = False) -> Any:
    """Returns batches of (number of the row, features, label)."""
    numbers = tf.range(_ROWS)
    x = tf.random.stateless_normal([_ROWS, 8], [1, 2])
    rows = tf.data.Dataset.from_tensor_slices((numbers, x, tf.sin(x[:, :1] * 3)))
    rows = rows.shuffle(_ROWS, seed=3) if shuffled else rows
    return (rows.repeat() if endless else rows).batch(_BATCH)


def _model(keras: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input([8]),
            layers.Dense(32, "relu"),
            layers.Dropout(0.3, seed=5),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )


def _fit(
    folder: Path,
    callbacks_for: Callable[[Any, Path], list[Any]],
    saved: Callable[[Path], str | None] = lambda folder: None,
) -> dict[str, Any]:
    """Trains with `fit`; the model notes the step and the rows of each batch in a file.

    `saved` returns the path of a model to go on with, from the start of the epoch that it is in.
    """
    import keras
    import tensorflow as tf

    note = _noting(folder)

    class Noting(keras.Model):  # type: ignore[misc]
        def __init__(self, **of_layers: Any) -> None:
            super().__init__(**of_layers)
            self.net = _model(keras)
            self.net.build([None, 8])

        def call(self, x: Any, training: bool = False) -> Any:
            return self.net(x, training=training)

        def train_step(self, data: Any) -> Any:
            numbers, x, y = data
            tf.numpy_function(note, [self.optimizer.iterations.value, numbers], [])
            return super().train_step((x, y))

        def test_step(self, data: Any) -> Any:
            return super().test_step(data[1:])

    if path := saved(folder):
        model = keras.models.load_model(path, {"Noting": Noting})
    else:
        model = Noting()
        model.build([None, 8])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    by = keras.callbacks
    stopping = by.EarlyStopping("val_loss", patience=99, min_delta=0.01)
    plateau = by.ReduceLROnPlateau("val_loss", 0.5, patience=1, min_delta=0.02)
    falling = by.LearningRateScheduler(lambda epoch, rate: rate * 0.95)
    pause = by.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(_STEP_S))
    model.fit(
        _data(tf),
        epochs=_EPOCHS,
        initial_epoch=int(model.optimizer.iterations) * _BATCH // _ROWS,
        validation_data=_data(tf, shuffled=False),
        callbacks=[falling, stopping, plateau, pause, *callbacks_for(model, folder)],
        verbose=0,
    )
    states = [each.state.numpy().tolist() for each in _seeds(model)]
    return {
        "weights": [each.tolist() for each in model.get_weights()],
        "optimizer": [each.numpy().tolist() for each in model.optimizer.variables],
        "generators": states,
        "best": [stopping.best, stopping.wait, plateau.best, plateau.wait],
        "rate": float(model.optimizer.learning_rate),
    }


def _seeds(model: Any) -> list[Any]:
    return [layer.seed_generator for layer in model.net.layers if hasattr(layer, "seed_generator")]


def _noting(folder: Path) -> Callable[..., None]:
    file = open(folder / f"steps-{time.time_ns()}", "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def note(step: Any, numbers: Any) -> None:
        file.write(f"{int(step)} {' '.join(map(str, numbers))}\n")

    return note


def _of_generic_trainer(model: Any, folder: Path) -> list[Any]:
    from generic_trainer import training

    fn_args = types.SimpleNamespace(checkpoint_dir=str(folder / "checkpoints"))
    return list(training.resume_callbacks(fn_args, every_steps=_EVERY_STEPS))


def _backup_and_restore(**options: Any) -> Callable[[Any, Path], list[Any]]:
    def make(model: Any, folder: Path) -> list[Any]:
        import keras

        return [keras.callbacks.BackupAndRestore(str(folder / "backup"), **options)]

    return make


def _orbax_checkpoint(model: Any, folder: Path) -> list[Any]:
    import keras

    return [keras.callbacks.OrbaxCheckpoint(str(folder / "orbax"), save_freq=_EVERY_STEPS)]


def _of_orbax(folder: Path) -> str | None:
    path = folder / "orbax"
    is_saved = path.exists() and any(each.name.isdigit() for each in path.iterdir())
    return str(path) if is_saved else None


def _by_ray(folder: Path) -> dict[str, Any]:
    """Trains in a worker of Ray Train; a run of the same name goes on from its last checkpoint."""
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    import ray
    import ray.train
    from ray.train.tensorflow import TensorflowTrainer

    def train() -> None:
        from ray.train.tensorflow.keras import ReportCheckpointCallback

        def saved(folder: Path) -> str | None:
            checkpoint = ray.train.get_checkpoint()
            return f"{checkpoint.to_directory()}/model.keras" if checkpoint else None

        end = _fit(folder, lambda model, folder: [ReportCheckpointCallback()], saved)
        (folder / "of-worker").write_bytes(pickle.dumps(end))

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    scaling = ray.train.ScalingConfig(num_workers=1)
    run = ray.train.RunConfig(name="run", storage_path=str(folder))
    TensorflowTrainer(train, scaling_config=scaling, run_config=run).fit()
    ray.shutdown()
    return dict(pickle.loads((folder / "of-worker").read_bytes()))


def _of_the_guide(folder: Path) -> dict[str, Any]:
    """Trains as TensorFlow's guide to checkpoints does, with the iterator in the checkpoint."""
    import keras
    import tensorflow as tf

    model, optimizer = _model(keras), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    iterator, note = iter(_data(tf, endless=True)), _noting(folder)
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(step=step, optimizer=optimizer, net=model, iterator=iterator)
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "ckpt"), max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)

    @tf.function
    def train(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    while int(step) < _EPOCHS * _ROWS // _BATCH:
        numbers, x, y = next(iterator)
        note(step, numbers.numpy())
        train(x, y)
        step.assign_add(1)
        time.sleep(_STEP_S)
        if int(step) % _EVERY_STEPS == 0:
            manager.save()
    generators = [e.seed_generator for e in model.layers if hasattr(e, "seed_generator")]
    return {
        "weights": [each.tolist() for each in model.get_weights()],
        "optimizer": [each.numpy().tolist() for each in optimizer.variables],
        "generators": [each.state.numpy().tolist() for each in generators],
    }


PEERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "GenericTrainer, resume_callbacks": lambda folder: _fit(folder, _of_generic_trainer),
    "Keras, BackupAndRestore": lambda folder: _fit(folder, _backup_and_restore()),
    f"Keras, BackupAndRestore(save_freq={_EVERY_STEPS})": lambda folder: _fit(
        folder, _backup_and_restore(save_freq=_EVERY_STEPS)
    ),
    f"Keras, OrbaxCheckpoint(save_freq={_EVERY_STEPS})": lambda folder: _fit(
        folder, _orbax_checkpoint, _of_orbax
    ),
    "TensorFlow, tf.train.CheckpointManager": _of_the_guide,
    "Ray Train, ReportCheckpointCallback": _by_ray,
}


def _started(train: Callable[[Path], dict[str, Any]], folder: Path) -> int:
    """Returns the process that trains and writes `end` into the folder."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        sys.stderr = open(folder / "stderr", "a", encoding="utf-8")  # noqa: SIM115
        end = train(folder)
        (folder / "part").write_bytes(pickle.dumps(end))
        (folder / "part").rename(folder / "end")
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


def _started_ns(file: Path) -> int:
    return int(file.name.partition("-")[2])


def _steps(folder: Path) -> list[list[tuple[int, list[int]]]]:
    """Returns, for each process, the step and the rows of each of its batches."""
    processes = []
    for file in sorted(folder.glob("steps-*")):
        lines = [list(map(int, line.split())) for line in file.read_text().splitlines()]
        processes.append([(line[0], line[1:]) for line in lines if len(line) > _BATCH])
    return processes


def _seen(folder: Path) -> collections.Counter[int]:
    """Returns row → how often the weights at the end have seen it."""
    effective: list[tuple[int, list[int]]] = []
    for process in _steps(folder):
        steps = [step for step, _ in process]
        # GenericTrainer makes variables by a step 0 whose effect it undoes. The next one is that of
        # the checkpoint, if there is one.
        if steps == [0] or (len(steps) > 1 and steps[1] > steps[0] + 1):
            del process[0]
        if process:  # what follows the checkpoint that it begins with is lost
            effective = [each for each in effective if each[0] < process[0][0]] + process
    return collections.Counter(row for _, rows in effective for row in rows)


def _killed(train: Callable[[Path], dict[str, Any]], folder: Path, after_s: float) -> bool:
    """Kills a process some seconds after its first step; returns whether it had not ended."""
    pid = _started(train, folder)
    while not any(_steps(folder)):
        if os.waitpid(pid, os.WNOHANG)[0]:
            raise RuntimeError((folder / "stderr").read_text())
        time.sleep(0.01)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return not (folder / "end").exists()


def _ended(train: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, Any] | None:
    """Trains to the end; None if that fails."""
    os.waitpid(_started(train, folder), 0)
    if not (folder / "end").exists():
        return None
    return dict(pickle.loads((folder / "end").read_bytes()))


def measured(name: str, kills: int, seed: int, root: Path) -> list[str]:
    """Returns the cells of a peer's row."""
    train, draw = PEERS[name], random.Random(seed)
    straight = root / "straight"
    straight.mkdir()
    expected = _ended(train, straight)
    if expected is None:
        raise RuntimeError((straight / "stderr").read_text())
    took_s = time.time() - min(_started_ns(file) for file in straight.glob("steps-*")) / 1e9
    once = _seen(straight)
    equal: collections.Counter[str] = collections.Counter()
    too_often, too_seldom, done = 0, 0, 0
    while done < kills:
        folder = root / f"kill-{time.time_ns()}"
        folder.mkdir()
        if not _killed(train, folder, draw.uniform(0, took_s)):
            continue  # it had ended
        done += 1
        end = _ended(train, folder)
        if end is None:
            continue
        equal.update(key for key in end if end[key] == expected[key])
        seen = _seen(folder)
        too_often += sum((seen - once).values())
        too_seldom += sum((once - seen).values())
    cells = [f"{equal[each]}" if each in expected else "" for each in _COLUMNS]
    return [name, *cells, f"{too_often / kills:.1f}", f"{too_seldom / kills:.1f}"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=[*PEERS])
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras  # once, before the processes are forked; none of TensorFlow's threads runs yet
    import tensorflow as tf

    import generic_trainer.training

    del generic_trainer
    table = Table(
        title=f"{options.kills} kills; TensorFlow {tf.__version__}, Keras {keras.__version__}"
    )
    for column in ("", *_COLUMNS, "rows too often", "rows too seldom"):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as root:
        for number, name in enumerate(options.only):
            folder = Path(root, str(number))
            folder.mkdir()
            table.add_row(*measured(name, options.kills, options.seed, folder))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
