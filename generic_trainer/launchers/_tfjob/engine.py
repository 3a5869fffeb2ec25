"""Engine of the launcher `tfjob`: makes, watches and deletes a TFJob for each attempt."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence

from generic_trainer._core.cluster import Task
from generic_trainer.errors import ConfigurationError, WorkerLostError
from generic_trainer.launchers._distribution import TFJobOptions, tasks
from generic_trainer.launchers._failures import Failure, failure_of_exit_code, signal_name
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._packing import JobFolder, with_carried_environment
from generic_trainer.launchers._tfjob.api import JobState, KubernetesApi, PodState, shown_log
from generic_trainer.launchers._tfjob.manifest import manifest, pod_name
from generic_trainer.launchers._worker_end import WorkerEnd

_POLL_S = 1.0
# How long the API server may be away before the run is given up.
_PATIENCE_S = 120.0
# How long deleted pods may take to go, beyond `preemption_grace_s`.
_DELETION_S = 30.0
_FOLDER = ".tfjob"
_ENDED = ("Failed", "Succeeded")
# A pod that waits for one of these waits for ever.
_HOPELESS = (
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
)

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def tfjob_engine(job: Job) -> Iterator[TFJobEngine]:
    """Opens the engine.

    Raises:
        ConfigurationError: the client is not installed, or there is no configuration.
    """
    yield TFJobEngine(with_carried_environment(job))


class TFJobEngine:
    """Pods of a Kubernetes cluster; see `Engine`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._options = job.distribution.tfjob or TFJobOptions()
        self._api = KubernetesApi(self._options.namespace)
        self._chief = tasks(job.distribution)[0]
        self._name: str | None = None  # of the TFJob that there is
        self._pod_tasks: dict[str, Task] = {}
        self._state: JobState | None = None
        self._pods: dict[str, PodState] = {}
        self._attempt = contextlib.ExitStack()

    def start(self) -> None:
        """Makes the TFJob.

        Raises:
            ConfigurationError: Kubernetes refuses it, or its pods could not see the pipeline root.
            ModuleFileError: the user's code cannot be read.
        """
        distribution = self._job.distribution
        name = f"generic-trainer-{uuid.uuid4().hex[:10]}"
        self._folder = JobFolder(os.path.join(self._job.request.model_run_dir, _FOLDER, name))
        self._pod_tasks = {pod_name(name, task): task for task in tasks(distribution)}
        self._state, self._pods = JobState(), {}
        self._is_looked_at = self._is_deleted = self._is_gone = False
        self._is_kept = self._options.keep_job
        self._seen_s = time.monotonic()
        try:
            digest = self._folder.write(self._job, self._options.volumes.values())
            self._api.create(manifest(distribution, name, self._folder.path, digest))
        except BaseException:
            self._folder.delete()
            raise
        self._name = name
        _logger.info("Made the TFJob %s in namespace %s", name, self._options.namespace)
        chief = pod_name(name, self._chief)
        prefix = f"[{self._chief.name}] " if distribution.is_cluster else ""
        self._attempt.enter_context(shown_log(lambda: self._api.log(chief), prefix))

    def poll(self) -> Sequence[WorkerEnd]:
        """Asks the API server, which may be away for a while, how the pods are.

        Raises:
            WorkerLostError: it is away for too long.
        """
        while True:
            if self._is_looked_at:
                time.sleep(_POLL_S)
            self._is_looked_at = True
            try:
                name = self._name or ""
                self._state, self._pods = self._api.job(name), self._api.pods(name)
                self._seen_s = time.monotonic()
                return self._ends()
            except Exception as error:  # of the network, of the server, of the client
                if self._is_deleted:  # nobody waits for it any longer than for the pods
                    return self._ends()
                if time.monotonic() - self._seen_s > _PATIENCE_S:
                    raise WorkerLostError(
                        f"The Kubernetes API server has not answered for {_PATIENCE_S:g} s; the "
                        f"TFJob {self._name} may still run. {error}"
                    ) from error
                _logger.warning("The Kubernetes API server does not answer: %s", error)

    def running(self) -> Sequence[Task]:
        """Returns the tasks whose pods have not ended."""
        return [
            task
            for name, task in self._pod_tasks.items()
            if name in self._pods and self._pods[name].phase not in _ENDED
        ]

    def check(self) -> None:
        """Looks at what Kubernetes says of the TFJob and of pods that have not started.

        Raises:
            WorkerLostError: the TFJob is gone, or was given up.
            ConfigurationError: a pod will never start.
        """
        if self._state is None:
            raise WorkerLostError(f"Somebody has deleted the TFJob {self._name}.")
        if self._state.condition == "Failed":
            raise WorkerLostError(f"The training operator gave up the TFJob: {self._state.message}")
        hopeless = [
            pod for pod in self._pods.values() if pod.phase == "Pending" and pod.reason in _HOPELESS
        ]
        if hopeless:
            raise ConfigurationError(
                f"The workers cannot start: {_waiting_for(hopeless, len(hopeless))}. Expected an "
                f"image that the cluster can pull; TFJobOptions(image={self._options.image!r})."
            )

    def stop(self) -> None:
        """Deletes the TFJob, even one that is to be kept: its pods are sent SIGTERM."""
        self._is_kept = False
        self._delete()

    def diagnose(self) -> str:
        """Returns what pods wait for that do not run yet."""
        waits = _waiting_for(self._pods.values(), len(self._pod_tasks))
        return f"Not all workers had started: {waits}." if waits else ""

    def kill(self) -> None:
        """Deletes the TFJob, and waits until no pod is left that could write anywhere."""
        if self._name is None:
            return
        chief = self._pods.get(pod_name(self._name, self._chief))
        if chief is None or chief.phase not in _ENDED:  # its log ends with its pod only
            self._delete_and_wait()
        self._attempt.close()
        self._delete_and_wait()
        if self._is_kept:
            _logger.info("The TFJob %s stays, as keep_job asks for", self._name)
        else:
            self._folder.delete()
        self._name = None

    def _ends(self) -> list[WorkerEnd]:
        ends = []
        for name, task in self._pod_tasks.items():
            pod = self._pods.get(name)
            if pod is not None and pod.phase == "Failed":
                ends.append(self._folder.end(task) or _end_of(task, pod))
            elif pod is not None and pod.phase == "Succeeded":
                ends.append(WorkerEnd(task=task.name))
        if self._state is not None and self._state.condition == "Succeeded":
            ends.append(WorkerEnd(task=self._chief.name))
        return ends

    def _delete(self) -> None:
        if self._is_deleted or self._is_kept or self._name is None:
            return
        self._is_deleted = True
        try:
            self._api.delete(self._name)
        except Exception as error:
            _logger.warning(
                "The TFJob %s could not be deleted: %s. kubectl delete tfjob %s -n %s does it.",
                *(self._name, error, self._name, self._options.namespace),
            )

    def _delete_and_wait(self) -> None:
        self._delete()
        if not self._is_deleted or self._is_gone or self._name is None:
            return
        self._is_gone = True
        end_s = time.monotonic() + self._job.distribution.preemption_grace_s + _DELETION_S
        with contextlib.suppress(Exception):  # of the network, of the server, of the client
            while self._api.pods(self._name) and time.monotonic() < end_s:
                time.sleep(_POLL_S)


