"""Hundreds of fits and hundreds of validations in one process, without growth.

Every other step fits a model in this process, through a launcher, with checkpoints and a resume;
the others check one, with a new checking process every now and then. After each step memory,
descriptors, threads, child processes and temporary files are counted. The first third warms up:
caches fill, pools of threads and of memory come to their size. From there on the counts may not
grow, and memory by no more than what TensorFlow keeps of a fit without this package, which is
measured beside it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaigns._modules import SOURCES, STEPS
from benchmarks.campaigns._processes import TIMEOUT_S, Violation, descendants, finish, fork
from benchmarks.campaigns._runs import SERVING_DIR, kept_if_failed
from generic_trainer.executors import FN_ARGS_FACTORY
from generic_trainer.launchers import ExamplesFormat, Job, TrainingRequest, launch
from generic_trainer.user_code import UserCode, bundle_module_file
from generic_trainer.validation import Checker

# Fits and validations together.
FULL_SIZE = 600
_VALIDATIONS_OF_A_CHECKER = 25
# More than the noise of allocators, less than any array, model or graph that is kept.
MEMORY_KB = 24.0
# Of what TensorFlow keeps in each fit, as the slopes of few fits have it.
_NOISE = 1.1
_TF_EXAMPLE = 6  # tfx.proto.example_gen_pb2.PayloadFormat.FORMAT_TF_EXAMPLE


def run(dice: random.Random, size: int, examples: Any) -> str:
    """Takes `size` steps, half of them fits; returns the summary.

    Raises:
        Violation: something grows.
    """
    with kept_if_failed("growth") as folder:
        bare = _measured(folder / "bare", lambda number: _fit_bare(), size // 2)
        module = folder / "trainer.py"
        head = "def run_fn(fn_args):\n"
        clear = "    tf.keras.backend.clear_session()\n"
        module.write_text(SOURCES["fit"].replace(head, head + clear))
        code = bundle_module_file(str(module), str(folder))
        fits = _measured(
            folder / "fits", functools.partial(_fit, folder / "fits", code, examples), size // 2
        )
        checks = _measured(folder / "checks", _Checks(folder).step, size // 2)
        bare_kb = max(0.0, bare["memory kB"])
        kept_kb = {"fits": MEMORY_KB + _NOISE * bare_kb, "validations": MEMORY_KB}
        grown = {
            f"{what} in {name}": slope
            for name, slopes in (("fits", fits), ("validations", checks))
            for what, slope in slopes.items()
            if slope > (kept_kb[name] if what == "memory kB" else 0.0)
        }
        if grown:
            raise Violation(f"growth in each step: {grown} (bare fits: {bare})")
    return (
        f"{size // 2} fits and {size // 2} validations; memory grows by "
        f"{fits['memory kB']:.0f} and {checks['memory kB']:.0f} kB in each (bare fit: "
        f"{bare['memory kB']:.0f} kB), nothing else does"
    )


def _measured(folder: Path, step: Callable[[int], None], size: int) -> dict[str, float]:
    """Takes steps in a process of their own; returns what grows in each of the last two thirds."""
    result = folder / "growth.json"
    folder.mkdir()

    def grow() -> None:
        os.environ["CAMPAIGN_NOTES"] = str(folder / "notes")
        series = []
        for number in range(size):
            step(number)
            series.append(_counts())
        result.write_text(json.dumps(series))

    code = finish(fork(grow, folder / "output"), TIMEOUT_S + 20.0 * size)
    if code != 0:
        raise Violation((folder / "output").read_text(errors="replace")[-8000:])
    series = json.loads(result.read_text())[size // 3 :]
    slopes = {what: _slope([counts[what] for counts in series]) for what in series[0]}
    print(f"{folder.name}: {slopes}; at the end {series[-1]}", file=sys.stderr, flush=True)
    return slopes


def _slope(values: list[float]) -> float:
    """Returns the growth in each step, robust against steps that stand out (Theil, 1950)."""
    return statistics.median(
        (later - earlier) / (j - i)
        for i, earlier in enumerate(values)
        for j, later in enumerate(values[i + 1 :], i + 1)
    )


def _counts() -> dict[str, float]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory kB": float(status["RssAnon"].split()[0]),
        "threads": float(status["Threads"]),
        "descriptors": float(len(os.listdir("/proc/self/fd"))),
        "processes": float(len(descendants())),
        "temporary files": float(sum(len(files) for *_, files in os.walk(tempfile.gettempdir()))),
        "temporary folders": float(
            sum(len(names) for _, names, _ in os.walk(tempfile.gettempdir()))
        ),
    }


def _fit(folder: Path, code: UserCode, examples: Any, number: int) -> None:
    """Trains through the launcher: user code, output, reader, checkpoints and export."""
    files = tuple(os.path.join(examples.uri, f"Split-{split}", "*") for split in ("train", "eval"))
    run_dir = folder / str(number)
    with tempfile.TemporaryDirectory() as scratch_dir:
        request = TrainingRequest(
            user_code=code,
            train_files=files[:1],
            eval_files=files[1:],
            split_files={"train": files[:1], "eval": files[1:]},
            examples_format=ExamplesFormat(_TF_EXAMPLE),
            model_dir=str(run_dir / "model"),
            model_run_dir=str(run_dir / "model_run" / "1"),
            scratch_dir=scratch_dir,
            train_steps=STEPS // 3,
            seed=1,
        )
        launch(Job(request=request, fn_args_factory=FN_ARGS_FACTORY))
    shutil.rmtree(run_dir)


def _fit_bare() -> None:
    """Trains and exports a model of the same kind without this package."""
    import tensorflow as tf

    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    # As in the module file, whose comment says why.
    model.train_step = tf.autograph.experimental.do_not_convert(model.train_step)
    model.compile("adam", "mse")
    x = np.arange(32, dtype=np.float32)[:, None] / 100
    data = tf.data.Dataset.from_tensor_slices((x, 2 * x)).repeat().batch(4).map(lambda *xy: xy)
    model.fit(data, epochs=2, steps_per_epoch=STEPS // 6, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        _save(model.get_weights(), folder)


def _save(weights: list[np.ndarray], folder: str) -> None:
    import tensorflow as tf

    class Line(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = (tf.Variable(each) for each in weights)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def serve(self, examples: Any) -> dict[str, Any]:
            features = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
            return {"outputs": features["x"] @ self.weight + self.bias}

    line = Line()
    tf.saved_model.save(line, folder, signatures={"serving_default": line.serve})


class _Checks:
    """Validations of one model."""

    def __init__(self, folder: Path) -> None:
        self._model = str(folder / SERVING_DIR)
        self._checker: Checker | None = None

    def step(self, number: int) -> None:
        """Checks the model; the first call exports it."""
        if number == 0:
            _save([np.ones([1, 1], np.float32), np.zeros(1, np.float32)], self._model)
        if number % _VALIDATIONS_OF_A_CHECKER == 0:
            if self._checker is not None:
                self._checker.close()
            self._checker = Checker()
        report = self._checker.validate(self._model)  # type: ignore[union-attr]
        if not report.passed:
            raise Violation(report.summary())
