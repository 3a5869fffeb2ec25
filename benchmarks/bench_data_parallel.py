"""Steps per second on two workers, Keras 3 against TensorFlow's own strategy with Keras 2.

    python -m benchmarks.bench_data_parallel [--runs 3] [--steps 300]

1. The same model, by `model.fit`, on two processes of one core each: Keras 3 in
   `training.get_strategy()`, and Keras 2 in `tf.distribute.MultiWorkerMirroredStrategy`.
2. The time of `training.distributed.all_reduce` of the model's gradients, against that of the bare
   op on as many numbers in one tensor.

Prints medians over several runs of both ways in turn, and the ratios to TensorFlow's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import _figures

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300.0  # for one run, a hang included
WORKERS, BATCH, FEATURES, UNITS = 2, 64, 64, 256
SHAPES = ((FEATURES, UNITS), (UNITS,), (UNITS, UNITS), (UNITS,), (UNITS, 1), (1,))


def train(way: str, steps: int) -> dict[str, float]:
    """Returns the steps per second of a worker, and with Keras 3 what its sums take."""
    import tensorflow as tf

    from generic_trainer import training

    if way == "tensorflow":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = training.get_strategy()
    keras = tf.keras
    with strategy.scope():
        layers = [keras.layers.Dense(UNITS, activation="relu") for _ in range(2)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(), "mse")
    rows = tf.random.stateless_normal((BATCH, FEATURES), (3, 4))
    dataset = tf.data.Dataset.from_tensors((rows, tf.ones([BATCH, 1]))).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(options)
    model.fit(dataset, steps_per_epoch=20, verbose=0)  # traces it
    start = time.perf_counter()
    model.fit(dataset, steps_per_epoch=steps, verbose=0)
    result = {"steps_per_s": steps / (time.perf_counter() - start)}
    return result if way == "tensorflow" else {**result, **_sums(steps)}


def _sums(repeats: int) -> dict[str, float]:
    import tensorflow as tf

    from generic_trainer.training import distributed

    tensors = [tf.ones(shape) for shape in SHAPES]
    flat = tf.concat([tf.reshape(each, [-1]) for each in tensors], 0)

    @tf.function
    def ours() -> Any:
        return distributed.all_reduce(tensors)

    @tf.function
    def bare() -> Any:
        return tf.raw_ops.CollectiveReduceV2(
            input=flat,
            group_size=WORKERS,
            group_key=1 << 21,
            instance_key=1,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )

    times: dict[str, list[float]] = {"all_reduce_ms": [], "bare_op_ms": []}
    for _ in range(repeats):  # in turn, so that both meet the same noise
        for name, function in (("all_reduce_ms", ours), ("bare_op_ms", bare)):
            start = time.perf_counter()
            function()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in times.items()}


def run(way: str, steps: int) -> dict[str, float]:
    """Trains on two workers and returns what the first has measured."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for index in range(WORKERS):
            config = {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": index},
            }
            legacy = str(int(way == "tensorflow"))
            environment = {
                **os.environ,
                "TF_CONFIG": json.dumps(config),
                "TF_USE_LEGACY_KERAS": legacy,
            }
            command = [sys.executable, "-m", "benchmarks.bench_data_parallel", "--worker", way]
            command += ["--steps", str(steps), "--result", f"{folder}/{index}"]
            command += ["--core", str(cores[index % len(cores)])]
            with open(f"{folder}/{index}.log", "wb") as log:
                processes.append(subprocess.Popen(command, env=environment, cwd=ROOT, stderr=log))
        for index, process in enumerate(processes):
            if _status(process, processes):
                said = Path(folder, f"{index}.log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"worker {index} of {way} has failed: {said[-3000:]}")
        result: dict[str, float] = json.loads(Path(folder, "0").read_text(encoding="utf-8"))
        return result


def _status(process: subprocess.Popen[bytes], everyone: list[subprocess.Popen[bytes]]) -> int:
    """Returns the exit status of a worker; where it has failed, the others are killed."""
    status = 1
    try:
        status = process.wait(LIMIT_S)
    finally:
        for each in everyone if status else ():
            each.kill()
    return status


def main() -> None:
    """Prints the table; in a worker, trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    _figures.add_json_option(parser)
    for name in ("--worker", "--result", "--core"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        os.sched_setaffinity(0, {int(arguments.core)})
        result = train(arguments.worker, arguments.steps)
        Path(arguments.result).write_text(json.dumps(result), encoding="utf-8")
        return
    samples: dict[str, list[dict[str, float]]] = {"tensorflow": [], "generic_trainer": []}
    for _ in range(arguments.runs):
        for way, taken in samples.items():
            taken.append(run(way, arguments.steps))
    medians = {
        way: {name: statistics.median(each[name] for each in taken) for name in taken[0]}
        for way, taken in samples.items()
    }
    theirs, ours = medians["tensorflow"], medians["generic_trainer"]
    print(f"Keras 2, MultiWorkerMirroredStrategy  {theirs['steps_per_s']:6.0f} steps/s")
    ratio = ours["steps_per_s"] / theirs["steps_per_s"]
    print(
        f"Keras 3, training.get_strategy()      {ours['steps_per_s']:6.0f} steps/s  {ratio:.2f} x"
    )
    print(f"the bare op                           {ours['bare_op_ms']:6.2f} ms")
    ratio = ours["all_reduce_ms"] / ours["bare_op_ms"]
    print(
        f"distributed.all_reduce                {ours['all_reduce_ms']:6.2f} ms       {ratio:.2f} x"
    )
    own = {name: [each[name] for each in samples["generic_trainer"]] for name in ours}
    steps = [each["steps_per_s"] for each in samples["tensorflow"]]
    figures = [
        _figures.compare(
            "training.get_strategy() of Keras 3", own["steps_per_s"], "steps/s",
            "MultiWorkerMirroredStrategy of Keras 2", steps,
        ),
        _figures.compare(
            "distributed.all_reduce", own["all_reduce_ms"], "ms",
            "the bare op", own["bare_op_ms"], less_is_better=True,
        ),
    ]  # fmt: skip
    _figures.write(figures, arguments.json)


if __name__ == "__main__":
    main()
