"""Seconds of the first step of Keras 2, as run_fn takes it here and as it is without us.

Each run is a process of its own, which times `fit` on one batch: a Sequential model with
BatchNormalization and Dropout. In turns with and without `keras_2_left_alone`, within which every
`run_fn` is called.

    python -m benchmarks.bench_first_step [--runs 3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from benchmarks import _figures

_PROGRAM = """
import contextlib, sys, time
import numpy as np
import tf_keras as keras
from generic_trainer.training import keras_2_left_alone

layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
rows = np.ones((32, 4), "float32")
with keras_2_left_alone() if sys.argv[1] == "ours" else contextlib.nullcontext():
    start = time.perf_counter()
    model.fit(rows, rows[:, :1], verbose=0)
    print(time.perf_counter() - start)
"""


def first_step_s(way: str) -> float:
    """Returns the seconds of one run.

    Args:
        way: "ours" or "TensorFlow's".
    """
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, way],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    _figures.add_json_option(parser)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"ours": [], "TensorFlow's": []}
    for _ in range(options.runs):
        for way, taken in times.items():
            taken.append(first_step_s(way))
    figure = _figures.compare(
        "the first step of Keras 2", times["ours"], "s", "without it", times["TensorFlow's"],
        less_is_better=True,
    )  # fmt: skip
    print(f"ours {figure.value:.2f} s, without it {figure.reference:.2f} s: {figure.ratio:.2f}")
    _figures.write([figure], options.json)


if __name__ == "__main__":
    main()
