"""The cost of a checkpoint of `resume_callbacks`, and of going on from it.

Prints one table: seconds to write one checkpoint of a Keras model with Adam (three numbers per
weight, plus the reader's state), its share of the training time at the default interval of 60 s,
and seconds from the start of a resumed `fit` to its first new step, next to those of a new `fit`.

    python -m benchmarks.bench_checkpoint [--units 64 1024 2048]
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import types
from typing import Any

import tensorflow as tf

from generic_trainer.training import resume_callbacks

INTERVAL_S = 60.0
STEPS = 20


def compiled_model(units: int) -> Any:
    """Returns a model with about `units` squared weights."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(units), layers.Dense(units), layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def data() -> tf.data.Dataset:
    """Returns an endless dataset with a shuffle buffer of 10,000 rows."""
    rows = tf.data.Dataset.range(100_000).map(lambda each: tf.cast(each, tf.float32)[tf.newaxis])
    return rows.shuffle(10_000, seed=1).repeat().batch(32).map(lambda each: (each, each))


class Clock(tf.keras.callbacks.Callback):
    """Notes when steps end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_s: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the end of one."""
        self.ends_s.append(time.perf_counter())


def fit(directory: str, units: int, epochs: int, **arguments: Any) -> tuple[float, list[float]]:
    """Returns when a fit began and when its steps ended."""
    clock = Clock()
    callbacks = resume_callbacks(
        types.SimpleNamespace(checkpoint_dir=directory), callbacks=[], **arguments
    )
    model, dataset = compiled_model(units), data()
    start_s = time.perf_counter()
    model.fit(
        dataset, epochs=epochs, steps_per_epoch=STEPS, verbose=0, callbacks=[*callbacks, clock]
    )
    return start_s, clock.ends_s


def measure(units: int) -> tuple[int, float, float, float]:
    """Returns weights, seconds per checkpoint and to the first step of a new and a resumed fit."""
    with tempfile.TemporaryDirectory() as directory:
        start_s, plain = fit(directory + "/plain", units, 1, every_s=3600.0)
        _, saving = fit(directory + "/saving", units, 1, every_steps=1)
        per_step = (plain[-1] - plain[1]) / (STEPS - 2)
        cost_s = (saving[-1] - saving[1]) / (STEPS - 2) - per_step
        _break_off(directory + "/saving")
        resumed_s, resumed = fit(directory + "/saving", units, 2, every_s=3600.0)
    weights = compiled_weights(units)
    return weights, cost_s, plain[0] - start_s, resumed[STEPS - 1] - resumed_s


def _break_off(directory: str) -> None:
    """Deletes the newest checkpoint, which says that training has ended."""
    names = sorted(tf.io.gfile.glob(directory + "/fit/step-*"))
    tf.io.gfile.rmtree(names[-1])


def compiled_weights(units: int) -> int:
    """Returns the number of weights of `compiled_model`."""
    return 2 * units + units * (units + 1) + units + 1


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, nargs="+", default=[64, 1024, 2048])
    logging.disable(logging.WARNING)
    print("weights     checkpoint  share at 60 s  first step: new  resumed")
    for units in parser.parse_args().units:
        weights, cost_s, first_s, resumed_s = measure(units)
        share = cost_s / max(INTERVAL_S, cost_s / 0.03)
        print(
            f"{weights:<10,}  {cost_s:8.3f} s  {share:13.2%}  {first_s:13.2f} s  {resumed_s:5.2f} s"
        )


if __name__ == "__main__":
    main()
