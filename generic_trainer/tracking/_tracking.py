"""Trackers: `Tracking` chooses one, `Tracker` is their protocol, and `track` has them follow a run.

An adapter is one class. If a distribution registers it as an entry point of the group
`generic_trainer.trackers`, `Tracking(to="its name")` finds it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pydantic

from generic_trainer._core.event_files import Scalar as Metric
from generic_trainer._core.event_files import ScalarReader
from generic_trainer._core.files import copy_tree, gfile, is_remote
from generic_trainer._core.options import Options, Positive, Text, options
from generic_trainer._core.texts import (
    describe,
    did_you_mean,
    hyperparameter_values,
    is_number,
    shown,
)
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.launchers import Job, TrainingRequest
from generic_trainer.validation import ValidationReport

# Entry points of trackers; pyproject.toml registers those of this package.
GROUP = "generic_trainer.trackers"
_PAUSE_S = 10.0
_REMOTE_PAUSE_S = 60.0  # each look is a listing of an object store
_KILLED_WAIT_S = 5.0  # after SIGTERM there is little time until SIGKILL
_FILES = "report.html", "report.json", "training.log", "trials.json"
_EXTRAS = ("mlflow", "vertex", "wandb")
_MAX_CHARACTERS = 300  # of a reason

_logger = logging.getLogger(__name__)


@options(frozen=True, kw_only=True)
class Tracking(Options):
    """A tracker that gets parameters, metrics, report and model of a run.

    Attributes:
        to: `"mlflow"`, `"wandb"`, `"vertex"`, or the name of an entry point of the group
            `generic_trainer.trackers` that some distribution has registered.
        uri: MLflow's tracking URI, where None leaves it to `MLFLOW_TRACKING_URI`; the address of a
            W&B server, where None tracks offline, into the ModelRun, for `wandb sync`; on Vertex AI
            `"projects/PROJECT/locations/REGION"`. Do not put passwords here, because the pipeline
            stores it: MLflow and W&B read them from the environment.
        experiment: the experiment, which W&B calls a project. It is created if missing.
        run: the name of the run; None names it after module and execution.
        model: whether the tracker gets the published model too, and not only its signature.
        timeout_s: how long, in seconds, a finished run waits for the tracker. A model of many
            gigabytes needs more.

    Raises:
        ConfigurationError: values are wrong; all of them are listed.
    """

    to: Text
    uri: str | None = None
    experiment: Text = "generic-trainer"
    run: Text | None = None
    model: bool = True
    timeout_s: Positive = 30.0

    @pydantic.model_validator(mode="after")
    def _check(self) -> Tracking:
        problems = []
        known = trackers()
        if self.to not in known:
            got = f"{shown(self.to)}{did_you_mean(self.to, known)}"
            problems.append(f"to must be one of {sorted(known)}, got {got}")
        if self.to == "vertex" and (self.uri or "").split("/")[::2] != ["projects", "locations"]:
            problems.append(
                f'uri must be "projects/PROJECT/locations/REGION", got {describe(self.uri)}'
            )
        raise_problems(ConfigurationError, "Tracking", problems)
        return self

    @classmethod
    def parse(cls, value: Tracking | str) -> Tracking:
        """Returns the tracking for a string such as `"mlflow:http://host:5000"`.

        Args:
            value: `to`, or `to:uri`, or a JSON object of the fields; or a tracking.

        Raises:
            ConfigurationError: the value is not one of these, or its fields are wrong.
        """
        if isinstance(value, Tracking):
            return value
        if not isinstance(value, str):
            raise ConfigurationError(
                f'tracking must be a Tracking(...) or a string such as "mlflow:URI", but got '
                f"{describe(value)}."
            )
        if value.lstrip().startswith("{"):
            return cls.from_json(value)
        to, _, uri = value.partition(":")
        return cls(to=to, uri=uri or None)


def parse_trackings(value: Any) -> tuple[Tracking, ...]:
    """Returns the trackings of `None`, one of them, or several.

    Raises:
        ConfigurationError: see `Tracking.parse`.
    """
    if value is None:
        return ()
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return tuple(map(Tracking.parse, value if several else [value]))


def trackings_to_json(value: Any) -> str | None:
    """Returns a JSON list that `parse_trackings` reads; None if there are no trackings."""
    trackings = parse_trackings(value)
    return json.dumps([tracking.to_json() for tracking in trackings]) if trackings else None


def trackers() -> dict[str, importlib.metadata.EntryPoint]:
    """Returns name → entry point of the installed trackers."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


