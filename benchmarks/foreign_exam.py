"""Verdicts on SavedModels of other people's repositories, beside what TensorFlow does with them.

::

    python -m benchmarks.foreign_exam MIRRORS [--most 3] [--json FILE]

MIRRORS has clones of git repositories, bare or not, at any depth. Each SavedModel in their newest
commits, and each in a folder that is in no clone, is checked without a contract, as by
`generic-trainer validate MODEL`. A process of its own judges it: it loads the model as Python
programs do, and again into a session, as TensorFlow Serving does, and calls each signature with
rows of ones, of strings, or of `tf.Example`s that have the features that it requires, one value
each. The four outcomes:

- *passes, runs* and *refused, fails*: they agree;
- *refused, runs*: a false alarm, or a fault that such calls do not show. The table of checks says
  why; a person has to decide;
- *passes, fails*: a fault that was not found, or inputs that the model rightly does not take.

No model is kept: each is unpacked into a temporary folder. Models whose files are not all in the
repository (variables are often left out) are counted, and not checked.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generic_trainer.validation import Checker

_PARTS = ("saved_model.", "variables/", "assets/", "assets.extra/", "fingerprint.pb")
_POINTER_OF_GIT_LFS = b"version https://git-lfs"
_NO_VARIABLES = "Failed to find any matching files for"
_OUTCOMES = ("passes, runs", "refused, fails", "refused, runs", "passes, fails")
_JUDGE = r"""
import re
import sys
import numpy as np
import tensorflow as tf

example = tf.train.Example()

def rows(shape, dtype):
    sizes = [3] if shape.rank is None else [*shape]
    sizes = [size or (1 if number else 3) for number, size in enumerate(sizes)]
    value = example.SerializeToString() if dtype == tf.string else 1
    return np.full(sizes, value, dtype.as_numpy_dtype)

def call_signatures():
    for function in getattr(model, "signatures", {}).values():
        inputs = function.structured_input_signature[1].items()
        function(**{key: tf.constant(rows(spec.shape, spec.dtype)) for key, spec in inputs})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1]).signature_def
        for name, signature in signatures.items():
            if not name.startswith("__"):
                names = [info.name for info in signature.inputs.values()]
                tensors = [session.graph.get_tensor_by_name(x) for x in names]
                fetches = [info.name for info in signature.outputs.values()]
                session.run(fetches, {x: rows(x.shape, x.dtype) for x in tensors})

model = tf.saved_model.load(sys.argv[1])
while True:  # until the example has all features that the model requires
    try:
        call_signatures()
        break
    except tf.errors.InvalidArgumentError as error:
        missing = re.search(r"Feature: (.+?) \(data type: (\w+)\) is required", str(error))
        if not missing or missing[1] in example.features.feature:
            raise
        feature = example.features.feature[missing[1]]
        if missing[2] == "string":
            feature.bytes_list.value.append(b"1")
        else:
            getattr(feature, missing[2] + "_list").value.append(1)
