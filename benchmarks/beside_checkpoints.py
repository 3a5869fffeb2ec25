"""What a checkpoint costs a fit, beside what Keras and TensorFlow offer.

    python -m benchmarks.beside_checkpoints [--megabytes 1 10 100] [--repeats 3]

An embedding of some megabytes is trained with SGD, so that a step costs the same at each size: 3 ms
of sleep, as if an accelerator computed, and what Keras itself does. Each peer saves after every
tenth step, as its documentation recommends. Peers take turns; each fit is a process of its own,
and counts from the 20th step to the last one. Columns, medians:

- `longer`: by how much a fit without checkpoints is exceeded.
- `ms`: the same for each checkpoint, in milliseconds.
- `processor ms`: of all threads and child processes.

`OrbaxCheckpoint` is left out where Orbax is not installed. TensorFlow's asynchronous checkpoints
(`experimental_enable_async_checkpoint`) are no peer: they copy no model of Keras 3.15.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks._processes import in_new_process, processor_s
from generic_trainer.training import resume_callbacks

_EVERY, _STEP_S, _WARM_UP, _STEPS = 10, 0.003, 20, 320
_WIDTH = 64


def _of_generic_trainer(model: Any, folder: Path) -> Any:
    fn_args = types.SimpleNamespace(checkpoint_dir=str(folder))
    return resume_callbacks(fn_args, every_steps=_EVERY, callbacks=[])[-1]


def _backup_and_restore(model: Any, folder: Path) -> Any:
    return tf.keras.callbacks.BackupAndRestore(str(folder), save_freq=_EVERY)


def _orbax(model: Any, folder: Path) -> Any:
    keras_callbacks: Any = tf.keras.callbacks
    return keras_callbacks.OrbaxCheckpoint(str(folder), save_freq=_EVERY, max_to_keep=2)


def _checkpoint_manager(model: Any, folder: Path) -> Any:
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)

    def save(batch: int, logs: Any = None) -> None:
        if (batch + 1) % _EVERY == 0:
            manager.save()

    return tf.keras.callbacks.LambdaCallback(on_train_batch_end=save)


PEERS: dict[str, Callable[[Any, Path], Any] | None] = {
    "no checkpoints": None,
    "GenericTrainer, resume_callbacks": _of_generic_trainer,
    "Keras, BackupAndRestore": _backup_and_restore,
    "Keras, OrbaxCheckpoint": _orbax,
    "tf.train.CheckpointManager": _checkpoint_manager,
}


class _Pace(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sleeps in each step, and notes time and processor time at the start of the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[float, float]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the times."""
        self.noted.append((time.perf_counter(), processor_s()))
        time.sleep(_STEP_S)


def _fit(name: str, megabytes: int) -> tuple[float, float]:
    """Returns seconds, and those of processors, of the steps of a fit in this process."""
    rows = megabytes * 10**6 // (4 * _WIDTH)
    model = tf.keras.Sequential(
        [
            tf.keras.Input([4], dtype="int32"),
            tf.keras.layers.Embedding(rows, _WIDTH),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    numbers = tf.random.uniform([32, 4], maxval=rows, dtype=tf.int32)
    batches = tf.data.Dataset.from_tensors((numbers, tf.ones([32, 1]))).repeat()
    pace, make = _Pace(), PEERS[name]
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [pace] if make is None else [pace, make(model, Path(folder, "saved"))]
        model.fit(batches, epochs=1, steps_per_epoch=_STEPS, verbose=0, callbacks=callbacks)
    (start_s, used_s), (end_s, used_in_all_s) = pace.noted[_WARM_UP], pace.noted[-1]
    return end_s - start_s, used_in_all_s - used_s


def _table(megabytes: int, repeats: int, peers: list[str]) -> Table:
    table = Table(title=f"{megabytes} MB of weights; TensorFlow {tf.__version__}")
    for column in ("", "longer", "lowest", "highest", "ms", "processor ms"):
        table.add_column(column)
    none, *others = peers
    more: dict[str, list[tuple[float, float, float]]] = {name: [] for name in others}
    for _ in range(repeats):
        plain_s, plain_used_s = in_new_process(_fit, none, megabytes)
        for name, of_peer in more.items():
            took_s, used_s = in_new_process(_fit, name, megabytes)
            of_peer.append((took_s / plain_s - 1, took_s - plain_s, used_s - plain_used_s))
    checkpoints = (_STEPS - _WARM_UP) / _EVERY
    for name, of_peer in more.items():
        shares = [share for share, _, _ in of_peer]
        each_ms = [
            f"{1000 * statistics.median(column) / checkpoints:.1f}"
            for column in list(zip(*of_peer, strict=True))[1:]
        ]
        percent = [
            f"{share:.0%}" for share in (statistics.median(shares), min(shares), max(shares))
        ]
        table.add_row(name, *percent, *each_ms)
    return table


def main() -> None:
    """Prints a table for each size of the weights."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    there = [name for name in PEERS if PEERS[name] is not _orbax or find_spec("orbax")]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for megabytes in arguments.megabytes:
        Console(width=150).print(_table(megabytes, arguments.repeats, there))


if __name__ == "__main__":
    main()