class Tracker(Protocol):
    """An adapter to a tracking service, for one run; one thread calls its methods.

    An error of theirs ends the tracking and is logged as a warning. `start` is called first and
    `end` last, once each.
    """

    def start(self, *, name: str, uri: str | None, experiment: str, directory: str) -> None:
        """Begins the run.

        Args:
            name: the name of the run.
            uri: the address of the service, as given; None leaves it to the tracker.
            experiment: the experiment to which the run belongs.
            directory: a local directory for files of the tracker itself.
        """

    def log_params(self, params: Mapping[str, bool | float | str]) -> None:
        """Logs names and values that are known once: parameters, and the error of a failed run."""

    def log_metrics(self, metrics: Sequence[Metric]) -> None:
        """Logs values of TensorBoard's scalars, in the order of writing."""

    def log_files(self, paths: Sequence[str]) -> None:
        """Logs local files, such as the report, and the directory of the published model."""

    def end(self, status: str) -> None:
        """Ends the run, which is `"finished"`, `"failed"` or `"killed"`."""


def by_step(metrics: Iterable[Metric]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields steps, with name and value of their metrics, in the order of writing.

    A second `fit` counts its steps anew: those steps come again, after all of the first.
    """
    rows: dict[tuple[int, int], dict[str, float]] = {}
    last: dict[str, tuple[int, int]] = {}  # metric → its latest fit and step
    for metric in metrics:
        fit, step = last.get(metric.name, (0, -1))
        key = (fit + (metric.step <= step), metric.step)
        last[metric.name] = key
        rows.setdefault(key, {})[metric.name] = metric.value
    yield from ((key[1], rows[key]) for key in sorted(rows))


class _Outcome:
    """The end of a run; `report` is set when it has published its model."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.status = "killed"
        self.error = ""
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
    outcome = _Outcome()
    followers = []
    for tracking in trackings:
        try:
            follower = _Follower(job, tracking, outcome)
            follower.start()
            followers.append(follower)
        except (Exception, SystemExit) as error:  # of the service's library, for example
            _warn(tracking, error)
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
        self._request = job.request
        self._tracking = tracking
        self._outcome = outcome
        # Here, because user code in this process may change its configuration later.
        self._params = params_of(job)
        # Not in the thread: packages imported by two threads at once may be incomplete in both.
        self._make_tracker = trackers()[tracking.to].load()

    def wait(self) -> None:
        """Waits until everything is sent, but at most for the tracker's timeout."""
        is_killed = self._outcome.status == "killed"
        timeout_s = min(self._tracking.timeout_s, _KILLED_WAIT_S if is_killed else math.inf)
        self.join(timeout_s)
        if self.is_alive():
            _warn(self._tracking, TimeoutError(f"it takes longer than {timeout_s:g} s"))

    def run(self) -> None:
        """Sends everything, or logs a warning."""
        try:
            self._send()
        except (Exception, SystemExit) as error:  # of the service's library, or a file system
            _warn(self._tracking, error)

    def _send(self) -> None:
        request = self._request
        tracking = self._tracking
        outcome = self._outcome
        tracker: Tracker = self._make_tracker()
        model_run = request.model_run_dir
        own = os.path.join(request.scratch_dir, self.name) if is_remote(model_run) else model_run
        os.makedirs(own, exist_ok=True)
        tracker.start(
            name=tracking.run or _name_of(request),
            uri=tracking.uri,
            experiment=tracking.experiment,
            directory=own,
        )
        try:
            tracker.log_params(self._params)
            scalars = ScalarReader(model_run)
            is_over = False
            while not is_over:
                is_over = outcome.is_over.wait(_PAUSE_S if own == model_run else _REMOTE_PAUSE_S)
                if metrics := scalars.read():
                    tracker.log_metrics(metrics)
            self._send_results(tracker)
        except (Exception, SystemExit) as error:
            _warn(tracking, error)
        outcome.is_over.wait()  # or the service would show the run as running for ever
        tracker.end(outcome.status)
        if own != model_run and os.listdir(own):
            copy_tree(own, os.path.join(model_run, self.name))

    def _send_results(self, tracker: Tracker) -> None:
        request = self._request
        report = self._outcome.report
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
    values = {
        "train_steps": request.train_steps,
        "eval_steps": request.eval_steps,
        "launcher": job.distribution.launcher,
        "num_workers": str(job.distribution.num_workers),
        "hyperparameters": hyperparameter_values(request.hyperparameters),
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


def _warn(tracking: Tracking, error: BaseException) -> None:
    reason = " ".join(str(error).split()) or "no message"
    if not isinstance(error, ModuleNotFoundError):
        reason = f"{type(error).__name__}: {reason}"
    elif tracking.to in _EXTRAS:
        reason += f": install the extra `{tracking.to}` of generic-trainer"
    _logger.warning(
        "Tracking of the run failed or is incomplete: %s%s: %s. The run itself is not affected.",
        tracking.to,
        f" at {tracking.uri}" if tracking.uri else "",
        reason[:_MAX_CHARACTERS].rstrip("."),
    )


def _name_of(request: TrainingRequest) -> str:
    parts = request.model_run_dir.rstrip("/").split("/")
    return f"{request.user_code.module} {parts[-1] if parts[-1].isdecimal() else parts[-2]}"