"""


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mirrors", type=Path, metavar="MIRRORS")
    parser.add_argument("--most", type=int, default=3, help="models of one repository")
    parser.add_argument("--json", type=Path, help="keeps what was found out about each model")
    options = parser.parse_args()
    verdicts: list[dict[str, Any]] = []
    incomplete = 0
    with Checker() as checker:
        for repository in _repositories(options.mirrors):
            for verdict in _exams(checker, repository, options.most):
                if verdict is None:
                    incomplete += 1
                    continue
                verdicts.append(verdict)
                print(f"{verdict['outcome']}  {verdict['model']}", file=sys.stderr)
        for model in _loose_models(options.mirrors):
            if verdict := _exam(checker, str(model)):
                verdicts.append({**verdict, "model": str(model)})
    if options.json:
        options.json.write_text(json.dumps(verdicts, indent=1))
    outcomes = collections.Counter(verdict["outcome"] for verdict in verdicts)
    print("| outcome | models |\n|---|---|")
    for outcome in _OUTCOMES:
        print(f"| {outcome} | {outcomes[outcome]} |")
    print(f"\n{len(verdicts)} models; {incomplete} more lack files.\n")
    print("| check | refused | of these, run |\n|---|---|---|")
    refused = [verdict for verdict in verdicts if verdict["failed"]]
    checks = collections.Counter(check for verdict in refused for check in verdict["failed"])
    running = [verdict for verdict in refused if verdict["outcome"] == "refused, runs"]
    alarms = collections.Counter(check for verdict in running for check in verdict["failed"])
    for check in sorted(checks):
        print(f"| `{check}` | {checks[check]} | {alarms[check]} |")
    return 0


def _exams(checker: Checker, repository: Path, most: int) -> Iterator[dict[str, Any] | None]:
    """Yields what was found out about each model, None for one that lacks files."""
    taken = 0
    for root, files in _models(repository):
        if taken == most:
            return
        with tempfile.TemporaryDirectory() as folder:
            is_whole = _unpack(repository, files, Path(folder))
            verdict = _exam(checker, folder) if is_whole else None
        if verdict is not None:
            taken += 1
            verdict["model"] = f"{repository}: {root}"
        yield verdict


def _repositories(folder: Path) -> list[Path]:
    heads = [path.parent for path in folder.rglob("HEAD") if (path.parent / "objects").is_dir()]
    return sorted(heads)


def _loose_models(folder: Path) -> list[Path]:
    """Returns the folders of SavedModels that are in no repository."""
    found = {path.parent for path in folder.rglob("saved_model.pb")}
    return sorted(p for p in found if not any((up / ".git").exists() for up in p.parents))


def _models(repository: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the models of the newest commit, each different one once: path, and files → blobs."""
    listed = (_git(repository, "ls-tree", "-r", "-z", "HEAD") or b"").decode(errors="replace")
    blobs = {
        path: meta.split()[2]
        for meta, _, path in (line.partition("\t") for line in listed.split("\0"))
        if path
    }
    seen = set()
    for path, blob in blobs.items():
        if path.rpartition("/")[2] not in ("saved_model.pb", "saved_model.pbtxt") or blob in seen:
            continue
        seen.add(blob)
        root = path.rpartition("saved_model.")[0]
        files = {name[len(root) :]: blob for name, blob in blobs.items() if name.startswith(root)}
        yield root, {name: blob for name, blob in files.items() if name.startswith(_PARTS)}


def _unpack(repository: Path, files: dict[str, str], folder: Path) -> bool:
    """Writes the files of a model, and returns whether all could be had."""
    for name, blob in files.items():
        content = _git(repository, "cat-file", "blob", blob)
        if content is None or content.startswith(_POINTER_OF_GIT_LFS):
            return False
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    has_index, has_values = (any(part in name for name in files) for part in (".index", ".data-"))
    return has_index == has_values


def _exam(checker: Checker, model: str) -> dict[str, Any] | None:
    judged = subprocess.run([sys.executable, "-c", _JUDGE, model], capture_output=True, text=True)
    if _NO_VARIABLES in judged.stderr:
        return None
    report = checker.validate(model)
    runs = "runs" if judged.returncode == 0 else "fails"
    return {
        "outcome": f"{'passes' if report.passed else 'refused'}, {runs}",
        "failed": [result.name for result in report.failures],
        "messages": [f"{r.name}: {r.message}" for r in (*report.failures, *report.warnings)],
        "judged": judged.stderr.strip()[-500:] if judged.returncode else "",
        "seconds": report.facts["seconds"],
    }


def _git(repository: Path, *arguments: str) -> bytes | None:
    """Returns what git prints, or None if the clone lacks the object."""
    command = ["git", "-C", str(repository), *arguments]
    offline = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    done = subprocess.run(command, env=offline, capture_output=True)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
