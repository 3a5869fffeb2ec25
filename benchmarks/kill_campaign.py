"""Kills training runs at random moments until they have been killed often enough.

Each round trains one small model with `launcher="local"` under the executor, as a pipeline would,
and kills something two to six times on the way: the executor, a worker, or the process that they
are forked from, with SIGKILL or SIGTERM, while it reads, trains and checkpoints, exports, validates
or publishes. A killed executor is started anew, as an orchestrator does. After each death:

- where consumers look for a model there is a whole one or none;
- the run that follows has lost at most one interval between checkpoints;
- nothing is left running;
- of what killed runs left behind, temporary files and unfinished exports, the next run leaves none;
- the model that is published in the end equals, bit by bit, that of a run without interruption.

    python -m benchmarks.kill_campaign [--kills 200] [--seed 0] [--only loop|keras|two]

Prints one table: moment and target → kills. Exits with 1 at the first violation, and leaves the
round's files there. Linux only. Processes are forked from this one, which has imported everything.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3")

import numpy as np
import tensorflow as tf
import tf_keras  # noqa: F401 - as for the rooms of PRELOADED
from tfx.types import standard_artifacts

from benchmarks._artifacts import SCHEMA, artifact_at, write_examples
from generic_trainer import Distribution, data, launchers, training, validation
from generic_trainer.executors import GenericTrainerExecutor
from generic_trainer.validation import Checker

# What the forked processes would import, each for itself: the names of these rooms load lazily.
PRELOADED = (data, launchers, training, validation)
SERVING_DIR = "Format-Serving"
INTERVAL_STEPS = 10
STEPS = 60
ROUND_TIMEOUT_S = 300.0
_PR_SET_CHILD_SUBREAPER = 36

COMMON = """
import os, time
import tensorflow as tf
from generic_trainer import training

def note(text):
    with open(os.environ["CAMPAIGN_NOTES"], "a") as file:
        file.write(text + "\\n")

def read(fn_args):
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.public import tfxio
    options = tfxio.TensorFlowDatasetOptions(batch_size=4, num_epochs=None, label_key="y")
    schema = text_format.Parse(SCHEMA, schema_pb2.Schema())
    data = fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, schema)
    return data.map(lambda features, label: (features["x"] / 100.0, label / 100.0))

def save(fn_args, weight, bias):
    if not training.is_chief():
        return
    note(f"exporting {os.getpid()}")
    class Line(tf.Module):
        def __init__(self):
            self.weight, self.bias = tf.Variable(weight), tf.Variable(bias)
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def serve(self, examples):
            features = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
            return {"outputs": features["x"] * self.weight + self.bias}
    line = Line()
    tf.saved_model.save(
        line, fn_args.serving_model_dir, signatures={"serving_default": line.serve}
    )
"""
LOOP = """
def run_fn(fn_args):
    note(f"reading {os.getpid()}")
    iterator = iter(read(fn_args))
    weight, bias, velocity = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0.0)
    state = {"weight": weight, "bias": bias, "velocity": velocity, "iterator": iterator}
    with training.CheckpointManager(fn_args.checkpoint_dir) as manager:
        saved = manager.restore_objects(state)
        first = saved.step if saved else 0
        note(f"resumed {first}")
        note(f"training {os.getpid()}")
        for step in range(first, fn_args.train_steps):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x * weight + bias - y) ** 2)
            slope, shift = tape.gradient(loss, [weight, bias])
            velocity.assign(0.9 * velocity + slope)
            weight.assign_sub(0.1 * velocity)
            bias.assign_sub(0.1 * shift)
            time.sleep(0.003)
            note(f"step {step + 1}")
            if (step + 1) % INTERVAL_STEPS == 0:
                manager.save_objects(step + 1, state)
    save(fn_args, weight.numpy(), bias.numpy())
"""
KERAS = """
class Notes(tf.keras.callbacks.Callback):
    last = None
    def on_train_begin(self, logs=None):
        if training.is_chief():
            note(f"training {os.getpid()}")
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.003)
        if training.is_chief():
            step = int(self.model.optimizer.iterations.numpy())
            # A resumed fit replays what is done with the same first step again and again.
            if self.last is not None and (step > self.last + 1 or (self.last, step) == (1, 2)):
                note(f"resumed {step - 1 if step > 2 else 0}")
            note(f"step {step}")
            self.last = step

