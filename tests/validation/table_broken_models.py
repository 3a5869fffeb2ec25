"""The table of broken models: what finds each, of this validator and of other tools.

    python -m tests.validation.table_broken_models [--tool-python PYTHON] [--write]

Makes every broken model of the tests and of their catalogue, and every good one, and shows them to

- TFX's Trainer, which looks whether the directory exists;
- the tools of `other_tools.py`, those that are installed here and, with `--tool-python`, modelscan
  and MLflow in an environment of their own;
- the validator, which must find the broken ones by the check meant for them and pass the good ones.

Two columns more say which a rehearsal finds before the first training step, were the model what
`export_fn` writes: by default, where it may refuse only what training does not change, and with
`rehearse=True`. `--write` puts the page into docs/, else it is printed. The exit code tells whether
a broken model was missed that can be known, or a good one refused.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PAGE = Path(__file__).parents[2] / "docs" / "broken-models.md"
TOOLS = ("cli_show", "cli_run", "call", "session")
OTHERS = ("modelscan", "mlflow")
HEADS = {
    "exists": "exists()", "cli_show": "cli show", "cli_run": "cli run", "call": "load, call",
    "session": "session", "modelscan": "modelscan", "mlflow": "MLflow", "ours": "ours",
    "before": "before training", "asked": "rehearse=True",
}  # fmt: skip
GROUPS = (
    ("no SavedModel, or none to serve", "presence parses serve_tag signatures_exist "
     "required_signatures inputs_read"),
    ("damaged or mixed files", "fingerprint variables_read variables_finite assets leftovers loads "
     "manifest_matches golden"),
    ("signatures", "signature_specs batch_dimension output_shape serialized_input "
     "composite_tensors signature_tensors signature_methods label_inputs base_model"),
    ("reaches files or the network", "file_ops"),
    ("tied to this machine, library or code", "python_ops denied_ops unregistered_ops "
     "absolute_paths devices compiled_functions tensorflow_version session"),
    ("predictions: NaN, random, of the wrong row, or none", "scores row_independence deterministic "
     "output_per_row outputs_finite outputs_vary state_growth latency memory"),
    ("rows that the first examples do not show, other names and words", "eval_rows schema_rows "
     "observed_rows unforeseen_rows batch_sizes without_label without_optional schema_features "
     "vocabularies"),
    ("warm-up requests", "warmup"),
    ("the Evaluator's config", "eval_config eval_signatures eval_rehearsal"),
)  # fmt: skip
_INTRODUCTION = """\
`python -m tests.validation.table_broken_models --write`; the recipes are in `tests/validation`.
A name like `serving#992` is an issue of the repository of that name, where `tensorflow`, `serving`,
`tfx`, `transform`, `model-analysis`, `hub`, `keras` and the like are TensorFlow's and Keras's own;
other sources name what breaks.

- exists(): what TFX's Trainer asks of a model.
- cli show: `saved_model_cli show --all` and `scan`; cli run: its `run`, with two rows.
- load, call: `tf.saved_model.load` in a process of its own, and one call with two rows.
- session: a stand-in for InfraValidator, as TensorFlow Serving itself is in no package registry: a
  graph session loads the model, and answers two rows and its warm-up requests.
- modelscan 0.8 looks for unsafe ops. MLflow 3 loads the SavedModel and predicts two rows.
- ours: the check that fails or warns. Needs: what the contract must name for it.
- early, before training: found by the rehearsal that is on by default where a module has an
  `export_fn`. It may refuse only what training does not change.
"""


@dataclasses.dataclass
class Row:
    """What was found of one model.

    Attributes:
        found: tool → what it says; nothing where it is content.
        says: what the validator says.
    """

    name: str
    source: str
    breaks: str
    needs: str
    check: str
    missed: str
    found: dict[str, str]
    says: str = ""


def main() -> int:
    """Makes the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool-python", help="a Python that has TensorFlow, modelscan and MLflow")
    parser.add_argument("--answers", type=Path, help="go on with what this file has, and add to it")
    parser.add_argument("--measure", choices=("all", "tools", "ours"), default="all")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--only", default="", help="a regular expression of names")
    options = parser.parse_args()
    answers = _Answers(options.answers, options.tool_python)
    with tempfile.TemporaryDirectory() as scratch, answers:
        only = re.compile(options.only)
        broken, good = _measured(Path(scratch), only, answers, options.measure)
    if options.measure != "all":
        return 0
    page = "\n".join(_page(broken, good, answers.columns))
    if options.write:
        PAGE.write_text(page + "\n", encoding="utf-8")
    else:
        print(page)
    wrong = [row for row in broken if bool(row.found["ours"]) == bool(row.missed)]
    wrong += [row for row in good if row.found["ours"]]
    for row in wrong:
        print(f"{row.name}: {row.says}", file=sys.stderr)
    return int(bool(wrong))


