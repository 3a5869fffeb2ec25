"""Minutes to the same number of steps, with a kill every minute, beside what others offer.

    python -m benchmarks.beside_goodput [--every-s 60] [--minutes 5] [--only PEER ...]

A process trains in steps of 50 ms (a sleep, as if an accelerator computed), for so many minutes if
nothing happens, in epochs of 20 s. SIGKILL ends it every minute, and a new process goes on, each as
the peer's own documentation recommends. `minutes` last from the first start to the end of the last
process, with all imports; the goodput is the share of them that so many steps need. A peer that
takes more than four times the minutes is given up.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_STEP_S, _STEPS_PER_EPOCH = 0.05, 400
_GIVEN_UP = 4


def _trains(
    folder: Path,
    epochs: int,
    callbacks: list[Any],
    saved: str | None = None,
    initial_epoch: int = 0,
) -> None:
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    x = tf.random.stateless_normal([8 * _STEPS_PER_EPOCH, 8], [1, 2])
    rows = tf.data.Dataset.from_tensor_slices((x, tf.sin(x[:, :1] * 3)))
    if saved:
        model = keras.models.load_model(saved)
    else:
        model = keras.Sequential([keras.Input([8]), keras.layers.Dense(32), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    started = open(folder / "steps", "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def end_step(batch: int, logs: Any) -> None:
        time.sleep(_STEP_S)
        started.write(f"{int(model.optimizer.iterations)}\n")

    pause = keras.callbacks.LambdaCallback(on_train_batch_end=end_step)
    data = rows.shuffle(len(x), seed=3).batch(8)
    callbacks = [pause, *callbacks]
    model.fit(data, epochs=epochs, initial_epoch=initial_epoch, callbacks=callbacks, verbose=0)


def _by_generic_trainer(folder: Path, epochs: int) -> None:
    from generic_trainer import training

    fn_args = types.SimpleNamespace(checkpoint_dir=str(folder / "checkpoints"))
    _trains(folder, epochs, training.resume_callbacks(fn_args))


def _by_backup(**options: Any) -> Callable[[Path, int], None]:
    def train(folder: Path, epochs: int) -> None:
        import keras

        backup = keras.callbacks.BackupAndRestore(str(folder / "backup"), **options)
        _trains(folder, epochs, [backup])

    return train


def _by_ray(folder: Path, epochs: int) -> None:
    """Trains in a worker of Ray Train; a run of the same name goes on from its last checkpoint."""
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    import ray
    import ray.train
    from ray.train.tensorflow import TensorflowTrainer

    def train() -> None:
        from ray.train.tensorflow.keras import ReportCheckpointCallback

        checkpoint = ray.train.get_checkpoint()
        saved, done = None, 0
        if checkpoint:
            import keras

            saved = f"{checkpoint.to_directory()}/model.keras"
            done = int(keras.models.load_model(saved).optimizer.iterations) // _STEPS_PER_EPOCH
        _trains(folder, epochs, [ReportCheckpointCallback()], saved, done)

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    scaling = ray.train.ScalingConfig(num_workers=1)
    run = ray.train.RunConfig(name="run", storage_path=str(folder))
    TensorflowTrainer(train, scaling_config=scaling, run_config=run).fit()
    ray.shutdown()


PEERS: dict[str, Callable[[Path, int], None]] = {
    "GenericTrainer, resume_callbacks": _by_generic_trainer,
    "Keras, BackupAndRestore": _by_backup(),
    "Keras, BackupAndRestore(save_freq=100)": _by_backup(save_freq=100),
    "Ray Train, ReportCheckpointCallback": _by_ray,
    "a bare restart": lambda folder, epochs: _trains(folder, epochs, []),
}


def measured(name: str, every_s: float, epochs: int, folder: Path) -> list[str]:
    """Returns the cells of a peer's row."""
    command = [sys.executable, "-m", __spec__.name, "--train", name, str(folder), str(epochs)]
    wanted_s = epochs * _STEPS_PER_EPOCH * _STEP_S
    (folder / "steps").write_text("0\n")
    began_s, kills, status = time.monotonic(), 0, 1
    while status and time.monotonic() - began_s < _GIVEN_UP * wanted_s:
        # A session of its own: the processes of Ray are to end with it.
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
        try:
            _, errors = process.communicate(timeout=every_s)
            status = process.returncode
            if status:
                raise RuntimeError(errors.decode())
        except subprocess.TimeoutExpired:
            kills += 1
            os.killpg(process.pid, 9)
            process.communicate()
    took_s = time.monotonic() - began_s
    steps = (folder / "steps").read_text().splitlines()
    done = "never" if status else f"{took_s / 60:.1f}"
    share = "0 %" if status else f"{wanted_s / took_s:.0%}"
    return [name, done, share, str(kills), f"{len(steps) - 1:,}", max(steps, key=int)]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every-s", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=[*PEERS])
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        name, folder, epochs = options.train
        PEERS[name](Path(folder), int(epochs))
        return
    epochs = round(options.minutes * 60 / (_STEP_S * _STEPS_PER_EPOCH))
    table = Table(title=f"{epochs * _STEPS_PER_EPOCH:,} steps, a kill every {options.every_s:g} s")
    for column in ("", "minutes", "goodput", "kills", "steps computed", "last step"):
        table.add_column(column)
    for name in options.only:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            table.add_row(*measured(name, options.every_s, epochs, Path(folder)))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
