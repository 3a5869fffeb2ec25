"""What a launcher costs: the same loop, started by it and by what a user would write instead.

    python -m benchmarks.bench_distribution [--launchers local ray] [--runs 3] [--steps 300]

1. `local` stands beside a bare script that starts its processes itself, sets `TF_CONFIG`, and
   imports TensorFlow and nothing else.
2. `ray` stands beside Ray Train's own `TensorflowTrainer`, on the same Ray, started before.

Both ways train the same model in the same custom loop, alone and with
`MultiWorkerMirroredStrategy` on two workers, in turn. Prints the median time from submitting the
run to the end of its first step, the steps per second after it, and the ratios to the bare way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import _figures

ROOT = Path(__file__).resolve().parent.parent
LOOP = """
import json, os, sys, time
import tensorflow as tf

BATCH, FEATURES, UNITS = 64, 64, 256

def train(steps):
    strategy = tf.distribute.get_strategy()
    cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
    if sum(map(len, cluster.values())) > 1:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [tf.Variable(tf.random.stateless_normal(shape, (1, 2)) * 0.05)
                  for shape in ((FEATURES, UNITS), (UNITS, UNITS), (UNITS, 1))]
    rows = tf.random.stateless_normal((BATCH, FEATURES), (3, 4))

    def replica_step():
        with tf.GradientTape() as tape:
            hidden = rows
            for layer in layers[:-1]:
                hidden = tf.nn.relu(hidden @ layer)
            loss = tf.reduce_mean((hidden @ layers[-1] - 1.0) ** 2)
        gradients = tape.gradient(loss, layers)
        context = tf.distribute.get_replica_context()
        for layer, gradient in zip(layers, context.all_reduce("MEAN", gradients)):
            layer.assign_sub(0.01 * gradient)
        return loss

    @tf.function
    def step():
        return strategy.run(replica_step)

    step()
    first = time.time()
    for _ in range(steps):
        step()
    for layer in layers:
        strategy.experimental_local_results(layer)[0].numpy()
    return {"first": first, "steps_per_s": steps / (time.time() - first)}
"""
BARE = (
    LOOP
    + """
result = train(int(sys.argv[1]))
if len(sys.argv) > 2:
    with open(sys.argv[2], "w") as file:
        json.dump(result, file)
"""
)
OURS = (
    LOOP
    + """
from generic_trainer import training

def run_fn(fn_args):
    result = train(fn_args.train_steps)
    if training.is_chief():
        with open(fn_args.model_run_dir + "/result.json", "w") as file:
            json.dump(result, file)
"""
)


def run_bare(workers: int, steps: int, root: Path) -> Path:
    """Starts the workers as a script would, waits, and returns the file with the chief's result."""
    script, result = root / "bare.py", root / "result.json"
    script.write_text(BARE, encoding="utf-8")
    cluster = {"worker": [f"127.0.0.1:{port}" for port in _free_ports(workers)]}
    processes = []
    for index in range(workers):
        environment = dict(os.environ)
        if workers > 1:
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        output = [str(result)] if index == 0 else []
        command = [sys.executable, str(script), str(steps), *output]
        processes.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, cwd=root)
        )
    for process in processes:
        if process.wait():
            raise RuntimeError(f"the bare script ended with {process.returncode}")
    return result


def run_bare_ray(workers: int, steps: int, root: Path) -> Path:
    """Gives the loop to Ray Train, and returns the file with the chief's result."""
    from ray import train
    from ray.train.tensorflow import TensorflowTrainer

    names: dict[str, Any] = {}
    exec(compile(LOOP, "loop", "exec"), names)
    loop = names["train"]

    def train_loop(config: dict[str, Any]) -> None:
        result = loop(config["steps"])
        if train.get_context().get_world_rank() == 0:
            Path(config["result"]).write_text(json.dumps(result), encoding="utf-8")

    TensorflowTrainer(
        train_loop,
        train_loop_config={"steps": steps, "result": str(root / "result.json")},
        scaling_config=train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
        run_config=train.RunConfig(name="bench", storage_path=str(root / "ray")),
    ).fit()
    return root / "result.json"


