"""Runs whose pipeline root lies in an object store, killed in the middle and started again.

The store is any that speaks S3, reached through the file system of tensorflow-io, which is neither
needed nor installed otherwise. By hand, on the baseline stack and with a server in memory::

    pip install --no-deps tensorflow-io==0.37.1
    python -m venv store && store/bin/pip install "moto[server]" && store/bin/moto_server -p 5555 &
    S3_ENDPOINT=http://127.0.0.1:5555 python -m benchmarks.campaigns object_store

Each round bundles the module file into the store, and trains there with checkpoints. The executor
is killed at a random step, and in its publishing; another one is started. Then:

- the bundle in the store is what runs;
- a killed run goes on from the newest checkpoint in the store;
- there is no `saved_model.pb` in a model that is not whole, and the model that is published in the
  end equals, bit by bit, that of a run on a local disk;
- no staging directory and no checkpoints are left of the run that has published.
"""

from __future__ import annotations

import dataclasses
import http.client
import importlib.util
import json
import os
import random
import signal
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tfx.types import standard_artifacts

from benchmarks._artifacts import artifact_at, exec_properties
from benchmarks.campaigns._modules import INTERVAL_STEPS, SOURCES, STEPS
from benchmarks.campaigns._processes import Violation, finish, fork, has_ended, require_silence
from benchmarks.campaigns._runs import SERVING_DIR, Node, kept_if_failed, require_equal, weights
from generic_trainer import Distribution
from generic_trainer.executors import GenericTrainerExecutor
from generic_trainer.user_code import UserCode, bundle_module_file

# Rounds.
FULL_SIZE = 20
_BUCKET = "campaign"


def run(dice: random.Random, size: int, examples: Any) -> str:
    """Goes through `size` rounds; returns the summary.

    Raises:
        Violation: see the module.
    """
    if importlib.util.find_spec("tensorflow_io") is None or "S3_ENDPOINT" not in os.environ:
        return f"0 of {size} rounds: needs tensorflow-io and S3_ENDPOINT"
    os.environ.setdefault("AWS_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "campaign")
    _make_bucket()
    kills = 0
    with kept_if_failed("store") as folder:
        local = Node(folder / "root", "loop", examples, Distribution(), folder / "notes")
        local.notes.touch()
        if finish(local.start()) != 0:
            raise Violation(local.output(1).read_text(errors="replace")[-6000:])
        reference = weights(local.published()[0])
        for number in range(size):
            kills += _round(dice, folder / str(number), examples, reference)
            print(f"round {number + 1}: {kills} kills", file=sys.stderr, flush=True)
    return f"{size} runs on S3, {kills} of their executors killed"


def _make_bucket() -> None:
    address = urllib.parse.urlsplit(os.environ["S3_ENDPOINT"])
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    connection.request("PUT", f"/{_BUCKET}")
    connection.getresponse().read()


@dataclasses.dataclass
class _Run:
    """A node whose root is in the store; what looks there does so in a fork."""

    folder: Path
    root: str
    examples: Any
    executions: int = 0

    def start(self) -> int:
        """Starts the executor on a new execution; returns its process."""
        self.executions += 1
        return fork(self._execute, self.folder / f"output-{self.executions}")

    def output(self) -> str:
        """The end of what the last execution has printed."""
        text = (self.folder / f"output-{self.executions}").read_text(errors="replace")
        return "\n".join(line for line in text.splitlines() if "c/logging.cc" not in line)[-6000:]

    def bundle(self) -> None:
        """Packs the module file into the store."""
        import tensorflow_io  # noqa: F401 - the file system

        module = self.folder / "trainer.py"
        module.write_text(SOURCES["loop"])
        code = bundle_module_file(str(module), f"{self.root}/_bundles")
        module.write_text("raise RuntimeError('this is not the bundle')")
        (self.folder / "code.json").write_text(json.dumps(dataclasses.asdict(code)))

    def look(self) -> None:
        """Writes down what is in the store."""
        import tensorflow_io  # noqa: F401 - the file system

        models = tf.io.gfile.glob(f"{self.root}/Trainer/model/*/{SERVING_DIR}/saved_model.pb")
        found: dict[str, Any] = {
            "models": [[each.tolist() for each in weights(os.path.dirname(m))] for m in models],
            "files": [
                os.path.join(folder, name)[len(self.root) :]
                for folder, _, names in tf.io.gfile.walk(self.root)
                for name in names
            ],
        }
        (self.folder / "found.json").write_text(json.dumps(found))

    def call(self, function: Any) -> None:
        """Calls one of the methods above in a fork."""
        output = self.folder / "output-look"
        if finish(fork(function, output)) != 0:
            raise Violation(output.read_text(errors="replace")[-6000:])

    def _execute(self) -> None:
        import tensorflow_io  # noqa: F401 - the file system

        os.environ["CAMPAIGN_NOTES"] = str(self.folder / "notes")
        kinds = {"model": standard_artifacts.Model, "model_run": standard_artifacts.ModelRun}
        outputs = {
            name: [artifact_at(kind, f"{self.root}/Trainer/{name}/{self.executions}")]
            for name, kind in kinds.items()
        }
        code = UserCode(**json.loads((self.folder / "code.json").read_text()))
        properties = exec_properties(
            module_path=f"{code.module}@{code.bundle}",
            module_hash=code.digest,
            train_args=json.dumps({"num_steps": STEPS}),
            eval_args=json.dumps({"num_steps": 1}),
        )
        GenericTrainerExecutor().Do({"examples": [self.examples]}, outputs, properties)


def _round(dice: random.Random, folder: Path, examples: Any, reference: list[np.ndarray]) -> int:
    folder.mkdir()
    notes = folder / "notes"
    notes.touch()
    run = _Run(folder, f"s3://{_BUCKET}/{os.getpid()}-{folder.name}", examples)
    run.call(run.bundle)
    kills = 0
    # Where the blows fall: at a step; some time after the export has begun, in which it is written,
    # checked and moved; nowhere.
    for mark, delay_s in ((f"step {dice.randint(1, STEPS)}", 0.0), ("exporting", 8.0), (None, 0.0)):
        executor = run.start()
        while mark and not has_ended(executor) and f"{mark}" not in notes.read_text():
            time.sleep(0.005)
        time.sleep(dice.uniform(0, delay_s))
        if mark:
            os.kill(executor, signal.SIGKILL)
        code = finish(executor)
        require_silence()
        if code not in (0, -signal.SIGKILL):
            raise Violation(f"the run on S3 ended with {code}\n{run.output()}")
        kills += code != 0
        run.call(run.look)
        found = json.loads((folder / "found.json").read_text())
        for model in found["models"]:
            require_equal([np.array(each, np.float32) for each in model], reference)
        if code == 0:
            break
    if left := [name for name in found["files"] if ".checkpoints/" in name]:
        raise Violation(f"left of the checkpoints of a run that has published: {left}")
    if not found["models"]:
        raise Violation(f"nothing was published\n{run.output()}")
    _check_resumed(notes.read_text())
    return kills


def _check_resumed(notes: str) -> None:
    done = 0
    for line in notes.splitlines():
        word, _, number = line.partition(" ")
        if word == "step":
            done = int(number)
        if word == "resumed" and int(number) < done - INTERVAL_STEPS:
            raise Violation(f"{done} steps were done, and the next attempt began at {number}")
