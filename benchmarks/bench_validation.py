"""Cost of the checks, beside one plain `tf.saved_model.load` in a fresh process.

::

    python -m benchmarks.bench_validation            # 1, 100 and 1000 MB
    python -m benchmarks.bench_validation --sizes 1 100

Columns: seconds for the plain load with the interpreter's start and the import of TensorFlow; for
all checks in the same way; for all checks when the process was started before; for the static
checks alone; the peak of resident memory of both processes beyond that of the import. The models
have a variable per 2.5 MB, about as BERT-large has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from generic_trainer.validation import start_checker, validate_saved_model

_WRITE = """
import sys, tensorflow as tf
megabytes = int(sys.argv[2])
module = tf.Module()
count, width = (10, 25) if megabytes == 1 else (megabytes * 2 // 5, 625)
module.layers = [tf.Variable(tf.random.normal([1000, width])) for _ in range(count)]
def serve(x):
    y = tf.zeros_like(x[:, :1])
    for layer in module.layers:
        y += tf.reduce_mean(x @ layer, axis=1, keepdims=True)
    return {"y": y}
spec = tf.TensorSpec([None, 1000], tf.float32, name="x")
module.serve = tf.function(serve, input_signature=[spec])
tf.saved_model.save(module, sys.argv[1], signatures={"serving_default": module.serve})
"""
_LOAD = """
import json, sys
def resident(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key))
import tensorflow as tf
before = resident("VmRSS")
tf.saved_model.load(sys.argv[1])
print(json.dumps({"import_mb": before, "peak_mb": resident("VmHWM") - before}))
"""


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 100, 1000], metavar="MB")
    sizes = parser.parse_args().sizes
    print(f"{'model':>8} {'plain load':>11} {'all checks':>11} {'ratio':>6} {'prestarted':>11} "
          f"{'static':>7} {'plain peak':>11} {'checks peak':>12}")  # fmt: skip
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            print(_row(size, str(Path(folder, "model"))), flush=True)


def _row(megabytes: int, model: str) -> str:
    _python(_WRITE, model, str(megabytes))
    _python(_LOAD, model)  # fills the page cache, for both alike
    started = time.perf_counter()
    plain = json.loads(_python(_LOAD, model))
    plain_s = time.perf_counter() - started
    started = time.perf_counter()
    report = validate_saved_model(model)
    checks_s = time.perf_counter() - started
    assert report.passed, report.summary()
    with start_checker() as checker:
        checker.validate("/nowhere")  # returns when the process is ready
        started = time.perf_counter()
        prestarted = checker.validate(model)
        prestarted_s = time.perf_counter() - started
    static_s = 0.0
    for result in prestarted.results:
        if result.name == "loads":
            break
        static_s += result.seconds
    peak_mb = prestarted.facts["peak_memory_mb"] - plain["import_mb"]
    return (
        f"{megabytes:>5} MB {plain_s:>9.2f} s {checks_s:>9.2f} s {checks_s / plain_s:>6.2f} "
        f"{prestarted_s:>9.2f} s {static_s:>5.2f} s {plain['peak_mb']:>7.0f} MiB "
        f"{peak_mb:>8.0f} MiB"
    )


def _python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
