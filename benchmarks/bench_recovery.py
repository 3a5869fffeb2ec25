"""How long it takes from the death of a worker to the first new step.

    python -m benchmarks.bench_recovery [--launchers local ray] [--runs 3]

The last worker kills the process that trains by SIGKILL after twenty steps; the time ends with the
first step of the next attempt. With `ray` it kills in turn that process and the one of Ray's worker
above it, which is lost with a node, and Ray Train's own `TensorflowTrainer`, where both are one,
stands beside it with `FailureConfig(max_failures=1)`, on the same Ray. Prints medians, and the
ratio to the bare way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _figures
from benchmarks.bench_distribution import LOOP, own_ray, run_ours

STEPS = 20
ATTEMPT = (
    LOOP
    + """
def attempt(folder, steps, rank, size, victim):
    died = os.path.join(folder, "died.json")
    recovers = os.path.exists(died)
    result = train(steps)
    if not recovers:
        if rank == size - 1:
            with open(died, "w") as file:
                json.dump(time.time(), file)
            os.kill(victim, 9)
        time.sleep(600)
    if rank == 0:
        with open(os.path.join(folder, "result.json"), "w") as file:
            json.dump(result, file)
"""
)
OURS = (
    ATTEMPT
    + """
def run_fn(fn_args):
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    size = max(1, sum(map(len, config.get("cluster", {}).values())))
    rank = config.get("task", {}).get("index", 0)
    attempt(fn_args.model_run_dir, fn_args.train_steps, rank, size, os.getpid())
"""
)
# Ray names the file that a worker prints to after its process.
OURS_KILLS_WORKER = OURS.replace(
    "os.getpid())", 'int(os.readlink("/proc/self/fd/1").rpartition("-")[2].removesuffix(".out")))'
)


def run_bare_ray(workers: int, root: Path) -> Path:
    """Gives the loop to Ray Train, and returns the folder with what it has noted."""
    from ray import train
    from ray.train.tensorflow import TensorflowTrainer

    names: dict[str, Any] = {}
    exec(compile(ATTEMPT, "loop", "exec"), names)
    attempt = names["attempt"]

    def train_loop(config: dict[str, Any]) -> None:
        context = train.get_context()
        rank, size = context.get_world_rank(), context.get_world_size()
        attempt(config["folder"], config["steps"], rank, size, os.getpid())

    TensorflowTrainer(
        train_loop,
        train_loop_config={"steps": STEPS, "folder": str(root)},
        scaling_config=train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
        run_config=train.RunConfig(
            name="bench",
            storage_path=str(root / "ray"),
            failure_config=train.FailureConfig(max_failures=1),
        ),
    ).fit()
    return root


def launched(launcher: str, source: str = OURS) -> Callable[[int, Path], Path]:
    """Returns what runs the loop with a launcher."""

    def run(workers: int, root: Path) -> Path:
        return run_ours(launcher, workers, STEPS, root, source, max_failures=1).parent

    return run


def seconds(run: Callable[[int, Path], Path], workers: int) -> float:
    """Returns the time from the death to the first new step."""
    with tempfile.TemporaryDirectory() as folder:
        noted = run(workers, Path(folder))
        died_s = json.loads((noted / "died.json").read_text(encoding="utf-8"))
        first_s = json.loads((noted / "result.json").read_text(encoding="utf-8"))["first"]
        return float(first_s - died_s)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--launchers", nargs="+", choices=("local", "ray"), default=["local", "ray"]
    )
    parser.add_argument("--runs", type=int, default=3)
    _figures.add_json_option(parser)
    arguments = parser.parse_args()
    figures = []
    logging.disable(logging.WARNING)
    print("launcher  workers  killed    first new step  bare      ratio")
    for launcher in arguments.launchers:
        on_ray = launcher == "ray"
        ways = {"process": launched(launcher)}
        if on_ray:
            ways |= {"worker": launched(launcher, OURS_KILLS_WORKER), "bare": run_bare_ray}
        with own_ray() if on_ray else contextlib.nullcontext():
            for workers in (2,) if on_ray else (1, 2):
                samples: dict[str, list[float]] = {name: [] for name in ways}
                for _ in range(arguments.runs):
                    for name, run in ways.items():
                        samples[name].append(seconds(run, workers))
                bare = samples.pop("bare", None)
                for killed, ours in samples.items():
                    own_s, beside = statistics.median(ours), ""
                    if bare:
                        what = f"from the death of a {killed}, one of {workers}, to the next step"
                        figures.append(
                            _figures.compare(what, ours, "s", "bare Ray", bare, less_is_better=True)
                        )
                        bare_s = statistics.median(bare)
                        beside = f"{bare_s:6.2f} s  {own_s / bare_s:8.2f}"
                    row = f"{launcher:<8}  {workers:<7}  {killed:<8}  {own_s:12.2f} s  {beside}"
                    print(row.rstrip(), flush=True)
    _figures.write(figures, arguments.json)


if __name__ == "__main__":
    main()
