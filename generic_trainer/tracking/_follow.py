"""Follows a run for its trackers: a thread for each, new metrics while it trains, then its end."""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.event_files import ScalarReader
from generic_trainer._core.files import copy_tree, gfile, is_remote
from generic_trainer._core.texts import is_number
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer.launchers import Job, TrainingRequest
from generic_trainer.tracking._tracker import Metric, Tracker
from generic_trainer.tracking._tracking import Tracking, trackers
from generic_trainer.validation import ValidationReport

_PAUSE_S = 10.0
_REMOTE_PAUSE_S = 60.0  # each look is a listing of an object store
_KILLED_WAIT_S = 5.0  # after SIGTERM there is little time until SIGKILL
_FILES = "report.html", "report.json", "training.log", "trials.json"
_EXTRAS = ("mlflow", "vertex", "wandb")
_MAX_CHARACTERS = 300  # of a reason

_logger = logging.getLogger(__name__)


class _Outcome:
    """The end of a run; `report` is set when it has published its model."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.status, self.error = "killed", ""
        self.report: ValidationReport | None = None


@contextlib.contextmanager
def track(job: Job, trackings: Sequence[Tracking]) -> Iterator[_Outcome]:
    """Sends a run to trackers, while the context is open and at its end.

    Yields an object whose `report` is to be set when the model is published. A tracker that fails,
    or takes longer than its `timeout_s` at the end, is logged as a warning.

    Args:
        job: the run.
        trackings: its trackers.
    """
    outcome, followers = _Outcome(), []
    for tracking in trackings:
        try:
            follower = _Follower(job, tracking, outcome)
            follower.start()
            followers.append(follower)
        except Exception as error:  # the system has no thread left, for example
            _warn(tracking, str(error))
    try:
        yield outcome
        outcome.status = "finished"
    except BaseException as error:
        outcome.error = str(error) or repr(error)
        if isinstance(error, Exception):
            outcome.status = "failed"
        raise
    finally:
        outcome.is_over.set()
        for follower in followers:
            follower.wait()


class _Follower(threading.Thread):
    """The thread of a tracker. One that hangs delays neither the run nor other trackers."""

    def __init__(self, job: Job, tracking: Tracking, outcome: _Outcome) -> None:
        # A daemon: a service that does not answer must not keep the process from exiting.
        super().__init__(name=f"tracking.{tracking.to}", daemon=True)
        self._request, self._tracking, self._outcome = job.request, tracking, outcome
        # Here, because user code in this process may change its configuration later.
        self._params = params_of(job)

    def wait(self) -> None:
        """Waits until everything is sent, but at most for the tracker's timeout."""
        is_killed = self._outcome.status == "killed"
        timeout_s = min(self._tracking.timeout_s, _KILLED_WAIT_S if is_killed else math.inf)
        self.join(timeout_s)
        if self.is_alive():
            _warn(self._tracking, f"it takes longer than {timeout_s:g} s")

    def run(self) -> None:
        """Sends everything, or logs a warning."""
        try:
            self._send()
        except (Exception, SystemExit) as error:  # of the service's library, or a file system
            message = " ".join(str(error).split()) or "no message"
            if not isinstance(error, ModuleNotFoundError):
                message = f"{type(error).__name__}: {message}"
            elif self._tracking.to in _EXTRAS:
                message += f": install the extra `{self._tracking.to}` of generic-trainer"
            _warn(self._tracking, message)

    def _send(self) -> None:
        request, tracking, outcome = self._request, self._tracking, self._outcome
        model_run = request.model_run_dir
        own = os.path.join(request.scratch_dir, self.name) if is_remote(model_run) else model_run
        os.makedirs(own, exist_ok=True)
        tracker: Tracker = trackers()[tracking.to].load()()
        tracker.start(
            name=tracking.run or _name_of(request),
            uri=tracking.uri,
            experiment=tracking.experiment,
            directory=own,
        )
        tracker.log_params(self._params)
        scalars, is_over = ScalarReader(model_run), False
        while not is_over:
            is_over = outcome.is_over.wait(_PAUSE_S if own == model_run else _REMOTE_PAUSE_S)
            if metrics := scalars.read():
                tracker.log_metrics(metrics)
        try:
            self._send_results(tracker)
        finally:
            tracker.end(outcome.status)
        if own != model_run and os.listdir(own):
            copy_tree(own, os.path.join(model_run, self.name))

    def _send_results(self, tracker: Tracker) -> None:
        request, report = self._request, self._outcome.report
        if self._outcome.error:
            tracker.log_params({"error": self._outcome.error})
        paths = [os.path.join(request.model_run_dir, name) for name in _FILES]
        if report is not None:
            facts = [fact for fact in report.facts.items() if is_number(fact[1])]
            tracker.log_metrics([Metric(name, float(fact), 0, time.time()) for name, fact in facts])
            if self._tracking.model:
                paths.append(os.path.join(request.model_dir, SERVING_MODEL_DIR))
        copies = os.path.join(request.scratch_dir, f"{self.name}.{id(self)}")
        tracker.log_files([_local(path, copies) for path in paths if gfile().exists(path)])


def params_of(job: Job) -> dict[str, bool | float | str]:
    """Returns the parameters that decide the result of a run, and names that identify it, flat."""
    request = job.request
    hyperparameters = request.hyperparameters or {}
    values = {
        "train_steps": request.train_steps,
        "eval_steps": request.eval_steps,
        "launcher": job.distribution.launcher,
        "num_workers": str(job.distribution.num_workers),
        "hyperparameters": hyperparameters.get("values", hyperparameters),
        "custom_config": request.custom_config,
        "module": request.user_code.module,
        "module_hash": request.user_code.digest,
        "run_key": request.run_key,
        "model_run": request.model_run_dir,
        "model": request.model_dir,
    }
    return dict(_flat(values))


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, bool | float | str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float) else str(value)


def _local(path: str, copies: str) -> str:
    """Returns a path that libraries which only know local files can read."""
    if not is_remote(path):
        return path
    copy = os.path.join(copies, os.path.basename(path))
    os.makedirs(copies, exist_ok=True)
    (copy_tree if gfile().isdir(path) else gfile().copy)(path, copy)
    return copy


def _warn(tracking: Tracking, reason: str) -> None:
    _logger.warning(
        "Tracking of the run failed or is incomplete: %s%s: %s. The run itself is not affected.",
        tracking.to,
        f" at {tracking.uri}" if tracking.uri else "",
        reason[:_MAX_CHARACTERS].rstrip("."),
    )


def _name_of(request: TrainingRequest) -> str:
    parts = request.model_run_dir.rstrip("/").split("/")
    return f"{request.user_code.module} {parts[-1] if parts[-1].isdecimal() else parts[-2]}"
