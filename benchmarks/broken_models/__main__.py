r"""The table of broken models: what finds each, of this validator and of other tools.

    python -m benchmarks.broken_models [--tool-python PYTHON] [--write] [--also FILE]

Makes every broken model of the tests and of their catalogue, and every good one, and shows them to

- TFX's Trainer, which looks whether the directory exists;
- the tools of `_other_tools.py`, those that are installed here and, with `--tool-python`, modelscan
  and MLflow in an environment of their own;
- the validator, which must find the broken ones by the check meant for them and pass the good ones.

Two columns more say which a rehearsal finds before the first training step, were the model what
`export_fn` writes: by default, where it may refuse only what training does not change, and with
`rehearse=True`. `--write` puts the page into docs/, else it is printed. The exit code tells whether
a broken model was missed that can be known, or a good one refused.

What holds on other stacks, and with the other Keras, is measured there, and joined by `--also`::

    TF_USE_LEGACY_KERAS=1 python -m benchmarks.broken_models \
        --measure ours --only keras --answers keras-2.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.broken_models._page import Row, page_of

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PAGE = Path(__file__).parents[2] / "docs" / "broken-models.md"
TOOLS = ("cli_show", "cli_run", "call", "session")
OTHERS = ("modelscan", "mlflow")


def main() -> int:
    """Makes the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool-python", help="a Python that has TensorFlow, modelscan and MLflow")
    parser.add_argument("--answers", type=Path, help="go on with what this file has, and add to it")
    parser.add_argument("--also", type=Path, nargs="+", default=[], metavar="FILE",
                        help="answers from other stacks, which the page tells of too")  # fmt: skip
    parser.add_argument("--measure", choices=("all", "tools", "ours"), default="all")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--timeout", type=float, default=20.0, metavar="SECONDS",
                        help="for one check; more on a machine with much else to do")  # fmt: skip
    parser.add_argument("--only", default="", help="a regular expression of names")
    options = parser.parse_args()
    answers = _Answers(options.answers, options.tool_python)
    with tempfile.TemporaryDirectory() as scratch, answers:
        only = re.compile(options.only)
        broken, good = _measured(Path(scratch), only, answers, options.measure, options.timeout)
    if options.measure != "all":
        return 0
    stacks = [answers.kept, *(json.loads(file.read_text()) for file in options.also)]
    page = "\n".join(page_of(broken, good, answers.columns, stacks))
    if options.write:
        PAGE.write_text(page + "\n", encoding="utf-8")
    else:
        print(page)
    wrong = [
        f"{name}, {kept['stack']}: {known['says']}"
        for kept in stacks
        for name, known in kept["models"].items()
        if bool(known["ours"]) != (known["kind"] == "broken")
    ]
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


class _Answers:
    """What is said of models, asked once and kept in a file if there is one.

    Attributes:
        kept: `stack`, on which it was asked, and `models`: name → tool → what it says.
    """

    def __init__(self, file: Path | None, tool_python: str | None) -> None:
        self._file = file
        self.kept: dict[str, Any] = {"stack": _stack(), "models": {}}
        if file and file.exists():
            self.kept = json.loads(file.read_text())
            if self.kept["stack"] != _stack():
                raise SystemExit(f"{file} is of {self.kept['stack']}, and this is {_stack()}")
        self._tools = [Tools(sys.executable, TOOLS)]
        if tool_python:
            self._tools.append(Tools(tool_python, OTHERS))

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
        found: dict[str, str] = self.kept["models"].setdefault(name, {})
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
            self._file.write_text(json.dumps(self.kept))


class Tools:
    """Tools of another process, which starts with the first model and answers for each.

    Args:
        python: the interpreter of the process.
        names: the tools, as `_other_tools.py` names them.
    """

    def __init__(self, python: str, names: Sequence[str]) -> None:
        self._command = [python, str(Path(__file__).with_name("_other_tools.py")), *names]
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


def _stack() -> str:
    """Returns the versions that matter."""
    import tensorflow as tf

    from generic_trainer._core.keras import keras_version

    python = ".".join(map(str, sys.version_info[:2]))
    return f"TensorFlow {tf.__version__}, Keras {keras_version()}, Python {python}"


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _measured(
    scratch: Path, only: re.Pattern[str], answers: _Answers, measure: str, timeout_s: float
) -> tuple[list[Row], list[Row]]:
    """Returns the rows of the broken and of the good models."""
    from generic_trainer.validation import Checker
    from tests.validation import models
    from tests.validation.catalogue.all_good import all_good
    from tests.validation.catalogue.sources import all_faults

    model = models.good(scratch / "good")
    with Checker(timeout_s=timeout_s, preload=("tensorflow_model_analysis",)) as checker:

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
                known["kind"] = _kind(told["check"], told["missed"])
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


def _kind(check: str, missed: str) -> str:
    """Returns what a model is; the arguments are those of `_verdict`."""
    if not check:
        return "good"
    return "broken, and nobody can know" if missed else "broken"


def _verdict(report: Any, check: str, missed: str) -> dict[str, str]:
    """Returns what the validator finds, and when.

    Args:
        report: what it says of the model.
        check: the check that must find the model; empty for a good one.
        missed: why none can; empty for a model that can be known.
    """
    from generic_trainer._run.contract import not_cured_by_training

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


if __name__ == "__main__":
    sys.exit(main())