class _Answers:
    """What other tools say of models, asked once and kept in a file if there is one."""

    def __init__(self, file: Path | None, tool_python: str | None) -> None:
        self._file = file
        self._known = json.loads(file.read_text()) if file and file.exists() else {}
        self._tools = [_Tools(sys.executable, TOOLS)]
        if tool_python:
            self._tools.append(_Tools(tool_python, OTHERS))

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, *error: object) -> None:
        for tools in self._tools:
            tools.close()

    @property
    def columns(self) -> tuple[str, ...]:
        """The tools."""
        return tuple(name for tools in self._tools for name in tools.names)

    def known(self, name: str) -> dict[str, str]:
        """Returns what is known of a model; what is added is kept."""
        found: dict[str, str] = self._known.setdefault(name, {})
        return found

    def ask(self, model: Path) -> None:
        """Asks all tools for a model."""
        for tools in self._tools:
            tools.ask(model)

    def answer(self) -> dict[str, str]:
        """Returns tool → complaint of the model that was asked for."""
        return {tool: said for tools in self._tools for tool, said in tools.answer().items()}

    def keep(self) -> None:
        """Writes the file."""
        if self._file is not None:
            self._file.write_text(json.dumps(self._known))


class _Tools:
    """Tools of another process, which starts with the first model and answers for each."""

    def __init__(self, python: str, names: Sequence[str]) -> None:
        self._command = [python, str(Path(__file__).with_name("other_tools.py")), *names]
        self.names = names
        self._process: subprocess.Popen[str] | None = None

    def ask(self, model: Path) -> None:
        """Asks for a model."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        stream = _open(self._process.stdin)
        stream.write(f"{model}\n")
        stream.flush()

    def answer(self) -> dict[str, str]:
        """Returns tool → complaint, for the model that was asked for."""
        assert self._process is not None
        told = json.loads(_open(self._process.stdout).readline())
        return {name: told[name] for name in self.names}

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            _open(self._process.stdin).close()
            self._process.wait()


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _measured(
    scratch: Path, only: re.Pattern[str], answers: _Answers, measure: str
) -> tuple[list[Row], list[Row]]:
    """Returns the rows of the broken and of the good models."""
    from generic_trainer.validation import start_checker
    from tests.validation import models
    from tests.validation.catalogue.all_good import all_good
    from tests.validation.catalogue.sources import all_faults

    model = models.good(scratch / "good")
    with start_checker(timeout_s=20, preload=("tensorflow_model_analysis",)) as checker:

        def row(name: str, make: Callable[[Path], Any], contract: Any, **told: str) -> Row:
            known = answers.known(name)
            asks = measure != "ours" and TOOLS[0] not in known
            judges = measure != "tools" and "ours" not in known
            folder = scratch / name
            if asks or judges:
                make(folder)
            if asks:
                answers.ask(folder)
            if judges:
                report = checker.validate(str(folder), contract)
                print(f"{name}: {_refusals(report)}", file=sys.stderr, flush=True)
                known.update(_verdict(report, told["check"], told["missed"]))
                known["exists"] = "" if folder.exists() else "no directory"
            if asks:
                known.update(answers.answer())
            answers.keep()
            says = known.get("says", "")
            return Row(name, found=known, says=says, **told)

        broken = [
            row(
                name, lambda folder, make=recipe.make: make(model, folder),
                contract := recipe.contract_for(model), source=recipe.source,
                breaks=recipe.breaks, needs=", ".join(_needs(contract)), check=recipe.check,
                missed=recipe.missed,
            )
            for name, recipe in all_faults().items()
            if only.search(name)
        ]  # fmt: skip
        good = [
            row(name, make, contract, source="", breaks="", needs="", check="", missed="")
            for name, (make, contract) in all_good().items()
            if only.search(name)
        ]
    return broken, good


def _verdict(report: Any, check: str, missed: str) -> dict[str, str]:
    """Returns what the validator finds, and when.

    Args:
        check: the check that must find the model; empty for a good one.
        missed: why none can; empty for a model that can be known.
    """
    from generic_trainer._run.rehearsal import not_cured_by_training

    findings = [*report.failures, *report.warnings]
    names = [result.name for result in findings]
    if missed:
        ours = ", ".join(names)
    elif check:
        ours = check if check in names else ""
    else:
        ours = _refusals(report)
    return {
        "ours": ours,
        "before": "" if not_cured_by_training(report).passed else "x",
        "asked": _refusals(report),
        "says": " | ".join(f"{result.name}: {result.message}" for result in findings)[:500],
    }


def _refusals(report: Any) -> str:
    return ", ".join(result.name for result in report.failures)


def _needs(contract: Any) -> Iterator[str]:
    """Yields what the contract must name for the check to find it."""
    for name in ("examples", "schema", "transform_graph", "eval_config", "base_model"):
        if contract is not None and getattr(contract, name) is not None:
            yield name.replace("_", " ")
    if contract is not None and contract.matches_rows and contract.eval_config is None:
        yield "consumers"
    if contract is not None and (contract.denied_ops or contract.max_latency_ms):
        yield "limits"


def _page(broken: list[Row], good: list[Row], tools: Sequence[str]) -> Iterator[str]:
    columns = ["exists", *tools, "ours"]
    knowable = [row for row in broken if not row.missed]
    yield "# Broken models, and what finds them\n"
    yield f"{len(broken)} broken models and {len(good)} good ones, made and measured by"
    yield _INTRODUCTION
    yield "## Totals\n"
    yield _line(["what is broken", "models", *(HEADS[c] for c in columns), HEADS["before"]])
    yield _line(["---"] * (len(columns) + 3))
    for title, checks in GROUPS:
        rows = [row for row in broken if row.check in checks.split()]
        yield _counted(title, rows, columns)
    yield _counted("**all**", broken, columns)
    refused = [row for row in knowable if row.found["asked"]]
    early = sum(bool(row.found["before"]) for row in refused)
    found = sum(bool(row.found["ours"]) for row in knowable)
    yield (
        f"\n{len(knowable)} of them can be known; the validator finds {found} of these. "
        f"{len(refused)} are refused, the others are warnings.\n"
        f"A rehearsal refuses {early} of these {len(refused)} before the first step of the "
        f"training ({100 * early // max(len(refused), 1)} %).\n"
    )
    yield "What each tool says of the good models, which would be a false alarm:\n"
    yield _line(["", "models", *(HEADS[c] for c in columns), ""])
    yield _line(["---"] * (len(columns) + 3))
    yield _counted("good models", good, columns)
    yield "\n## What nobody can find\n"
    for row in broken:
        if row.missed:
            yield f"- {_words(row)} ({row.source}): {row.missed}."
    for title, checks in GROUPS:
        yield f"\n## {title[0].upper()}{title[1:]}\n"
        yield _line(["fault", "source", "breaks", "needs", *(HEADS[c] for c in columns), "early"])
        yield _line(["---"] * (len(columns) + 5))
        for row in broken:
            if row.check in checks.split():
                marks = ["x" if row.found[c] else "" for c in columns[:-1]]
                early = "x" if row.found["before"] else ""
                ours = f"`{row.found['ours']}`" if row.found["ours"] else "**missed**"
                yield _line([_words(row), row.source, row.breaks, row.needs, *marks, ours, early])
    yield "\n## The good models\n"
    yield ", ".join(_words(row) for row in good) + "."
    alarms: Mapping[str, list[str]] = {
        column: [_words(row) for row in good if row.found[column]] for column in columns
    }
    yield "\nFalse alarms:\n"
    for column, names in alarms.items():
        yield f"- {HEADS[column]}: {', '.join(names) or 'none'}."


def _counted(title: str, rows: list[Row], columns: Sequence[str]) -> str:
    counts: collections.Counter[str] = collections.Counter()
    for row in rows:
        counts.update(column for column, said in row.found.items() if said)
    early = counts["before"]
    return _line([title, str(len(rows)), *(str(counts[c]) for c in columns), str(early)])


def _words(row: Row) -> str:
    return row.name.replace("_", " ")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
