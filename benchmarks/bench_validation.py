"""Cost of the checks, in loads of the model by a process that has TensorFlow loaded.

::

    python -m benchmarks.bench_validation            # 1, 100 and 1000 MB
    python -m benchmarks.bench_validation --sizes 1 100 --runs 5

Medians of what a plain `tf.saved_model.load` takes and of what all checks take, each in processes
that have been forked from one that has TensorFlow loaded. The probing has a budget of seconds of
its own, `ServingContract.probe_s`, and is shown apart. Beside the seconds on the clock stand those
of the processors, which other work on the machine changes less. The last columns are the ratio of
all checks to a load, by the clock and by the processors; the same without the probing; and the peak
of resident memory beyond that of the import, of a load and of the checks. The models have a
variable per 2.5 MB, about as BERT-large has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks import _figures
from generic_trainer.validation import Checker, start_checker

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
import json, os, sys, time
import tensorflow as tf
def resident(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key))
before = resident("VmRSS")
for _ in range(int(sys.argv[2]) + 1):
    pid = os.fork()
    if pid == 0:
        started = time.perf_counter()
        tf.saved_model.load(sys.argv[1])
        wall = time.perf_counter() - started
        told = {"wall": wall, "cpu": time.process_time(), "import_mb": before,
                "peak_mb": resident("VmHWM") - before}
        os.write(1, (json.dumps(told) + "\\n").encode())
        os._exit(0)
    os.waitpid(pid, 0)
"""
_PROBING = ("eval_rows", "without_optional", "schema_rows", "observed_rows", "batch_sizes",
            "unforeseen_rows")  # fmt: skip


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 100, 1000], metavar="MB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--checks", action="store_true", help="also what each check takes")
    _figures.add_json_option(parser)
    options = parser.parse_args()
    print(f"{'model':>8} {'load':>8} {'cpu':>8} {'checks':>8} {'cpu':>8} {'probing':>8} "
          f"{'ratio':>6} {'cpu':>6} {'without':>8} {'load peak':>10} {'peak':>9}")  # fmt: skip
    figures = []
    with start_checker() as checker:
        checker.validate("/nowhere")  # returns when the process is ready
        for size in options.sizes:
            with tempfile.TemporaryDirectory() as folder:
                model = str(Path(folder, "model"))
                _python(_WRITE, model, str(size))
                figures += _show(size, model, checker, options.runs, options.checks)
    _figures.write(figures, options.json)


def _show(
    megabytes: int, model: str, checker: Checker, runs: int, each: bool
) -> list[_figures.Figure]:
    # The first fills the page cache, for both alike.
    loads = [json.loads(line) for line in _python(_LOAD, model, str(runs)).splitlines()][1:]
    reports = [checker.validate(model) for _ in range(runs)]
    assert all(report.passed for report in reports), reports[0].summary()
    load_s, load_cpu_s, load_mb = (
        _median(run[k] for run in loads) for k in ("wall", "cpu", "peak_mb")
    )
    checks_s, cpu_s, peak_mb = (
        _median(report.facts[key] for report in reports)
        for key in ("seconds", "cpu_seconds", "peak_memory_mb")
    )
    seconds = {
        name: _median(report[name].seconds for report in reports)
        for name in (result.name for result in reports[0].results)
    }
    probing_s = sum(seconds[name] for name in _PROBING)
    print(
        f"{megabytes:>5} MB {load_s:>6.2f} s {load_cpu_s:>6.2f} s {checks_s:>6.2f} s "
        f"{cpu_s:>6.2f} s {probing_s:>6.2f} s {checks_s / load_s:>6.2f} {cpu_s / load_cpu_s:>6.2f} "
        f"{(checks_s - probing_s) / load_s:>8.2f} {load_mb:>6.0f} MiB "
        f"{peak_mb - loads[0]['import_mb']:>5.0f} MiB",
        flush=True,
    )
    if each:
        for name, taken in sorted(seconds.items(), key=lambda item: -item[1])[:12]:
            print(f"{'':>8} {taken:>6.3f} s {name}")
    pairs = {"wall": "seconds", "cpu": "cpu_seconds"}
    return [
        _figures.compare(
            f"all checks of {megabytes} MB, {kind} time",
            [report.facts[fact] for report in reports],
            "s", "one load", [run[kind] for run in loads], less_is_better=True,
        )
        for kind, fact in pairs.items()
    ]  # fmt: skip


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
