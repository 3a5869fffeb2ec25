"""One worker's part in a job: what every launcher has its processes do."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator

from generic_trainer._core.cluster import cluster_addresses, this_task
from generic_trainer._core.output import shown_output
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import _worker
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._outcome import Outcome

__all__ = ["outcome_of_part", "take_part"]

_logger = logging.getLogger(__name__)


def outcome_of_part(job: Job) -> Outcome:
    """Takes part in a job, prints the error if there is one, and returns how it ended."""
    try:
        take_part(job)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        return Outcome.of(error)
    return Outcome()


def take_part(job: Job) -> None:
    """Does what `TF_CONFIG` says that this process is for.

    1. A server of `ParameterServerStrategy` waits for orders and never returns.
    2. Any other process calls `run_fn`, with a scratch directory of its own, or `export_fn` if the
       job is a rehearsal.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    with shown_output():
        if job.distribution.require_gpu:
            _require_gpu()
        if _is_server(job):
            _serve()
            return
        with _own_scratch(job) as job:
            if job.rehearsal_dir is None:
                _worker.run(job.request, job.make_fn_args)
            else:
                os.environ.pop("TF_CONFIG", None)  # alone, whatever cluster will train
                _worker.rehearse(job.request, job.make_fn_args, job.rehearsal_dir)


def _require_gpu() -> None:
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        raise ConfigurationError(
            "require_gpu: TensorFlow sees no GPU in this worker. Give it one, install the CUDA "
            "build of TensorFlow (pip install 'tensorflow[and-cuda]'), or drop require_gpu. "
            f"CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES')!r}."
        )


def _is_server(job: Job) -> bool:
    return bool(job.distribution.parameter_servers) and this_task().type != "chief"


def _serve() -> None:
    import tensorflow as tf

    task = this_task()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster_addresses()),
        job_name=task.type,
        task_index=task.index,
        protocol="grpc",
    )
    _logger.info("Waiting for orders at %s", server.target)
    server.join()


@contextlib.contextmanager
def _own_scratch(job: Job) -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="generic-trainer-") as scratch_dir:
        request = dataclasses.replace(job.request, scratch_dir=scratch_dir)
        yield dataclasses.replace(job, request=request)
