"""What `launcher="local"` costs: the same loop, started by it and by a bare script.

    python -m benchmarks.bench_distribution [--runs 3] [--steps 300]

The bare script starts its processes itself, sets `TF_CONFIG`, and imports TensorFlow and nothing
else. Both ways train the same model in the same custom loop, alone and with
`MultiWorkerMirroredStrategy` on two workers, in turn. Prints the median time from the start to the
end of the first step, the steps per second after it, and the ratio to the bare script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LOOP = """
import json, os, sys, time
import tensorflow as tf

BATCH, FEATURES, UNITS = 64, 64, 256

def train(steps):
    strategy = tf.distribute.get_strategy()
    if "TF_CONFIG" in os.environ:
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


def run_ours(workers: int, steps: int, root: Path) -> Path:
    """Launches the same loop as a `run_fn` and returns the file with the chief's result."""
    from generic_trainer.launchers import Distribution, Job, launch
    from generic_trainer.request import ExamplesFormat, TrainingRequest
    from generic_trainer.run import FN_ARGS_FACTORY
    from generic_trainer.user_code import bundle_module_file

    (root / "ours.py").write_text(OURS, encoding="utf-8")
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
    distribution = Distribution(launcher="local", num_workers=workers)
    launch(Job(request=request, fn_args_factory=FN_ARGS_FACTORY, distribution=distribution))
    return root / "model_run" / "result.json"


def measure(run: Callable[[int, int, Path], Path], workers: int, steps: int) -> tuple[float, float]:
    """Returns seconds until the first step was done, and steps per second after it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.time()
        result = json.loads(run(workers, steps, Path(folder)).read_text(encoding="utf-8"))
    return result["first"] - start, result["steps_per_s"]


def _free_ports(count: int) -> list[int]:
    from generic_trainer.launchers.local._ports import reserved_ports

    with reserved_ports(count) as addresses:
        return [int(address.rpartition(":")[2]) for address in addresses]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    rows = []
    for workers in (1, 2):
        samples: dict[str, list[tuple[float, float]]] = {"bare": [], "local": []}
        for _ in range(options.runs):
            samples["bare"].append(measure(run_bare, workers, options.steps))
            samples["local"].append(measure(run_ours, workers, options.steps))
        medians = {
            name: [statistics.median(column) for column in zip(*taken, strict=True)]
            for name, taken in samples.items()
        }
        for name, (first_s, rate) in medians.items():
            ratio = rate / medians["bare"][1]
            rows.append(f"{workers:7}  {name:6}  {first_s:10.1f} s  {rate:9.0f}/s  {ratio:6.2f}")
    print("workers  how       first step      steps   ratio")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
