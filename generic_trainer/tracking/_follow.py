"""Follows a run for its trackers: starts their processes, sends what is new, waits for the end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.event_files import Scalar, ScalarReader
from generic_trainer._core.files import copy_tree, gfile, is_remote, read_whole
from generic_trainer._core.texts import is_number
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer.launchers import Job
from generic_trainer.tracking._tracker import Outcome, Signature, TrackedRun, TrackedTrial
from generic_trainer.tracking._tracking import Tracking
from generic_trainer.validation import ValidationReport

_LOOK_S = 10.0
_REMOTE_LOOK_S = 60.0  # each is a listing of an object store
_KILLED_WAIT_S = 5.0  # of a run that is told to end: what comes after SIGTERM is short
_OF_TRIAL = re.compile(r"trials/(\d+)/(.+)")
_TRIALS_FILE = "trials.json"
_FILES = "report.html", "report.json", "training.log", _TRIALS_FILE
_SIGNATURE = "serving_default"
_FAR_TOO_LONG = 300  # characters of a tracker's last words

_logger = logging.getLogger(__name__)


class _Run:
    """A run that is followed; `report` is set when it has published its model."""

    report: ValidationReport | None = None


@contextlib.contextmanager
def track(job: Job, trackings: Sequence[Tracking]) -> Iterator[Any]:
    """Tells a run to trackers, while the context is open and at its end.

    Yields an object whose `report` is to be set when the model is published. What fails in a
    tracker, or takes longer than its `timeout_s` at the end, is a warning.

    Args:
        job: the run.
        trackings: where it is tracked.
    """
    run = _Run()
    followers = [follower for each in trackings if (follower := _started(job, each))]
    try:
        yield run
    except BaseException as error:
        is_error = isinstance(error, Exception)
        outcome = Outcome("failed" if is_error else "killed", error=str(error) or repr(error))
        _end(followers, job, outcome, None, None if is_error else _KILLED_WAIT_S)
        raise
    _end(followers, job, Outcome("finished"), run.report, None)


class _Follower:
    """One tracker's process, and the thread that tells it what is new."""

    def __init__(self, job: Job, tracking: Tracking) -> None:
        request = job.request
        self.tracking = tracking
        self._name = f"tracking.{tracking.to}"
        self._model_run = request.model_run_dir
        self._folder = os.path.join(request.scratch_dir, self._name)
        os.makedirs(self._folder, exist_ok=True)
        self._log_path = os.path.join(self._folder, "log")
        self._is_over, self._is_late = threading.Event(), False
        self._outcome: dict[str, Any] = {}
        self._scalars = ScalarReader(request.model_run_dir)
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "generic_trainer.tracking._process", tracking.to],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **_PATIENCE, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for the training; this one notes the end
            )
        self._stdin: Any = self._process.stdin
        local = self._folder if is_remote(self._model_run) else self._model_run
        start = TrackedRun(
            name=tracking.run or _name_of(job),
            uri=tracking.uri,
            experiment=tracking.experiment,
            params=_params(job),
            tags=_tags(job),
            directory=local,
        )
        self._thread = threading.Thread(target=self._follow, args=(start,), daemon=True)
        self._thread.start()

    def end(self, outcome: Outcome) -> None:
        """Has the rest told."""
        self._outcome = dataclasses.asdict(outcome)
        self._is_over.set()

    def join(self, timeout_s: float) -> None:
        """Waits until all is told."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._is_late = True
            self._process.kill()
            _warn(self.tracking, f"it takes longer than {timeout_s:g} s")
        elif is_remote(self._model_run) and not self._process.returncode:
            os.unlink(self._log_path)
            copy_tree(self._folder, os.path.join(self._model_run, self._name))

    def _follow(self, start: TrackedRun) -> None:
        pause_s = _REMOTE_LOOK_S if is_remote(self._model_run) else _LOOK_S
        try:
            self._send({"start": dataclasses.asdict(start)})
            while not self._is_over.wait(pause_s) and self._process.poll() is None:
                self._send_scalars()
            if self._process.poll() is None:
                self._send_scalars()
                self._send({"end": self._outcome})
                self._stdin.close()
        except BrokenPipeError:  # it has ended
            pass
        except Exception as error:  # an event file that cannot be read, for example
            self._process.kill()
            self._is_late = True
            _warn(self.tracking, f"{type(error).__name__}: {error}")
        if self._process.wait() and not self._is_late:
            _warn(self.tracking, self._last_words())

    def _send_scalars(self) -> None:
        if scalars := self._scalars.read():
            self._send({"log": [_metric(each) for each in scalars]})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")
        self._stdin.flush()

    def _last_words(self) -> str:
        with open(self._log_path, encoding="utf-8", errors="replace") as log:
            lines = log.read().split("\n")
        told = [line.strip() for line in lines if line.strip()]
        return told[-1][:_FAR_TOO_LONG] if told else f"exit status {self._process.returncode}"


# A server that does not answer is given up before the run's own patience ends.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def _started(job: Job, tracking: Tracking) -> _Follower | None:
    try:
        return _Follower(job, tracking)
    except Exception as error:  # no processes left, say
        _warn(tracking, str(error))
        return None


def _warn(tracking: Tracking, reason: str) -> None:
    where = f" at {tracking.uri}" if tracking.uri else ""
    _logger.warning(
        "The run is not tracked, or not to its end, by %s%s: %s. The run itself is not touched.",
        tracking.to,
        where,
        reason.rstrip("."),
    )


def _end(
    followers: Sequence[_Follower],
    job: Job,
    outcome: Outcome,
    report: ValidationReport | None,
    most_s: float | None,
) -> None:
    if not followers:
        return
    try:
        outcome = _with_files(outcome, job, report)
    except Exception as error:  # what it raises depends on the file system
        _logger.warning("What a run came to cannot be told to its trackers: %s", error)
    for each in followers:
        kept = outcome if each.tracking.model else dataclasses.replace(outcome, model=None)
        each.end(kept)
    for each in followers:
        each.join(min(each.tracking.timeout_s, most_s or math.inf))


def _with_files(outcome: Outcome, job: Job, report: ValidationReport | None) -> Outcome:
    request = job.request
    directory = os.path.join(request.scratch_dir, "tracked")
    files = []
    for name in _FILES:
        path = os.path.join(request.model_run_dir, name)
        if gfile().exists(path):
            files.append(_local(path, os.path.join(directory, name)))
    model, signature, facts = None, None, {}
    if report is not None:
        facts = {k: float(v) for k, v in report.facts.items() if is_number(v)}
        published = os.path.join(request.model_dir, SERVING_MODEL_DIR)
        model = _local(published, os.path.join(directory, SERVING_MODEL_DIR))
        signature = _signature_of(model)
    return dataclasses.replace(
        outcome,
        facts=facts,
        files=files,
        model=model,
        signature=signature,
        trials=_trials_of(request.model_run_dir),
    )


def _local(path: str, copy: str) -> str:
    """Returns a path for processes that know no file systems but the local one."""
    if not is_remote(path):
        return path
    if gfile().isdir(path):
        copy_tree(path, copy)
    else:
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        gfile().copy(path, copy, overwrite=True)
    return copy


def _metric(scalar: Scalar) -> tuple[Any, ...]:
    of_trial = _OF_TRIAL.fullmatch(scalar.name)
    name, trial = (of_trial[2], int(of_trial[1])) if of_trial else (scalar.name, None)
    return name, scalar.value, scalar.step, scalar.time_s, trial


def _name_of(job: Job) -> str:
    request = job.request
    parts = request.model_run_dir.rstrip("/").split("/")
    number = parts[-1] if parts[-1].isdecimal() else parts[-2]
    return f"{request.user_code.module} {number}"


def _params(job: Job) -> dict[str, bool | float | str]:
    request = job.request
    hyperparameters = request.hyperparameters or {}
    told = {
        "train_steps": request.train_steps,
        "eval_steps": request.eval_steps,
        "launcher": job.distribution.launcher,
        "num_workers": str(job.distribution.num_workers),
        "hyperparameters": hyperparameters.get("values", hyperparameters),
        "custom_config": request.custom_config,
    }
    return dict(_flat(told))


def _tags(job: Job) -> dict[str, str]:
    request = job.request
    return {
        "module": request.user_code.module,
        "module_hash": request.user_code.digest or "",
        "run_key": request.run_key,
        "model_run": request.model_run_dir,
        "model": request.model_dir,
    }


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, bool | float | str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif value is not None:
            is_plain = isinstance(value, str | bool) or is_number(value)
            yield name, value if is_plain else str(value)


def _trials_of(model_run_dir: str) -> list[TrackedTrial]:
    path = os.path.join(model_run_dir, _TRIALS_FILE)
    if not gfile().exists(path):
        return []
    return [
        TrackedTrial(
            each["trial_id"], dict(_flat(each["hparams"])), each["error"], each["exported"]
        )
        for each in json.loads(read_whole(path))
    ]


def _signature_of(model_dir: str) -> Signature | None:
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    path = os.path.join(model_dir, "saved_model.pb")
    if not os.path.exists(path):
        return None

    def tensors(infos: Mapping[str, Any]) -> list[tuple[str, str, list[int]]]:
        return [
            (name, _numpy_name(tf.as_dtype(info.dtype)), [d.size for d in info.tensor_shape.dim])
            for name, info in sorted(infos.items())
        ]

    saved = saved_model_pb2.SavedModel.FromString(read_whole(path))
    found = {name: one for graph in saved.meta_graphs for name, one in graph.signature_def.items()}
    name = _SIGNATURE if _SIGNATURE in found else next((n for n in found if n[0] != "_"), None)
    if name is None:
        return None
    return Signature(name, tensors(found[name].inputs), tensors(found[name].outputs))


def _numpy_name(dtype: Any) -> str:
    return "object" if dtype.name == "string" else str(dtype.name)
