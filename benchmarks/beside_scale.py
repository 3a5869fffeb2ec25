"""How the cost of the training step grows with the work, beside TFX's Trainer.

    python -m benchmarks.beside_scale [--points 16x100000x100 1000x100000x100 ...] [--repeats 3]

A point is a number of features, of rows, and of words in each of the vocabularies, which half of
the features have: they decide the size of the model, 32 bytes for each word. Both components train
the module file of `bench_training` for 200 steps of 256 made-up rows; `GenericTrainer` makes all
default checks. They take turns, each in a process of its own, whose imports count.
Columns, medians:

- `s`: seconds of the process. The next three add up to it: `first step`, until its end;
  `training` with the export; `after`, the checks and the publishing.
- `times TFX's`: of the seconds, and their lowest and highest.
- `MB`: the peak memory of the process, and of the largest of those that it starts.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rich.console import Console
from rich.table import Table

from benchmarks import bench_training
from benchmarks._processes import in_new_process

_STEPS, _BATCH = 200, 256
_POINTS = (
    *("16x100000x100", "200x100000x100", "1000x100000x100"),
    *("16x1000000x100", "16x100000x10000", "16x100000x1000000"),
)
_TFX, _OURS = "TFX's Trainer", "GenericTrainer"


def _run(name: str, folder: Path, words: int) -> dict[str, float]:
    """Returns the figures of a component, which this process runs."""
    start_s = time.time()
    executor: Any
    if name == _TFX:
        from tfx.components.trainer.executor import GenericExecutor as executor
    else:
        from generic_trainer.executors import GenericTrainerExecutor as executor
    from tfx.types import standard_artifacts

    from benchmarks import _artifacts

    logging.disable(logging.INFO)
    os.environ[bench_training._CACHE_VARIABLE] = "off"  # each run is a first one
    examples = _artifacts.artifact_at(standard_artifacts.Examples, folder / "examples")
    examples.split_names = '["train", "eval"]'
    schema = _artifacts.artifact_at(standard_artifacts.Schema, folder / "schema")
    config = {"batch_size": _BATCH, "epochs": 1, "buckets": words, "constant_batch": False}
    with tempfile.TemporaryDirectory(dir=folder) as root:
        outputs = _artifacts.output_artifacts(Path(root))
        properties = _artifacts.exec_properties(
            module_file=str(folder / "bench_module.py"),
            train_args=json.dumps({"num_steps": _STEPS}),
            custom_config=config,
        )
        executor().Do({"examples": [examples], "schema": [schema]}, outputs, properties)
        end_s = time.time()
        noted = Path(outputs["model_run"][0].uri, "seconds.json")
        first_s, exported_s = json.loads(noted.read_text())["first_step"], noted.stat().st_mtime
    peaks = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "s": end_s - start_s,
        "first step": first_s - start_s,
        "training": exported_s - first_s,
        "after": end_s - exported_s,
        "MB": peaks[0].ru_maxrss / 1e3,
        "MB of others": peaks[1].ru_maxrss / 1e3,
    }


def _add_rows(table: Table, point: str, repeats: int) -> None:
    features, rows, words = map(int, point.split("x"))
    runs: dict[str, list[dict[str, float]]] = {_TFX: [], _OURS: []}
    with tempfile.TemporaryDirectory() as folder:
        arguments = argparse.Namespace(csv=None, features=features, rows=rows)
        bench_training._write_inputs(Path(folder), arguments)
        Path(folder, "bench_module.py").write_text(bench_training.MODULE)
        for _ in range(repeats):
            for name, taken in runs.items():
                taken.append(in_new_process(_run, name, Path(folder), words))
    ratios = [ours["s"] / tfx["s"] for ours, tfx in zip(runs[_OURS], runs[_TFX], strict=True)]
    spread = statistics.median(ratios), min(ratios), max(ratios)
    for name, taken in runs.items():
        medians = [f"{statistics.median(run[key] for run in taken):.1f}" for key in taken[0]]
        times = "{:.2f} ({:.2f} to {:.2f})".format(*spread) if name == _OURS else ""
        table.add_row(point, name, times, *medians)


def main() -> None:
    """Prints the table, as it grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--points", nargs="+", default=[*_POINTS])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for point in arguments.points:
        table = Table(title="features x rows x words")
        columns = ("s", "first step", "training", "after", "MB", "MB of others")
        for column in ("", "", "times TFX's", *columns):
            table.add_column(column)
        _add_rows(table, point, arguments.repeats)
        Console(width=150).print(table)


if __name__ == "__main__":
    main()
