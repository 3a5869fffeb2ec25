"""Broken models that are found before publishing: by TFX, by `saved_model_cli`, by the validator.

    python -m tests.validation.table_broken_models

Makes every broken model of the validator's tests and shows it to each of the three:

- TFX's Trainer looks whether the directory exists.
- `saved_model_cli show --all` must read the model, and `saved_model_cli scan` must not complain.
- The validator must fail or warn.

Prints one Markdown row for each check of the validator, with the number of models found. Two
columns more say how many a rehearsal finds before the first training step, were the model what
`export_fn` writes: by default, where it may refuse only what training does not change, and with
`rehearse=True`.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tensorflow.python.tools.saved_model_cli"])

FINDERS = ("TFX", "saved_model_cli", "validator", "rehearsal", "rehearse=True")


def main() -> None:
    """Prints the table."""
    from generic_trainer._run.rehearsal import not_cured_by_training
    from generic_trainer.validation import start_checker
    from tests.validation import models
    from tests.validation.broken_rows import RECIPES

    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as scratch, start_checker(timeout_s=30) as checker:
        good = models.good(Path(scratch, "good"))
        for name, recipe in RECIPES.items():
            broken = Path(scratch, name)
            recipe.make(good, broken)
            row = found[recipe.check]
            row["models"] += 1
            row["TFX"] += not broken.exists()
            row["saved_model_cli"] += _cli_complains(broken)
            report = checker.validate(str(broken), recipe.contract)
            row["validator"] += report[recipe.check].status in ("fail", "warn")
            row["rehearsal"] += not not_cured_by_training(report).passed
            row["rehearse=True"] += not report.passed
    _print(found)


def _cli_complains(model_dir: Path) -> bool:
    """Whether `saved_model_cli` fails, or its scan names an op."""
    not_shown, _ = _cli("show", "--all", "--dir", str(model_dir))
    not_scanned, said = _cli("scan", "--tag_set", "serve", "--dir", str(model_dir))
    return not_shown or not_scanned or "contains the following denylisted ops" in said


def _cli(*arguments: str) -> tuple[bool, str]:
    """Runs the tool in a process of its own, which has TensorFlow; returns whether it failed."""
    with tempfile.NamedTemporaryFile("r") as output:
        process = _processes.Process(target=_cli_main, args=(arguments, output.name))
        process.start()
        process.join()
        return process.exitcode != 0, output.read()


def _cli_main(arguments: Sequence[str], output: str) -> None:
    from tensorflow.python.tools import saved_model_cli

    descriptor = os.open(output, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    sys.argv = ["saved_model_cli", *arguments]
    saved_model_cli.main()


def _print(found: dict[str, collections.Counter[str]]) -> None:
    print("| check | broken models | " + " | ".join(FINDERS) + " |")
    print("|---|---|" + "---|" * len(FINDERS))
    total: collections.Counter[str] = sum(found.values(), collections.Counter())
    for check, row in [*found.items(), ("**all**", total)]:
        counts = " | ".join(str(row[finder]) for finder in FINDERS)
        print(f"| {check} | {row['models']} | {counts} |")


if __name__ == "__main__":
    main()
