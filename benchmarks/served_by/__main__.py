"""The check `served_by` compared with TensorFlow releases that load and call the same models.

::

    python -m benchmarks.served_by --folder DIR --newest PYTHON --releases PYTHON PYTHON ...

Each Python has one release of TensorFlow. The models are

- the broken and good models of the tests, saved by the TensorFlow here;
- those of `_models.py`, saved by the newest one: each has an op, an attribute or a dtype that some
  release is the first to have.

A step (see `_loads.py`) counts if the release that saved the model can take it. The model is broken
for another release if that one cannot. `tensorflow` stands for `load` and `call`,
`tensorflow_serving` for `server_load` and `server_call`. A refusal is not judged if the release
that saved the model cannot call it, because loading does not build all functions.

DIR keeps models and answers: the next run goes on with them. Exits with 1 after a false refusal.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

STEPS = {
    "tensorflow": ("load", "call"),
    "tensorflow_serving": ("server_load", "server_call"),
}
Answers = dict[str, dict[str, str]]  # model → step → what fails


def main() -> int:
    """Prints the table and the disagreements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--newest", required=True, metavar="PYTHON")
    parser.add_argument("--releases", nargs="+", required=True, metavar="PYTHON")
    parser.add_argument("--every", type=int, default=1, help="takes each Nth model of the tests")
    parser.add_argument("--kept", action="store_true", help="only the answers that DIR has")
    parser.add_argument("--jobs", type=int, default=2, help="Pythons that run at once")
    options = parser.parse_args()
    folder = options.folder.absolute()
    names = [] if options.kept else _export(folder, options.newest, options.every)
    pythons = list(dict.fromkeys([sys.executable, options.newest, *options.releases]))
    with ThreadPoolExecutor(options.jobs) as pool:
        answered = dict(pool.map(lambda python: _answers(python, folder, names), pythons))
    here = _release(sys.executable)
    savers = {"here": here, "newest": _release(options.newest)}
    false = 0
    print(
        "| served by | models | broken there | refused | missed | refused, but works | not judged |"
    )
    print("|---|---|---|---|---|---|---|")
    disagreements = []
    for release, server in ((r, s) for r in sorted(answered, key=_key) for s in STEPS):
        counts = {"models": 0, "broken": 0, "refused": 0, "missed": 0, "false": 0, "unjudged": 0}
        for name in answered[release]:
            saver = savers[name.partition("/")[0]]
            if saver == release or name not in answered[saver]:
                continue
            before, now = answered[saver][name], answered[release][name]
            able = [step for step in STEPS[server] if not before[step]]
            if not able:
                continue
            failed = [f"{step}: {now[step]}" for step in able if now[step]]
            refusal = _refusal(folder / name, f"{server}=={release}")
            if refusal and not failed and len(able) < len(STEPS[server]):
                counts["unjudged"] += 1
                continue
            counts["models"] += 1
            counts["broken"] += bool(failed)
            counts["refused"] += bool(refusal)
            if bool(failed) != bool(refusal):
                counts["missed" if failed else "false"] += 1
                reason = failed[0] if failed else f"works, but refused: {refusal}"
                disagreements.append(f"{server} {release}, {name}: {reason[:300]}")
        print(f"| {server} {release} | {' | '.join(map(str, counts.values()))} |")
        false += counts["false"]
    print("\n".join(disagreements))
    return int(false > 0)


def _key(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def _release(python: str) -> str:
    code = "import importlib.metadata as m\nfor n in ('tensorflow', 'tensorflow-cpu'):\n" \
           "  try: print(m.version(n)); break\n  except m.PackageNotFoundError: pass"  # fmt: skip
    printed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return ".".join(printed.stdout.split(".")[:2])


def _export(folder: Path, newest: str, every: int) -> list[str]:
    """Writes the models that are not there; returns their paths in the folder."""
    if not (folder / "newest").exists():
        script = str(Path(__file__).with_name("_models.py"))
        subprocess.run([newest, script, str(folder / "newest")], check=True)
    from tests.validation import models
    from tests.validation.catalogue.all_good import all_good
    from tests.validation.catalogue.sources import all_faults

    model = models.good(folder / "good")
    recipes = {name: make for name, (make, _) in all_good().items()}
    for name, recipe in all_faults().items():
        recipes[name] = lambda path, recipe=recipe: recipe.make(model, path)
    (folder / "here").mkdir(exist_ok=True)
    chosen = sorted(recipes)[::every]
    for name in chosen:
        if not (folder / "here" / name).exists():
            recipes[name](folder / "here" / name)
    new = sorted(path.name for path in (folder / "newest").iterdir())
    return [f"newest/{name}" for name in new] + [f"here/{name}" for name in chosen]


def _answers(python: str, folder: Path, names: list[str]) -> tuple[str, Answers]:
    """Returns the release of a Python, and what it says of each model."""
    release = _release(python)
    file = folder / f"answers-{release}.json"
    kept: Answers = json.loads(file.read_text()) if file.exists() else {}
    wanted = [name for name in names if name not in kept]
    if not wanted:
        return release, kept
    command = [python, str(Path(__file__).with_name("_loads.py"))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        for name in wanted:
            process.stdin.write(f"{folder / name}\n")
            process.stdin.flush()
            kept[name] = json.loads(process.stdout.readline())
            file.write_text(json.dumps(kept))
            print(f"{release} {name}: {kept[name]}", file=sys.stderr, flush=True)
        process.stdin.close()
    return release, kept


@functools.cache
def _model(path: Path) -> Any:
    from generic_trainer.validation import ServingContract
    from generic_trainer.validation._model import ModelUnderTest

    return ModelUnderTest(path, ServingContract(signatures=()), str(path))


def _refusal(path: Path, server: str) -> str:
    """Returns the failure of the check, empty for none."""
    from generic_trainer.validation import ServingContract
    from generic_trainer.validation._checks.graph import served_by

    model = _model(path)
    model.contract = ServingContract(signatures=(), served_by=(server,))
    result = served_by.run(model)
    return result.message if result.status == "fail" else ""


if __name__ == "__main__":
    sys.exit(main())
