"""Tasks of a job, from the inside: a process trains, serves or exports."""

import contextlib
import dataclasses
import faulthandler
import logging
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.cluster import (
    TF_CONFIG,
    cluster_addresses,
    has_parameter_servers,
    is_chief,
    is_one_of_several,
    this_task,
)
from generic_trainer._core.files import delete_tree, gfile
from generic_trainer._core.keras import keras_module, keras_version
from generic_trainer._core.machine import find_cuda_of_wheels
from generic_trainer._core.output import shown_output
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._entry_points import run_fn_of
from generic_trainer.data import explain_read_errors
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._registry import around_training
from generic_trainer.launchers._worker_end import WorkerEnd
from generic_trainer.training import checked_on_several_workers, keras_2_left_alone, watched
from generic_trainer.user_code import call_user_function, user_module

_logger = logging.getLogger(__name__)

_EXPORT_FN = "export_fn"
_POLL_S = 0.02


def train(job: Job) -> None:
    """Calls the user's `run_fn` in this process; `TF_CONFIG` may describe a cluster.

    The chief exports into the staging directory of the model; every other worker exports into
    scratch, because a distribution strategy has all of them save and only one copy is wanted.

    Raises:
        ConfigurationError: a GPU is required, and there is none.
        ModuleFileError: the user's module cannot be loaded.
        DataError: `run_fn` met a file or record that cannot be read.
        TrainingError: `run_fn` raised.
    """
    find_cuda_of_wheels()
    # A chief that only sends orders needs no GPU.
    if job.distribution.require_gpu and not has_parameter_servers():
        _require_gpu()
    request = job.request
    code = request.user_code
    export_dir = os.path.join(request.scratch_dir, "export")
    seen_dir = ""
    if is_chief():
        export_dir = request.export_dir
        seen_dir = request.model_run_dir
        delete_tree(export_dir)  # a killed run left it
        gfile().makedirs(export_dir)
    with _same_directory(), run_fn_of(code) as run_fn, around_training(seen_dir):
        fn_args = job.make_fn_args(export_dir)
        _logger.info("Training with %s of %s", code.function, code.module)
        with contextlib.suppress(ImportError):  # not each `run_fn` needs it
            _logger.info("tf.keras is Keras %s", keras_version())
        _logger.info("TensorBoard: tensorboard --logdir %s", request.model_run_dir)
        _logger.info("Live view: %s", os.path.join(request.model_run_dir, "live.html"))
        checked = checked_on_several_workers() if is_one_of_several() else contextlib.nullcontext()
        # `checked` is the innermost: what run_fn itself replaces in Keras is undone first.
        with explain_read_errors(), watched(seen_dir), keras_2_left_alone(), checked:
            call_user_function(run_fn, fn_args, code)


@contextlib.contextmanager
def _same_directory() -> Iterator[None]:
    """Returns to the working directory: the user's code may change that of this process."""
    directory = None
    with contextlib.suppress(FileNotFoundError):  # it was deleted
        directory = os.getcwd()
    try:
        yield
    finally:
        if directory is not None:
            with contextlib.suppress(OSError):
                os.chdir(directory)


def run_task(job: Job, name: str) -> WorkerEnd:
    """Runs the task that `TF_CONFIG` assigns to this process, and returns how it ended.

    1. A server of `ParameterServerStrategy` waits for orders and never returns.
    2. Any other process calls `run_fn`, or in a rehearsal `export_fn`, with its own scratch
       directory.
    3. An error is printed.

    Args:
        job: common to all tasks.
        name: of the task, for its `WorkerEnd`.
    """
    try:
        with shown_output():
            if job.serves or (job.distribution.parameter_servers and this_task().is_server):
                serve(job).join()
            with ScratchFolder("task-") as scratch_dir:
                request = dataclasses.replace(job.request, scratch_dir=scratch_dir)
                job = dataclasses.replace(job, request=request)
                if job.export_fn_dir is not None:
                    _export(job, job.export_fn_dir)
                else:
                    train(job)
    except BaseException as error:
        _print_error()
        return WorkerEnd.of(error, name)
    return WorkerEnd(task=name)


def serve(job: Job) -> Any:
    """Starts the server of `ParameterServerStrategy` that this process is, and returns it.

    It runs until the process ends; `join()` waits for that.

    Raises:
        ConfigurationError: a worker is required to have a GPU, and has none.
    """
    import tensorflow as tf

    task = this_task()
    if job.distribution.require_gpu and task.type == "worker":
        _require_gpu()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster_addresses()),
        job_name=task.type,
        task_index=task.index,
        protocol="grpc",
    )
    _logger.info("Waiting for orders at %s", server.target)
    return server


def main(arguments: Mapping[str, Any]) -> int:
    """Runs a task in a child of a fork server and returns the exit code.

    Args:
        arguments: `job`, as JSON; `name`, of the task; `processors` to run on, empty for all;
            `end`, the file for the `WorkerEnd`; `peers`, these files of all workers that train;
            `stacks`, the file for the stacks of a process that crashes.
    """
    if arguments["processors"]:
        os.sched_setaffinity(0, arguments["processors"])
    try:
        with open(arguments["stacks"], "w") as stacks:
            faulthandler.enable(stacks, all_threads=True)
            with contextlib.suppress(ImportError):
                keras_module()  # for good: modules that are imported from now on set the variable
            _draw_differently()
            job = Job.from_json(arguments["job"])
            end = run_task(job, arguments["name"])
            end.write(arguments["end"])
            if end.failure is None:
                _wait_for(arguments["peers"], job.distribution.worker_grace_s)
            faulthandler.disable()  # before the file is closed
    except OSError:  # the disk is full or fails: only the exit status remains
        _print_error()
        return Failure.DISK.exit_code
    return end.status


def _print_error() -> None:
    """Prints the error that is handled, unless the disk of the output fails."""
    with contextlib.suppress(OSError, ValueError):  # run_fn has closed it
        traceback.print_exc()
        sys.stderr.flush()


def _export(job: Job, export_dir: str) -> None:
    """Calls the user's `export_fn` without any training, if the module has one.

    In a rehearsal it exports untrained weights, so that a wrong signature costs seconds.
    """
    os.environ.pop(TF_CONFIG, None)  # alone, also if a cluster will train
    if job.distribution.require_gpu:
        _require_gpu()
    code = job.request.user_code
    with user_module(code) as module:
        export_fn = getattr(module, _EXPORT_FN, None)
        if export_fn is None:
            return
        _logger.info("%s of %s exports into %s", _EXPORT_FN, code.module, export_dir)
        os.makedirs(export_dir)
        with contextlib.ExitStack() as stack:
            if job.has_trained:
                from generic_trainer.training.resume import exports_trained_weights

                stack.enter_context(exports_trained_weights())
            call_user_function(export_fn, job.make_fn_args(export_dir), code)


def _require_gpu() -> None:
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        raise ConfigurationError(
            "require_gpu: TensorFlow sees no GPU in this worker. Give it one, install the CUDA "
            "build of TensorFlow (pip install 'tensorflow[and-cuda]'), or drop require_gpu. "
            f"CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES')!r}."
        )


def _wait_for(peers: Sequence[str], timeout_s: float) -> None:
    """Waits until all are done: the chief's process has the service that the others use."""
    end_s = time.monotonic() + timeout_s
    while not all(map(os.path.exists, peers)) and time.monotonic() < end_s:
        time.sleep(_POLL_S)


def _draw_differently() -> None:
    """Reseeds this process: it was forked with the random state of its siblings."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
