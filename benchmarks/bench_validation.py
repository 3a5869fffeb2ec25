"""Cost of the checks, beside one `tf.saved_model.load` of the model.

::

    python -m benchmarks.bench_validation            # 1, 100 and 1000 MB
    python -m benchmarks.bench_validation --sizes 1 100 --runs 5 --checks
    python -m benchmarks.bench_validation --sizes 5 500 --signed

Medians of seconds, on the clock and of the processors, which other work changes less:

- load: a load in a process that has been forked from one that has TensorFlow loaded;
- process: the same with the import of TensorFlow, as a process that serves the model has it;
- checks: all of them, in processes that have been forked as for `load`;
- probing: what of this is calls with other rows, whose budget is `ServingContract.probe_s`.

The ratios are of all checks to `process` and to `load`, by the clock and by the processors. The
last columns are the peaks of resident memory of a load and of the checks. The models have a
variable per 2.5 MB, about as BERT-large has.

With `--signed`, which needs the extra `signing`, a line has the seconds that signing the model and
verifying it take, and their ratio to all checks; and once, those of importing the library.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import _figures
from generic_trainer.validation import Checker, sign_model, signature_problem

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
started = time.perf_counter()
import tensorflow as tf
imported = {"wall": time.perf_counter() - started, "cpu": time.process_time()}
for _ in range(int(sys.argv[2]) + 1):
    pid = os.fork()
    if pid == 0:
        started = time.perf_counter()
        tf.saved_model.load(sys.argv[1])
        wall, cpu = time.perf_counter() - started, time.process_time()
        lines = open("/proc/self/status").read().splitlines()
        peak_mb = next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
        told = {"wall": wall, "cpu": cpu, "imported": imported, "peak_mb": peak_mb}
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
    parser.add_argument("--signed", action="store_true", help="also what a signature takes")
    _figures.add_json_option(parser)
    options = parser.parse_args()
    if options.signed:
        print("importing model_signing: {:.2f} {:.2f} s".format(*_timed(_import_model_signing)))
    print(f"{'':>7} {'load':>11} {'process':>11} {'checks':>11} {'probing':>7} "
          f"{'to process':>11} {'to load':>11} {'peaks':>13}")  # fmt: skip
    figures = []
    with Checker() as checker:
        checker.validate("/nowhere")  # returns when the process is ready
        for size in options.sizes:
            with tempfile.TemporaryDirectory() as folder:
                model = str(Path(folder, "model"))
                _python(_WRITE, model, str(size))
                figures += _show(size, model, checker, options.runs, options.checks)
                if options.signed:
                    figures += _show_signing(size, model, checker, options.runs)
    _figures.write(figures, options.json)


def _show(
    megabytes: int, model: str, checker: Checker, runs: int, each: bool
) -> list[_figures.Figure]:
    # The first fills the page cache, for both alike.
    loads = [json.loads(line) for line in _python(_LOAD, model, str(runs)).splitlines()][1:]
    reports = [checker.validate(model) for _ in range(runs)]
    assert all(report.passed for report in reports), reports[0].summary()
    seconds = {
        result.name: _median(report[result.name].seconds for report in reports)
        for result in reports[0].results
    }
    probing_s = sum(seconds[name] for name in _PROBING)
    columns, figures = [], []
    for kind, fact in (("wall", "seconds"), ("cpu", "cpu_seconds")):
        load_s = _median(load[kind] for load in loads)
        process_s = load_s + loads[0]["imported"][kind]
        checks_s = _median(report.facts[fact] for report in reports)
        columns.append((load_s, process_s, checks_s, checks_s / process_s, checks_s / load_s))
        ours, theirs = ([report.facts[fact] for report in reports], [load[kind] for load in loads])
        what = f"all checks of {megabytes} MB, {kind} time"
        figures.append(_figures.compare(what, ours, "s", "one load", theirs, less_is_better=True))
    load, process, checks, to_process, to_load = (
        f"{wall:>5.2f} {cpu:>5.2f}" for wall, cpu in zip(*columns, strict=True)
    )
    peaks_mb = [_median(run["peak_mb"] for run in loads)]
    peaks_mb.append(_median(report.facts["peak_memory_mb"] for report in reports))
    print(
        f"{megabytes:>4} MB {load} {process} {checks} {probing_s:>7.2f} {to_process} {to_load} "
        f"{peaks_mb[0]:>5.0f} {peaks_mb[1]:>5.0f} MiB",
        flush=True,
    )
    if each:
        for name, taken in sorted(seconds.items(), key=lambda item: -item[1])[:12]:
            print(f"{taken:>11.3f} s {name}")
    return figures


def _show_signing(megabytes: int, model: str, checker: Checker, runs: int) -> list[_figures.Figure]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder, key = Path(model).parent, ec.generate_private_key(ec.SECP256R1())
    private, public = str(folder / "key.pem"), str(folder / "key.pub")
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    Path(private).write_bytes(key.private_bytes(*pem, serialization.NoEncryption()))
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    Path(public).write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, info))
    checks, signing, verifying = [], [], []
    for _ in range(runs):
        checks.append(checker.validate(model).facts)
        signing.append(_timed(lambda: sign_model(model, private, str(folder))))
        verifying.append(_timed(lambda: signature_problem(model, public)))
    assert signature_problem(model, public) is None
    figures = []
    for kind, fact in enumerate(("seconds", "cpu_seconds")):
        theirs = [facts[fact] for facts in checks]
        for what, taken in (("signing", signing), ("verifying", verifying)):
            ours = [each[kind] for each in taken]
            name = f"{what} {megabytes} MB, {('wall', 'cpu')[kind]} time"
            figures.append(
                _figures.compare(name, ours, "s", "all checks", theirs, less_is_better=True)
            )
            print(f"{name}: {figures[-1].value:.3f} s, {figures[-1].ratio:.3f} of all checks")
    return figures


def _import_model_signing() -> None:
    import model_signing  # noqa: F401


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds of a call, on the clock and of the processors."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
