"""How many broken models a rehearsal of `run_fn` finds before the first step of the training.

    python -m tests.validation.table_rehearsals [--models 60] [--seed 1] [--seconds 1500]

Each model of a random sample gets a module whose `run_fn` trains for a step, and then exports the
model by the recipe of the tests. The module has no `export_fn`, so that it is rehearsed as any is:
called on a few records, in a process that may write nowhere else. Counted are the models that are
refused then, with `rehearse=True`, and by default, which may refuse only what training cannot cure.
The sample is of the models that the checks refuse, and not of those that they warn of.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MODULE = """
import shutil, sys
from pathlib import Path

import tensorflow as tf

def run_fn(fn_args):
    weight = tf.Variable([[0.0]])
    rows = tf.data.TFRecordDataset(tf.io.gfile.glob(fn_args.train_files), compression_type="GZIP")
    for row in rows.take(fn_args.train_steps).batch(1):
        x = tf.io.parse_example(row, {{"x": tf.io.FixedLenFeature([1], tf.float32)}})["x"]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weight - 1.0) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
    sys.path.insert(0, {root!r})
    from tests.validation.catalogue.sources import all_faults
    made = Path(fn_args.model_run_dir, "made")
    all_faults()[{name!r}].make(Path({good!r}), made)
    shutil.copytree(made, fn_args.serving_model_dir, symlinks=True, dirs_exist_ok=True)
"""


def main() -> int:
    """Prints a line for each model, and the shares; the exit code tells whether 80 % are found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none later")
    options = parser.parse_args()

    from generic_trainer.validation import start_checker
    from tests.validation import models
    from tests.validation.catalogue.sources import all_faults

    refused = sorted(
        name for name, fault in all_faults().items() if fault.status == "fail" and not fault.missed
    )
    sample = random.Random(options.seed).sample(refused, min(options.models, len(refused)))
    ends = time.monotonic() + options.seconds
    asked = by_default = tried = 0
    with tempfile.TemporaryDirectory() as folder, start_checker(timeout_s=60.0) as checker:
        good = models.good(Path(folder, "good"))
        for name in sample:
            if time.monotonic() > ends:
                break
            tried += 1
            is_refused, is_certain, said = _rehearsed(Path(folder, name), name, good, checker)
            asked, by_default = asked + is_refused, by_default + is_certain
            print(f"{name}: {said}", flush=True)
    print(
        f"{tried} of {len(refused)} models, seed {options.seed}: {asked} refused with "
        f"rehearse=True ({asked / tried:.0%}), {by_default} by default ({by_default / tried:.0%})"
    )
    return int(asked < 0.8 * tried)


def _rehearsed(folder: Path, name: str, good: Path, checker: object) -> tuple[bool, bool, str]:
    """Returns whether a rehearsal refuses a model if asked for, and by default, and its words."""
    from generic_trainer._run.rehearsal import not_cured_by_training, rehearse
    from generic_trainer.errors import ModelValidationError
    from generic_trainer.validation import ServingContract
    from tests._run.test_rehearsal import job_on_examples
    from tests.validation.catalogue.sources import all_faults

    folder.mkdir()
    job = job_on_examples(folder, _MODULE.format(root=str(ROOT), name=name, good=str(good)))
    contract = all_faults()[name].contract_for(good) or ServingContract(signatures=())
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("generic_trainer._run.rehearsal")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        rehearse(job, dataclasses.replace(contract, rehearse=True), checker)  # type: ignore[arg-type]
    except ModelValidationError as error:
        failed = ", ".join(result.name for result in error.report.failures)
        is_certain = not not_cured_by_training(error.report).passed
        return True, is_certain, failed + ("" if is_certain else " (if asked for)")
    finally:
        logger.removeHandler(handler)
    return False, False, "; ".join(told) or "passes"


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
