"""The cost of a checkpoint of `resume_callbacks`, and of going on from it.

Prints two tables. The first one is about the model of `bench_training`, with embeddings and a
shuffle buffer, on made-up rows: without checkpoints, and with `every_steps=10`. It has milliseconds
of a step, the share of it that checkpoints take, how many steps there were to one, what one costs
training, and its share of the time at one a minute. Shares and costs are differences of the steps
per second, and vary as these do.

The second table: seconds to write one checkpoint of a Keras model with Adam (three numbers per
weight, plus the reader's state), its share of the training time at the default interval of 60 s,
and seconds from the start of a resumed `fit` to its first new step, next to those of a new `fit`.

    python -m benchmarks.bench_checkpoint [--units 64 1024 2048]
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import types
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import _figures, bench_training
from generic_trainer.training import resume_callbacks

INTERVAL_S = 60.0
MAX_OVERHEAD = 0.01
STEPS = 20
TAXI_STEPS, TAXI_ROWS = 2000, 50_000
WARM_UP = 20


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
    """Notes when steps end, and the checkpoints that are there by then."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.ends_s: list[float] = []
        self.saved: set[str] = set()
        self._directory = os.path.join(directory, "fit")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the end of one."""
        self.ends_s.append(time.perf_counter())
        self.saved.update(name for name in os.listdir(self._directory) if name.startswith("step-"))


def fit(directory: str, units: int, epochs: int, **arguments: Any) -> tuple[float, list[float]]:
    """Returns when a fit began and when its steps ended."""
    clock = Clock(directory)
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


def taxi_fit(directory: str, **arguments: Any) -> tuple[float, int]:
    """Returns seconds per step, and the number of checkpoints of a fit.

    The model is that of `bench_training`.
    """
    names: dict[str, Any] = {}
    exec(compile(bench_training.MODULE, "bench_module", "exec"), names)
    schema, random = names["schema_pb2"].Schema(), np.random.default_rng(0)
    rows: dict[str, Any] = {}
    for name in (*bench_training.NUMERIC, *bench_training.CATEGORICAL):
        numeric = name in bench_training.NUMERIC
        kind = names["schema_pb2"].FLOAT if numeric else names["schema_pb2"].INT
        schema.feature.add(name=name, type=kind)
        values = random.integers(0, bench_training.BUCKETS, (TAXI_ROWS, 1))
        rows[name] = values.astype("float32") if numeric else values
    labels = random.integers(0, 2, (TAXI_ROWS, 1)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(256, drop_remainder=True)
    dataset = dataset.shuffle(40, seed=1).repeat()  # of batches, as of 10,000 rows
    fn_args = types.SimpleNamespace(checkpoint_dir=directory, model_run_dir=directory + "/run")
    clock = Clock(directory)
    names["build_model"](schema, bench_training.BUCKETS).fit(
        dataset,
        epochs=1,
        steps_per_epoch=TAXI_STEPS,
        verbose=0,
        callbacks=[*resume_callbacks(fn_args, **arguments), clock],
    )
    ends_s = clock.ends_s[WARM_UP:]
    return (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1), max(1, len(clock.saved))


def print_taxi(runs: int) -> list[_figures.Figure]:
    """Prints the first table."""
    ways: dict[str, dict[str, Any]] = {
        "none": {"every_s": 3600.0},
        "exact": {"every_steps": 10},
    }
    steps: dict[str, list[float]] = {way: [] for way in ways}
    intervals: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, arguments in ways.items():
            with tempfile.TemporaryDirectory() as directory:
                step_s, count = taxi_fit(directory, **arguments)
            steps[way].append(step_s)
            intervals[way].append(TAXI_STEPS / count)
    plain_s = statistics.median(steps["none"])
    figures = []
    print("checkpoints     step      share    one every   costs     a minute")
    for way in ways:
        step_s = statistics.median(steps[way])
        interval = statistics.median(intervals[way])
        if way == "none":
            print(f"{way:14}  {1000 * step_s:5.2f} ms")
            continue
        more_s = statistics.median(
            each - one for each, one in zip(steps[way], steps["none"], strict=True)
        )
        print(
            f"{way:14}  {1000 * step_s:5.2f} ms  {more_s / plain_s:6.1%}  {interval:5.0f} steps"
            f"  {1000 * interval * more_s:5.1f} ms  {interval * more_s / INTERVAL_S:9.3%}",
            flush=True,
        )
        figures.append(
            _figures.compare(
                f"a step of the taxi model, checkpoints: {way}", steps[way], "s",
                "without checkpoints", steps["none"], less_is_better=True,
            )
        )  # fmt: skip
    print()
    return figures


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, nargs="+", default=[64, 1024, 2048])
    parser.add_argument("--runs", type=int, default=5)
    _figures.add_json_option(parser)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    _figures.write(print_taxi(options.runs), options.json)
    print("weights     checkpoint  share at 60 s  first step: new  resumed")
    for units in options.units:
        weights, cost_s, first_s, resumed_s = measure(units)
        share = cost_s / max(INTERVAL_S, cost_s / MAX_OVERHEAD)
        print(
            f"{weights:<10,}  {cost_s:8.3f} s  {share:13.2%}  {first_s:13.2f} s  {resumed_s:5.2f} s"
        )


if __name__ == "__main__":
    main()
