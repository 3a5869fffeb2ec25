"""Runs of a campaign: one node of a pipeline, executed again and again until it has published."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3")

import numpy as np
import tensorflow as tf
import tf_keras  # noqa: F401 - as for the rooms of PRELOADED
from tfx.types import standard_artifacts

from benchmarks._artifacts import artifact_at, exec_properties
from benchmarks.campaigns._modules import CUSTOM_CONFIG, SOURCES, STEPS
from benchmarks.campaigns._processes import ForkedPopen, Violation, fork
from generic_trainer import Distribution, data, estimator, launchers, training, trials, validation
from generic_trainer.executors import FN_ARGS_FACTORY, GenericTrainerExecutor
from generic_trainer.validation import Checker

# What the forked processes would import, each for itself: the names of these rooms load lazily.
_PRELOADED = (data, estimator, launchers, training, trials.keras, validation)
SERVING_DIR = "Format-Serving"


def preload() -> None:
    """Imports what runs need, and runs no op: TensorFlow's threads do not survive a fork."""
    importlib.import_module(FN_ARGS_FACTORY.partition(":")[0])
    for room in _PRELOADED:
        for name in room.__all__:
            getattr(room, name)


@dataclasses.dataclass
class Node:
    """A trainer in a pipeline.

    Attributes:
        root: folder of the pipeline; artifacts lie in its folder `Trainer`.
        api: what its module file is written for; see `SOURCES`.
        examples: the Examples artifact.
        distribution: where it trains.
        notes: file that says what it does.
        custom_config: more of it than the API needs.
        executions: how often it was started.
    """

    root: Path
    api: str
    examples: Any
    distribution: Distribution
    notes: Path
    custom_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    executions: int = 0

    def start(self) -> int:
        """Starts the executor on a new execution of the node; returns its process."""
        self.executions += 1
        number = self.executions
        return fork(lambda: self._execute(number), self.output(number))

    def output(self, execution: int) -> Path:
        """The file that an execution prints to."""
        return self.notes.with_name(f"{self.notes.name}-output-{execution}")

    def published(self) -> list[Path]:
        """Returns all directories where a consumer would find a model."""
        return sorted(self.root.glob(f"Trainer/model/*/{SERVING_DIR}"))

    def checkpoints(self) -> list[int]:
        """Returns the steps of the checkpoints that are there, in order."""
        names = (path.name for path in self.root.glob("Trainer/.checkpoints/*/step-*"))
        return sorted(int(name.removeprefix("step-").partition(".")[0]) for name in names)

    def note(self, line: str) -> None:
        """Appends a line to the notes."""
        with open(self.notes, "a") as file:
            file.write(line + "\n")

    def _execute(self, number: int) -> None:
        os.environ["CAMPAIGN_NOTES"] = str(self.notes)
        subprocess.Popen = ForkedPopen  # type: ignore[misc] # also what starts the fork servers
        # In process it computes once the first one, which checks the model, has started.
        ForkedPopen.left = 1 if self.distribution.launcher == "in_process" else 10**6
        self._note_phases()
        module = self.notes.with_name("trainer.py")
        if not module.exists():
            module.write_text(SOURCES[self.api])
        outputs = {}
        kinds = {"model": standard_artifacts.Model, "model_run": standard_artifacts.ModelRun}
        for name, kind in kinds.items():
            folder = self.root / "Trainer" / name / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            outputs[name] = [artifact_at(kind, folder)]
        properties = exec_properties(
            {**CUSTOM_CONFIG.get(self.api, {}), **self.custom_config} or None,
            module_file=str(module),
            train_args=json.dumps({"num_steps": STEPS}),
            eval_args=json.dumps({"num_steps": 1}),
            distribution=self.distribution.to_json(),
        )
        GenericTrainerExecutor().Do({"examples": [self.examples]}, outputs, properties)

    def _note_phases(self) -> None:
        validate, rename = Checker.validate, os.rename

        def noted_validate(checker: Any, *arguments: Any) -> Any:
            self.note("validating")
            return validate(checker, *arguments)

        def noted_rename(source: Any, target: Any, **options: Any) -> None:
            if Path(target).name == SERVING_DIR:  # this is how a local model is published
                self.note("publishing")
            rename(source, target, **options)

        Checker.validate = noted_validate  # type: ignore[method-assign]
        os.rename = noted_rename


def weights(model: Path | str) -> list[np.ndarray]:
    """Returns the variables of a SavedModel.

    Raises:
        Violation: it is not whole.
    """
    try:
        if not tf.io.gfile.exists(os.path.join(model, "saved_model.pb")):
            raise Violation(f"half a model at {model}")
        reader = tf.train.load_checkpoint(os.path.join(model, "variables", "variables"))
        names = sorted(reader.get_variable_to_shape_map())
        return [reader.get_tensor(n) for n in names if not n.startswith("_CHECKPOINTABLE")]
    except (tf.errors.OpError, RuntimeError) as error:
        raise Violation(f"half a model at {model}: {error}") from error


def require_equal(found: list[np.ndarray], reference: list[np.ndarray]) -> None:
    """Requires the weights of the uninterrupted run.

    Raises:
        Violation: these are others.
    """
    if len(found) != len(reference) or not all(map(np.array_equal, found, reference)):
        raise Violation(f"expected the weights {reference}, found {found}")


def under_way(node: Node) -> collections.Counter[str]:
    """Returns pattern → number of what a run has below the root only while it is under way."""
    patterns = ("model/*/.staging*", ".checkpoints/*", "model_run/**/*.part")
    return +collections.Counter(
        {each: len(list(node.root.glob(f"Trainer/{each}"))) for each in patterns}
    )


def temporary_entries() -> set[str]:
    """Returns all files and folders below the temporary directory, relative to it.

    Those of TensorFlow itself, which a killed process leaves for ever, do not count.
    """
    root = tempfile.gettempdir()
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
        if not name.startswith("__autograph_generated_file")
    }


def last_output(node: Node) -> str:
    """Returns the end of what the last execution has printed."""
    path = node.output(node.executions)
    return path.read_text(errors="replace")[-6000:] if path.exists() else "(it printed nothing)"


@contextlib.contextmanager
def kept_if_failed(name: str) -> Iterator[Path]:
    """Yields a folder, which stays if what happens in it fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"campaign-{name}-", dir=os.environ["CAMPAIGN_DIR"]))
    try:
        yield folder
    except BaseException:
        print(f"what was left is in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)
