"""Which broken models are found before publishing: by TFX, by `saved_model_cli`, by the validator.

    python -m benchmarks.table_broken_models

Makes every broken model of the validator's tests and shows it to each of the three:

- TFX's Trainer looks whether the directory exists.
- `saved_model_cli show --all` must read the model, and `saved_model_cli scan` must not complain.
- The validator must fail or warn.

Prints one Markdown row for each check of the validator, with the number of models found.
"""

from __future__ import annotations

import collections
import contextlib
import io
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FINDERS = ("TFX", "saved_model_cli", "validator")


def main() -> None:
    """Prints the table."""
    from generic_trainer.validation import start_checker
    from tests.validation import models
    from tests.validation.broken import RECIPES

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
            result = checker.validate(str(broken), recipe.contract)[recipe.check]
            row["validator"] += result.status in ("fail", "warn")
    _print(found)


def _cli_complains(model_dir: Path) -> bool:
    """Whether `saved_model_cli` fails, or its scan names an op."""
    from tensorflow.python.tools import saved_model_cli

    parser = saved_model_cli.create_parser()
    for command in (["show", "--all"], ["scan"]):
        arguments = parser.parse_args([*command, "--dir", str(model_dir)])
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                arguments.func(arguments)
            except (Exception, SystemExit):
                return True
        if command == ["scan"] and "contains the following denylisted ops" in output.getvalue():
            return True
    return False


def _print(found: dict[str, collections.Counter[str]]) -> None:
    print("| check | broken models | " + " | ".join(FINDERS) + " |")
    print("|---|---|" + "---|" * len(FINDERS))
    total: collections.Counter[str] = sum(found.values(), collections.Counter())
    for check, row in [*found.items(), ("**all**", total)]:
        counts = " | ".join(str(row[finder]) for finder in FINDERS)
        print(f"| {check} | {row['models']} | {counts} |")


if __name__ == "__main__":
    main()
