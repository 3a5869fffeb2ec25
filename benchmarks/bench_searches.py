"""What `adaptive_asha` saves: the batches of a search, and how near it comes to the best value.

    python -m benchmarks.bench_searches [--runs 20]

Gradient descent on a bowl whose best learning rate is known: 64 trials of 256 batches at random,
and an `adaptive_asha` of 128 trials, each with as many seeds as `--runs` says. Prints the mean
number of batches, the median of the loss found, and with how many seeds `adaptive_asha` found at
least what random search did.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import _figures
from benchmarks.bench_trials import fn_args

TRIALS = {"random": 64, "adaptive_asha": 128}


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    _figures.add_json_option(parser)
    options = parser.parse_args()
    found = {
        name: [_search(name, trials, 1000 * seed) for seed in range(options.runs)]
        for name, trials in TRIALS.items()
    }
    print("| search | trials | batches, mean | loss found, median |")
    print("|---|---|---|---|")
    for name, results in found.items():
        batches = statistics.mean(batches for batches, _ in results)
        loss = statistics.median(loss for _, loss in results)
        print(f"| {name} | {TRIALS[name]} | {batches:.0f} | {loss:.3g} |")
    pairs = list(zip(*found.values(), strict=True))
    as_good = sum(asha[1] <= random[1] for random, asha in pairs)
    print(f"adaptive_asha found at least as good a value with {as_good} of {options.runs} seeds")
    random_batches, asha_batches = (
        [float(batches) for batches, _ in found[each]] for each in TRIALS
    )
    figure = _figures.compare(
        "batches of adaptive_asha", asha_batches, "batches", "random search", random_batches,
        less_is_better=True,
    )  # fmt: skip
    _figures.write([figure], options.json)


def _search(name: str, trials: int, seed: int) -> tuple[int, float]:
    """Returns the batches of a search and the loss of its best trial."""
    import numpy as np

    from generic_trainer.trials import Trial, run_fn_from_trial

    curvatures = np.array([1.0, 100.0])

    class Descent(Trial):
        """Gradient descent on a bowl; the controller is the trial itself."""

        stop_requested = False

        def __init__(self, run: Any) -> None:
            self.rate = run.hparams["rate"]
            saved = Path(run.checkpoint_dir or "", "w.npy")
            self.w = np.load(saved) if run.checkpoint_dir else np.ones(2)

        @classmethod
        def open_controller(cls, run: Any) -> Any:
            return cls(run)

        def train(self, batches: int) -> dict[str, float]:
            with np.errstate(over="ignore", invalid="ignore"):
                self.w = self.w * (1 - self.rate * curvatures) ** batches
            return self.validate()

        def validate(self) -> dict[str, float]:
            with np.errstate(over="ignore", invalid="ignore"):
                return {"loss": float(np.nan_to_num(curvatures @ np.square(self.w), nan=np.inf))}

        def save(self, directory: str) -> None:
            np.save(Path(directory, "w.npy"), self.w)

        def export(self, fn_args: Any, checkpoint_dir: str) -> None: ...

        def close(self) -> None: ...

    searcher = {"name": name, "max_trials": trials, "max_length": {"batches": 256}}
    config = {
        "hyperparameters": {"rate": {"type": "log", "base": 10, "minval": -5, "maxval": 0}},
        "reproducibility": {"experiment_seed": seed},
        "scheduling_unit": 256,
        "searcher": {**searcher, "metric": "loss"},
    }
    with tempfile.TemporaryDirectory() as folder:
        run_fn_from_trial(Descent)(fn_args(folder, config))
        record = json.loads(Path(folder, "trials.json").read_text())
    batches = sum(trial["batches"] for trial in record)
    return batches, min(trial["best"] for trial in record)


if __name__ == "__main__":
    main()