def run_ours(
    launcher: str, workers: int, steps: int, root: Path, source: str = OURS, **fields: Any
) -> Path:
    """Launches the same loop as a `run_fn` and returns the file with the chief's result.

    Args:
        launcher: which one.
        workers: how many.
        steps: of the loop.
        root: an empty folder.
        source: the module file.
        **fields: further ones of the `Distribution`.
    """
    from generic_trainer.executors import FN_ARGS_FACTORY
    from generic_trainer.launchers import (
        Distribution,
        ExamplesFormat,
        Job,
        TrainingRequest,
        launch,
    )
    from generic_trainer.user_code import bundle_module_file

    (root / "ours.py").write_text(source, encoding="utf-8")
    for name in ("model", "model_run", "scratch"):
        (root / name).mkdir()
    request = TrainingRequest(
        user_code=bundle_module_file(str(root / "ours.py"), str(root / "bundles")),
        train_files=(),
        eval_files=(),
        split_files={},
        examples_format=ExamplesFormat(6),
        model_dir=str(root / "model"),
        model_run_dir=str(root / "model_run"),
        scratch_dir=str(root / "scratch"),
        train_steps=steps,
    )
    distribution = Distribution(launcher=launcher, num_workers=workers, **fields)
    launch(Job(request=request, fn_args_factory=FN_ARGS_FACTORY, distribution=distribution))
    return root / "model_run" / "result.json"


@contextlib.contextmanager
def own_ray() -> Iterator[None]:
    """Has a Ray with a CPU for each of two workers, which both ways use."""
    import ray

    os.environ.update(
        PYTHONPATH=str(ROOT),
        RAY_USAGE_STATS_ENABLED="0",
        # Its workers would have to wait for all others on a machine that is in use.
        RAY_worker_niceness="0",
        # Ray will only warn about what it will do in later versions, on every start.
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    )
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


def compare(launcher: str, workers: int, runs: int, steps: int) -> list[_figures.Figure]:
    """Runs both ways in turn, and prints a row for each."""
    bare = {"local": run_bare, "ray": run_bare_ray}[launcher]
    ways: dict[str, Callable[..., Path]] = {
        "bare": bare,
        launcher: lambda *arguments: run_ours(launcher, *arguments),
    }
    samples: dict[str, list[tuple[float, float]]] = {how: [] for how in ways}
    for _ in range(runs):
        for how, run in ways.items():
            samples[how].append(measure(run, workers, steps))
    (bare_first_s, bare_rates), (first_s, rates) = (
        zip(*taken, strict=True) for taken in samples.values()
    )
    what, beside = f"on {workers} worker(s), {launcher}", f"bare {launcher}"
    figures = [
        _figures.compare(f"first step {what}", first_s, "s", beside, bare_first_s,
                         less_is_better=True),
        _figures.compare(f"steps {what}", rates, "steps/s", beside, bare_rates),
    ]  # fmt: skip
    first, later = figures
    for how, seconds, first_ratio, rate, ratio in (
        ("bare", first.reference, 1, later.reference, 1),
        (launcher, first.value, first.ratio, later.value, later.ratio),
    ):
        print(
            f"{launcher:8}  {workers:7}  {how:5}  {seconds:8.1f} s  {first_ratio:5.2f}  "
            f"{rate:5.0f}/s  {ratio:5.2f}",
            flush=True,
        )
    return figures


def measure(run: Callable[[int, int, Path], Path], workers: int, steps: int) -> tuple[float, float]:
    """Returns seconds until the first step was done, and steps per second after it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.time()
        result = json.loads(run(workers, steps, Path(folder)).read_text(encoding="utf-8"))
    return result["first"] - start, result["steps_per_s"]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--launchers", nargs="+", choices=("local", "ray"), default=["local", "ray"]
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    _figures.add_json_option(parser)
    options = parser.parse_args()
    print(f"{'launcher':8}  workers  {'how':5}  first step  ratio    steps  ratio")
    figures = []
    for launcher in options.launchers:
        with own_ray() if launcher == "ray" else contextlib.nullcontext():
            for workers in (1, 2):
                figures += compare(launcher, workers, options.runs, options.steps)
    _figures.write(figures, options.json)


if __name__ == "__main__":
    main()