def run_fn(fn_args):
    if training.is_chief():
        note(f"reading {os.getpid()}")
    with training.get_strategy().scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile("adam", "mse")
    callbacks = training.resume_callbacks(
        fn_args, callbacks=[Notes()], every_steps=INTERVAL_STEPS, preemption_grace_s=15.0
    )
    steps = fn_args.train_steps // 2
    model.fit(read(fn_args), epochs=2, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    kernel, bias = model.get_weights()
    save(fn_args, kernel[0], bias)
"""
SOURCES = {"loop": LOOP, "keras": KERAS, "two": KERAS}
# Most rounds are of the kind that takes least time.
MIX = ["loop"] * 5 + ["keras"] + ["loop"] * 5 + ["two"]
PHASES = ("reading", "training", "exporting", "validating", "publishing")
# Moment → the longest wait in seconds before the blow falls.
DELAYS_S = {
    "reading": 0.3,
    "training": 1.0,
    "exporting": 0.4,
    "validating": 1.5,
    "publishing": 0.02,
}


class ForkedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that runs `python ... -c CODE ARGUMENTS` in a fork of this one."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        if "-c" not in args:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        pass_fds, cwd, env = rest[3:6]
        stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = rest[9:15]
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            pairs = ((stdin, to_stdin), (stdout, from_stdout), (stderr, from_stderr))
            for inner, outer in pairs:
                if -1 not in (inner, outer):
                    os.close(inner)
            return
        try:
            os.setsid()
            for descriptor, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
                if descriptor != -1:
                    os.dup2(descriptor, target)
            _close_all_but({0, 1, 2, *pass_fds})
            if cwd is not None:
                os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            tempfile.tempdir = None  # a new process would ask the environment
            code = args.index("-c")
            sys.argv = ["-c", *args[code + 2 :]]
            exec(args[code + 1], {"__name__": "__main__"})
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


class Violation(Exception):
    """What must never happen has happened."""


class Round:
    """One run, killed and started again until it has ended well."""

    def __init__(self, root: Path, kind: str, examples: Any) -> None:
        self.root, self.kind, self.examples = root, kind, examples
        self.notes = root / "notes"
        self.notes.touch()
        self.temp_dir = root / "tmp"
        self.temp_dir.mkdir()
        self.started_s = 0.0
        header = COMMON.replace("SCHEMA", repr(SCHEMA))
        source = header + SOURCES[kind].replace("INTERVAL_STEPS", str(INTERVAL_STEPS))
        self.module = root / "trainer.py"
        self.module.write_text(source)
        self.executions = 0

    def start(self) -> int:
        """Starts the executor on a new execution of the same node and returns its process."""
        self.executions += 1
        self.started_s = time.time()
        gc.collect()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            with open(self.root / f"output-{self.executions}", "ab") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            self._execute()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _execute(self) -> None:
        os.environ["CAMPAIGN_NOTES"] = str(self.notes)
        os.environ["TMPDIR"], tempfile.tempdir = str(self.temp_dir), None
        subprocess.Popen = ForkedPopen  # type: ignore[misc] # also what starts the fork servers
        self._note_phases()
        outputs = {}
        for name in ("model", "model_run"):
            folder = self.root / "Trainer" / name / str(self.executions)
            folder.mkdir(parents=True)
            kinds = {"model": standard_artifacts.Model, "model_run": standard_artifacts.ModelRun}
            outputs[name] = [artifact_at(kinds[name], folder)]
        distribution = Distribution(
            launcher="local",
            num_workers=2 if self.kind == "two" else 1,
            max_failures=10,
            preemption_grace_s=15.0,
            timeout_s=ROUND_TIMEOUT_S,
        )
        properties = {
            "module_file": str(self.module),
            "train_args": json.dumps({"num_steps": STEPS}),
            "eval_args": "{}",
            "custom_config": "null",
            "distribution": distribution.to_json(),
        }
        GenericTrainerExecutor().Do({"examples": [self.examples]}, outputs, properties)

    def _note_phases(self) -> None:
        validate, rename = Checker.validate, os.rename
        notes = self.notes

        def noted_validate(self: Any, *arguments: Any) -> Any:
            _append(notes, "validating")
            return validate(self, *arguments)

        def noted_rename(source: Any, target: Any, **options: Any) -> None:
            if Path(target).name == SERVING_DIR:  # this is how a local model is published
                _append(notes, "publishing")
            rename(source, target, **options)

        Checker.validate = noted_validate  # type: ignore[method-assign]
        os.rename = noted_rename

    def published(self) -> list[Path]:
        """Returns all directories where a consumer would find a model."""
        return sorted(self.root.glob(f"Trainer/model/*/{SERVING_DIR}"))

    def check_leftovers(self) -> None:
        """Looks for what executions before the last one have left."""
        left = [str(path) for path in self.root.glob("Trainer/model/*/.staging*")]
        for path in self.temp_dir.glob("generic-trainer-*/*"):
            if path.stat().st_mtime < self.started_s:
                left.append(str(path))
        if left:
            raise Violation(f"the next run has left what killed ones had left: {left}")

    def check_lost_steps(self) -> None:
        """Compares how far each attempt came with where the next one started."""
        done = 0
        for line in self.notes.read_text().splitlines():
            word, _, number = line.partition(" ")
            if word == "published":  # nothing is left to resume, and nothing is lost
                done = 0
            if word == "step":
                done = max(done, int(number))
            if word == "resumed" and int(number) < done - INTERVAL_STEPS:
                raise Violation(f"{done} steps were done, and the next attempt began at {number}")


def _append(path: Path, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")


def weights(model: Path) -> list[np.ndarray]:
    """Returns the variables of a SavedModel; raises if it is not whole."""
    if not (model / "saved_model.pb").exists():
        raise Violation(f"half a model at {model}")
    reader = tf.train.load_checkpoint(str(model / "variables" / "variables"))
    names = sorted(reader.get_variable_to_shape_map())
    return [reader.get_tensor(n) for n in names if n.startswith(("weight", "bias"))]


@contextlib.contextmanager
def round_folder(kind: str) -> Iterator[Path]:
    """Yields a folder, which is kept if the round fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"kill-campaign-{kind}-"))
    try:
        yield folder
    except BaseException:
        print(f"what the round left is in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)


def descendants() -> dict[int, tuple[int, str]]:
    """Returns process → (parent, state) of all processes below this one."""
    table = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                table[int(entry.name)] = (int(fields[1]), fields[0])
    found: dict[int, tuple[int, str]] = {}
    size = -1
    while size < len(found):
        size = len(found)
        for pid, (parent, state) in table.items():
            if (parent == os.getpid() or parent in found) and state not in "ZX":
                found[pid] = (parent, state)
    return found


def wait_for_phase(round_: Round, executor: int, phase: str, seen: int) -> str | None:
    """Waits until the run comes to a phase again; returns its note, or None if the run has ended.

    Args:
        round_: the run.
        executor: its process.
        phase: one of PHASES.
        seen: characters of the notes that are old.
    """
    deadline = time.monotonic() + ROUND_TIMEOUT_S
    while time.monotonic() < deadline:
        for line in round_.notes.read_text()[seen:].splitlines():
            if line.startswith(phase):
                return line
        if os.waitid(os.P_PID, executor, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return None
        time.sleep(0.002)
    raise Violation(f"the run did not come to {phase!r} within {ROUND_TIMEOUT_S:g} s")


def choose_target(dice: random.Random, executor: int, note: str) -> tuple[str, int]:
    """Returns the name and the process of what is to be killed."""
    below = descendants()
    targets = {"executor": [executor]}
    noted = int(note.split()[1]) if " " in note else 0
    if noted in below:
        server, _ = below[noted]
        targets["fork server"] = [server]
        targets["chief"] = [noted]
        siblings = [pid for pid, (parent, _) in below.items() if parent == server]
        targets["worker"] = [pid for pid in siblings if pid != noted]
    name = dice.choice(sorted(name for name, pids in targets.items() if pids))
    return name, dice.choice(targets[name])


def finish(executor: int) -> int:
    """Waits for the executor to end; returns its exit code."""
    deadline = time.monotonic() + ROUND_TIMEOUT_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(executor, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    raise Violation(f"the executor did not end within {ROUND_TIMEOUT_S:g} s")


def require_silence(timeout_s: float = 20.0) -> None:
    """Requires that no process of a run is left."""
    deadline = time.monotonic() + timeout_s
    while left := descendants():
        if time.monotonic() > deadline:
            names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in left]
            raise Violation(f"still running: {names}")
        time.sleep(0.02)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run_round(
    dice: random.Random, kind: str, examples: Any, kills: int, reference: list[np.ndarray] | None
) -> tuple[list[np.ndarray], collections.Counter[tuple[str, str]]]:
    """Runs until the model is published; kills on the way; returns weights and what was killed."""
    done: collections.Counter[tuple[str, str]] = collections.Counter()
    with round_folder(kind) as folder:
        round_ = Round(folder, kind, examples)
        executor = round_.start()
        while sum(done.values()) < kills:
            phase, number = dice.choice(PHASES), dice.choice([signal.SIGKILL, signal.SIGTERM])
            seen = len(round_.notes.read_text())
            note = wait_for_phase(round_, executor, phase, 0 if not done else seen)
            if note is None:
                break
            time.sleep(dice.uniform(0, DELAYS_S[phase]))
            name, pid = choose_target(dice, executor, note)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                done[phase, f"{name} {number.name}"] += 1
            if name == "executor":
                code = finish(executor)
                require_silence()
                for model in round_.published():
                    require_equal(weights(model), reference)
                    if model.parent.name == str(round_.executions):
                        _append(round_.notes, "published")
                if code == 0:  # it was faster
                    executor = 0
                    break
                executor = round_.start()
        if executor and finish(executor) != 0:
            raise Violation(f"{kind}: the run failed:\n" + last_output(folder))
        require_silence()
        round_.check_lost_steps()
        round_.check_leftovers()
        (*_, model) = round_.published()
        result = weights(model)
        require_equal(result, reference)
        if list(folder.glob("Trainer/.checkpoints/*")):
            raise Violation("the checkpoints of a finished run are still there")
    return result, done


def require_equal(found: list[np.ndarray], reference: list[np.ndarray] | None) -> None:
    """Requires the weights of the uninterrupted run."""
    if reference is not None and not all(map(np.array_equal, found, reference)):
        raise Violation(f"expected the weights {reference}, found {found}")


def last_output(folder: Path) -> str:
    """Returns the end of what the last executor has printed."""
    outputs = sorted(folder.glob("output-*"), key=lambda path: path.stat().st_mtime)
    return outputs[-1].read_text(errors="replace")[-4000:]


def main() -> int:
    """Runs rounds until enough has been killed, and prints what."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(SOURCES))
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    dice = random.Random(options.seed)
    for room in PRELOADED:
        for name in room.__all__:
            getattr(room, name)
    kinds = [options.only] if options.only else MIX
    started_s = time.perf_counter()
    # The same for all rounds: how examples are written differs from time to time.
    examples = write_examples(Path(tempfile.mkdtemp(prefix="kill-campaign-")) / "examples")
    references = {kind: run_round(dice, kind, examples, 0, None)[0] for kind in set(kinds)}
    total: collections.Counter[tuple[str, str]] = collections.Counter()
    rounds = 0
    while sum(total.values()) < options.kills:
        kind = kinds[rounds % len(kinds)]
        rounds += 1
        try:
            _, done = run_round(dice, kind, examples, dice.randint(2, 6), references[kind])
        except Violation as violation:
            print(f"round {rounds} ({kind}): {violation}")
            return 1
        total += done
        print(f"round {rounds} ({kind}): {sum(total.values())} kills", file=sys.stderr, flush=True)
    for (phase, target), count in sorted(total.items(), key=lambda item: PHASES.index(item[0][0])):
        print(f"{phase:12}{target:24}{count:5}")
    minutes = (time.perf_counter() - started_s) / 60
    print(f"{sum(total.values())} kills in {rounds} rounds, {minutes:.1f} min, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
