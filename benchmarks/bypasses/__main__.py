r"""Which scanners find models that read, write or connect in ways that are easy to miss.

    python -m benchmarks.bypasses [--python PYTHON] [--only NAMES] [--write]

Makes a model for each way of `_hostile.py`, `_ops.py` and `_places.py`. Each is
harmless: it reads or writes a file in a temporary directory, or connects to a port of this machine.
Every model is first shown to

- `saved_model_cli scan` of the installed TensorFlow;
- modelscan and modelaudit, in an environment that uv makes in the temporary directory, or in that
  of `--python`;
- GenericTrainer, which must find it by the check meant for it.

Then a consumer loads and calls the model, to prove that it does what it is meant for: in a TF
Serving-like session, by `tf.saved_model.load`, or by the TFLite interpreter. 100 good models, such
as hubs have, show the false alarms.

While a model is checked, nothing may happen: inotify watches the files, a socket the connections,
and no report may have the value of an environment variable. Prints the findings and the totals;
`--write` puts the totals into docs/security.md. Exits with 1 if GenericTrainer misses a model,
raises an alarm or runs something, or if a model does nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["PROMPTFOO_DISABLE_TELEMETRY"] = "1"  # of modelaudit

from benchmarks.broken_models.__main__ import Tools
from benchmarks.bypasses._canary import Canary

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
Findings = dict[str, dict[str, str]]  # model → scanner → what it reports, empty for nothing
BEGIN, END = "<!-- scanners: python -m benchmarks.bypasses --write -->", "<!-- end of scanners -->"
OURS = "GenericTrainer"
SCANNERS = ("modelscan", "modelaudit")
# The models that another check finds, or that another consumer runs.
CHECKS = {
    "calls_a_python_function_of_the_program": "python_ops",
    "reads_an_asset_that_is_a_link": "assets",
    "reads_in_tflite": "other_formats",
    "reads_in_tflite_under_another_name": "other_formats",
}
CONSUMERS = ("session", "call", "beside_functions", "tflite")
CONSUMERS_OF = {
    "calls_a_python_function_of_the_program": ("beside_functions",),
    "reads_a_path_from_the_client": (),  # only a client with bad intentions names the canary
    "reads_in_tflite": ("tflite",),
    "reads_in_tflite_under_another_name": ("tflite",),
}
ACCESS = ("file_ops", "python_ops")  # a warning of theirs is an alarm, too
# Of the good models of the tests, 100 such as hubs have: of Keras, with vocabularies and tables, of
# TensorFlow 1 and estimators, with files around them.
TYPICAL = re.compile(
    r"keras_.*|v1_.*|vocabulary_.*|table_.*|.*asset.*|.*_export|nested_modules|text_\w+|warm_up_request"
    r"|(module_with|links_to|fingerprint|no_finger|files_of|file_of|model_card|metadata_of|manifest"
    r"|loaded_and|graph_for|counts_its_requests|cached_in|several_heads|images_decoded|raw_and|sequences_padded).*"
)


def main() -> int:
    """Runs the benchmark and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bypasses")
    parser.add_argument("--python", help="a Python that has TensorFlow, modelscan and modelaudit")
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--write", action="store_true", help=f"write the totals into {PAGE.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = options.python or _environment(Path(folder, "scanners"))
        with Canary(Path(folder, "canary")) as canary:
            bad, good, wrong = _measured(Path(folder), canary, python, re.compile(options.only))
        totals = list(_totals(bad, good, _versions(python)))
    for name, found in bad.items():
        print(f"{name}: found by {', '.join(filter(found.get, found)) or 'none'}")
    for name, found in good.items():
        for scanner in filter(found.get, found):
            print(f"{name}: alarm of {scanner}: {found[scanner]}")
    print("\n".join(totals))
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        table = "\n".join([BEGIN, "", *totals, "", END])
        PAGE.write_text(f"{before}{table}{rest.partition(END)[2]}", encoding="utf-8")
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


def _environment(folder: Path) -> str | None:
    """Returns a Python with the other scanners, or None where they cannot be installed."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        print("without modelscan and modelaudit, because uv is not installed", file=sys.stderr)
        return None
    python = str(folder / "bin" / "python")
    try:
        for arguments in (
            ["venv", "--quiet", "--python", sys.executable, str(folder)],
            ["pip", "install", "--quiet", "--python", python, "tensorflow-cpu", *SCANNERS],
        ):
            subprocess.run([uv, *arguments], check=True)
    except subprocess.CalledProcessError as error:
        print(f"without modelscan and modelaudit: {error}", file=sys.stderr)
        return None
    return python


def _versions(python: str | None) -> dict[str, str]:
    """Returns scanner → its name and version."""
    from generic_trainer import __version__

    found = {"cli_scan": f"`saved_model_cli scan` of TensorFlow {metadata.version('tensorflow')}"}
    if python is not None:
        code = "from importlib.metadata import version; import sys; print(version(sys.argv[1]))"
        for name in SCANNERS:
            done = subprocess.run([python, "-c", code, name], capture_output=True, text=True)
            found[name] = f"{name} {done.stdout.strip()}"
    return {**found, OURS: f"{OURS} {__version__}"}


def _measured(
    folder: Path, canary: Canary, python: str | None, only: re.Pattern[str]
) -> tuple[Findings, Findings, list[str]]:
    """Returns the findings in the bad and the good models, and all that is wrong."""
    from benchmarks.bypasses import _ops, _places
    from generic_trainer.validation import Checker
    from tests.validation.catalogue.all_good import all_good

    os.environ["GENERIC_CANARY"] = secret = secrets.token_hex()
    os.environ["CANARY"] = str(canary.target)
    tools = [Tools(sys.executable, ("cli_scan",))]
    tools += [Tools(python, SCANNERS)] if python else []
    consumers = {name: Tools(sys.executable, (name,)) for name in CONSUMERS}
    bad: Findings = {}
    good: Findings = {}
    wrong: list[str] = []

    def scanned(name: str, model: Path, contract: Any = None) -> tuple[dict[str, str], Any]:
        canary.reset()
        for each in tools:
            each.ask(model)
        answers = (answer for each in tools for answer in each.answer().items())
        # Other errors than this one mean that a scanner cannot read the model.
        found = {tool: said * said.startswith("ValueError") for tool, said in answers}
        canary.touched()
        report = checker.validate(str(model), contract)
        if touched := canary.touched():
            wrong.append(f"{name}: the checks have touched {', '.join(touched)}")
        if secret in report.to_json():
            wrong.append(f"{name}: the report has a value of the environment")
        failed = ", ".join(each.name for each in report.failures)
        print(f"{name}: {found}, {OURS}: {failed}", file=sys.stderr, flush=True)
        return found, report

    with Checker(timeout_s=60) as checker:
        for name, recipe in {**_ops.RECIPES, **_places.RECIPES}.items():
            if not only.search(name):
                continue
            model = folder / name
            recipe.make(model, canary.target, canary.port)
            found, report = scanned(name, model)
            result = report[CHECKS.get(name, "file_ops")]
            is_found = result.status == "fail"
            bad[name] = {**found, OURS: result.name if is_found else ""}
            if not is_found:
                wrong.append(f"{name}: missed by {result.name}")
            acts = CONSUMERS_OF.get(name, ("session", "call"))
            if acts and not any(_is_acting(consumers[each], model, canary) for each in acts):
                wrong.append(f"{name}: does nothing in {' or '.join(acts)}")
        for name, (make, contract) in all_good().items():
            if not (TYPICAL.fullmatch(name) and only.search(name)):
                continue
            make(folder / name)
            found, report = scanned(name, folder / name, contract)
            alarms = [*report.failures, *(each for each in report.warnings if each.name in ACCESS)]
            good[name] = {**found, OURS: ", ".join(each.name for each in alarms)}
            if alarms:
                wrong.append(f"{name}: alarm of {good[name][OURS]}")
    for each in (*tools, *consumers.values()):
        each.close()
    return bad, good, wrong


def _is_acting(consumer: Tools, model: Path, canary: Canary) -> bool:
    """Returns whether a model touches the canary in a consumer."""
    for has_target in (True, False):  # some models make it a directory
        canary.reset(has_target)
        consumer.ask(model)
        consumer.answer()
        if canary.touched():
            return True
    return False


def _totals(bad: Findings, good: Findings, versions: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines of the table."""
    yield "| scanner | found | missed | false alarms |"
    yield "|---|---|---|---|"
    for scanner, title in versions.items():
        found = sum(bool(each[scanner]) for each in bad.values())
        alarms = sum(bool(each[scanner]) for each in good.values())
        cells = (title, f"{found} of {len(bad)}", len(bad) - found, f"{alarms} of {len(good)}")
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
