"""What the component costs outside `run_fn`: TFX's Trainer against GenericTrainer.

    python -m benchmarks.bench_overhead [--runs 5] [--train-seconds 0 15]

Both run the same module file on the same examples in this process, in turn: packing the user's code
(compile time), then the executor. `run_fn` writes down its own wall time, which is taken off. It
trains a small Keras model for about the given time; the process that checks GenericTrainer's export
starts up meanwhile, so short runs have to wait for it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import _figures
from benchmarks._steps import Sample, medians, run_step, take_turns

MODULE = """
import json, os, time
import numpy as np
import tensorflow as tf

def run_fn(fn_args):
    started = time.perf_counter()
    seconds = fn_args.custom_config["train_seconds"]
    inputs = tf.keras.Input((8,), name="x")
    hidden = tf.keras.layers.Dense(256, activation="relu")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    model.compile(optimizer="adam", loss="mse")
    x = np.random.default_rng(0).normal(size=(4096, 8)).astype("float32")
    while time.perf_counter() - started < seconds:
        model.fit(x, x[:, :1], batch_size=64, epochs=1, verbose=0)
    model.export(fn_args.serving_model_dir, verbose=False)
    with open(os.path.join(fn_args.model_run_dir, "seconds.json"), "w") as file:
        json.dump(time.perf_counter() - started, file)
"""


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--train-seconds", type=float, nargs="+", default=[0.0, 15.0])
    _figures.add_json_option(parser)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    print("Wall time outside run_fn, seconds, median")
    print(f"{'run_fn':>7} {'component':24}{'packing':>9}{'executor':>10}{'total':>8}{'ratio':>8}")
    figures = [
        _print(seconds, _measure(seconds, options.runs)) for seconds in options.train_seconds
    ]
    _figures.write(figures, options.json)


def _measure(train_seconds: float, runs: int) -> dict[str, list[Sample]]:
    from tfx.components import Trainer

    from generic_trainer import GenericTrainer

    components = {"tfx.components.Trainer": Trainer, "GenericTrainer": GenericTrainer}
    with tempfile.TemporaryDirectory() as folder:
        module_file = Path(folder, "code", "bench_module.py")
        module_file.parent.mkdir()

        def run(name: str, number: int) -> Sample:
            # What is packed differs from run to run, or a later one would find it done.
            module_file.write_text(f"{MODULE}\nRUN = {number}\n")
            root = Path(folder, name, str(number))
            return _run(components[name], str(module_file), root, train_seconds)

        return take_turns(list(components), runs, run)


def _run(component_class: Any, module_file: str, root: Path, train_seconds: float) -> Sample:
    from tfx.types import Channel, standard_artifacts

    from benchmarks import _artifacts

    root.mkdir(parents=True)
    examples = _artifacts.write_examples(root / "examples")
    sample, outputs = run_step(
        lambda: component_class(
            examples=Channel(type=standard_artifacts.Examples),
            module_file=module_file,
            custom_config={"train_seconds": train_seconds},
        ),
        {"examples": examples},
        root,
    )
    run_fn_seconds = json.loads(Path(outputs["model_run"][0].uri, "seconds.json").read_text())
    return Sample(sample.packing, sample.executor - run_fn_seconds)


def _print(train_seconds: float, samples: dict[str, list[Sample]]) -> _figures.Figure:
    totals = {name: [sample.total for sample in taken] for name, taken in samples.items()}
    theirs, ours = totals.values()
    for name, taken in samples.items():
        packing, executor, total = medians(taken)
        print(
            f"{train_seconds:>6.0f}s {name:24}{packing:>9.2f}{executor:>10.2f}{total:>8.2f}"
            f"{total / statistics.median(theirs):>8.2f}"
        )
    (beside, _) = totals
    what = f"outside a run_fn of {train_seconds:.0f} s"
    return _figures.compare(what, ours, "s", beside, theirs, less_is_better=True)


if __name__ == "__main__":
    main()
