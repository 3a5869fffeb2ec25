"""One TFJob: made, watched and deleted."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Iterator

from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import ConfigurationError, WorkerHangError, WorkerLostError
from generic_trainer.launchers._endings import Ending, decisive
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._members import members
from generic_trainer.launchers._options import TFJobOptions
from generic_trainer.launchers.local._limits import Deadline
from generic_trainer.launchers.tfjob._api import JobState, KubernetesApi, PodState
from generic_trainer.launchers.tfjob._folder import JobFolder
from generic_trainer.launchers.tfjob._log import shown_log
from generic_trainer.launchers.tfjob._manifest import manifest, pod_name
from generic_trainer.launchers.tfjob._pods import ending_of, waiting_for, will_never_start

__all__ = ["Attempt"]

_POLL_S = 1.0
# How long the API server may be away before the run is given up.
_PATIENCE_S = 120.0
# How long the other pods may take to say what happened when one has failed.
_LAST_WORDS_S = 10.0
# How long deleted pods may take to go, beyond `preemption_grace_s`.
_DELETION_S = 30.0
_FOLDER = ".tfjob"
_ENDED = ("Failed", "Succeeded")

_logger = logging.getLogger(__name__)


class Attempt:
    """A TFJob; closing deletes it."""

    def __init__(self, job: Job, api: KubernetesApi) -> None:
        """Makes the TFJob.

        Raises:
            ConfigurationError: Kubernetes refuses it, or its pods could not see the pipeline root.
            ModuleFileError: the user's code cannot be read.
        """
        self._job, self._api = job, api
        self._name = f"generic-trainer-{uuid.uuid4().hex[:10]}"
        self._folder = JobFolder(os.path.join(job.request.model_run_dir, _FOLDER, self._name))
        everyone = members(job.distribution)
        self._members = {pod_name(self._name, member): member for member in everyone}
        self._chief = pod_name(self._name, everyone[0])
        self._chief_has_ended = False
        self._is_deleted = False
        self._seen_s = time.monotonic()
        try:
            self._folder.write(job)
            api.create(manifest(job.distribution, self._name, self._folder.path))
        except BaseException:
            self._folder.delete()
            raise
        _logger.info("Made the TFJob %s in namespace %s", self._name, self._options.namespace)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Shows the chief's log meanwhile, and deletes the TFJob afterwards."""
        prefix = "[chief] " if self._job.distribution.is_cluster else ""
        with contextlib.ExitStack() as stack:
            stack.callback(self._delete)
            stack.enter_context(shown_log(lambda: self._api.log(self._chief), prefix))
            try:
                yield
            finally:
                if not self._chief_has_ended:  # its log ends with its pod only
                    self._delete()

    def watch(self, deadline: Deadline, stop: SigtermNotice) -> None:
        """Returns when the chief has done its part.

        Raises:
            GenericTrainerError: see `Launcher`.
        """
        while True:
            state, pods = self._look()
            if self._is_done(state, pods):
                return
            failed = self._failed(pods)
            if failed:
                raise self._error(self._wait_for_cause(failed))
            self._check(state, pods, deadline, stop)
            time.sleep(_POLL_S)

    def _look(self) -> tuple[JobState | None, dict[str, PodState]]:
        """Asks the API server, which may be away for a while."""
        while True:
            try:
                state, pods = self._api.job(self._name), self._api.pods(self._name)
                self._seen_s = time.monotonic()
                chief = pods.get(self._chief)
                self._chief_has_ended = chief is not None and chief.phase in _ENDED
                return state, pods
            except Exception as error:  # of the network, of the server, of the client
                if time.monotonic() - self._seen_s > _PATIENCE_S:
                    raise WorkerLostError(
                        f"The Kubernetes API server has not answered for {_PATIENCE_S:g} s; the "
                        f"TFJob {self._name} may still run. {error}"
                    ) from error
                _logger.warning("The Kubernetes API server does not answer: %s", error)
                time.sleep(_POLL_S)

    def _is_done(self, state: JobState | None, pods: dict[str, PodState]) -> bool:
        chief = pods.get(self._chief)
        succeeded = chief is not None and chief.phase == "Succeeded"
        return succeeded or (state is not None and state.condition == "Succeeded")

    def _failed(self, pods: dict[str, PodState]) -> list[Ending]:
        return [
            ending_of(self._members[name], pod, self._folder)
            for name, pod in pods.items()
            if pod.phase == "Failed" and name in self._members
        ]

    def _wait_for_cause(self, failed: list[Ending]) -> Ending:
        end_s = time.monotonic() + _LAST_WORDS_S
        while decisive(failed).outcome.lost_its_peers and time.monotonic() < end_s:
            time.sleep(_POLL_S)
            failed = self._failed(self._look()[1]) or failed
        return decisive(failed)

    def _error(self, ending: Ending) -> Exception:
        return ending.outcome.to_error(ending.worker if self._job.distribution.is_cluster else None)

    def _check(
        self,
        state: JobState | None,
        pods: dict[str, PodState],
        deadline: Deadline,
        stop: SigtermNotice,
    ) -> None:
        if stop.received:
            raise WorkerLostError(
                "SIGTERM: this process is to stop, and the TFJob with it. The next run of the same "
                "inputs, code and hyperparameters goes on from the last checkpoint, if run_fn "
                "writes any."
            )
        if state is None:
            raise WorkerLostError(f"Somebody has deleted the TFJob {self._name}.")
        if state.condition == "Failed":
            raise WorkerLostError(f"The training operator gave up the TFJob: {state.message}")
        hopeless = [pod for pod in pods.values() if will_never_start(pod)]
        if hopeless:
            raise ConfigurationError(
                f"The workers cannot start: {waiting_for(hopeless, len(hopeless))}. Expected an "
                f"image that the cluster can pull; TFJobOptions(image={self._options.image!r})."
            )
        if deadline.is_over:
            waits = waiting_for(pods.values(), len(self._members))
            raise WorkerHangError(
                f"Training did not end within timeout_s={deadline.timeout_s:g} and was stopped. "
                + (f"Not all workers had started: {waits}." if waits else "")
            )

    def _delete(self) -> None:
        """Deletes the TFJob, and waits until no pod is left that could write anywhere."""
        if self._is_deleted:
            return
        self._is_deleted = True
        if self._options.keep_job:
            _logger.info("The TFJob %s stays, as keep_job asks for", self._name)
            return
        end_s = time.monotonic() + self._job.distribution.preemption_grace_s + _DELETION_S
        try:
            self._api.delete(self._name)
            while self._api.pods(self._name) and time.monotonic() < end_s:
                time.sleep(_POLL_S)
        except Exception as error:
            _logger.warning(
                "The TFJob %s could not be deleted: %s. kubectl delete tfjob %s -n %s does it.",
                *(self._name, error, self._name, self._options.namespace),
            )
        self._folder.delete()

    @property
    def _options(self) -> TFJobOptions:
        return self._job.distribution.tfjob or TFJobOptions()