def _end_of(task: Task, pod: PodState) -> WorkerEnd:
    """Returns how the worker in a failed pod ended that could not say so itself."""
    code, name = pod.exit_code, None
    if pod.reason == "OOMKilled":
        failure = Failure.MEMORY
        message = (
            "its pod was killed because it took more memory than it was given. Give it more "
            "(memory_mb_per_worker), or use smaller batches or a smaller shuffle buffer."
        )
    elif code is None:
        failure = Failure.LOST
        reason = ", ".join(filter(None, [pod.reason, pod.message])) or "no reason is given"
        message = f"its pod {pod.name} was lost: {reason}."
    else:
        failure, name = failure_of_exit_code(code), signal_name(code)
        message = (
            f"its pod {pod.name} ended with exit code {code}"
            f"{f' ({name})' if name else ''} and could not say more."
        )
    return WorkerEnd(
        task=task.name,
        failure=failure,
        message=message,
        exit_code=code,
        signal=name,
    )


def _waiting_for(pods: Iterable[PodState], expected: int) -> str:
    """Returns what the pods wait for that do not run yet, as a sentence; empty when all run.

    Args:
        pods: those that there are.
        expected: how many there should be.
    """
    known = list(pods)
    reasons = [
        f"{pod.name} waits: {pod.reason or 'no reason is given'}"
        + (f" ({pod.message})" if pod.message else "")
        for pod in known
        if pod.phase == "Pending"
    ]
    if len(known) < expected:
        reasons.append(f"{expected - len(known)} of {expected} pods were never made")
    return "; ".join(reasons)
