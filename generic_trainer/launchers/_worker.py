"""What every worker of a training run does: load the user's code, build its argument, call it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

from generic_trainer._core.cluster import is_one_of_several
from generic_trainer._entry_points import run_fn_of
from generic_trainer.data import explain_read_errors
from generic_trainer.launchers._request import TrainingRequest
from generic_trainer.training import is_chief
from generic_trainer.training._keras_3 import keras_3_on_one_worker_only
from generic_trainer.user_code import call_user_function, user_module

__all__ = ["rehearse", "run"]

_logger = logging.getLogger(__name__)

_SCRATCH_EXPORT_DIR = "export"
_EXPORT_FN = "export_fn"


def run(request: TrainingRequest, make_fn_args: Callable[[TrainingRequest, str], Any]) -> None:
    """Calls the user's `run_fn` in this process.

    The chief exports into the staging directory of the model; every other worker exports into
    scratch, because a distribution strategy has all of them save and only one copy is wanted.

    Args:
        request: the run.
        make_fn_args: builds the argument of `run_fn` from the request and the directory that the
            model directories go into. TFX's `FnArgs` is built by who knows TFX.

    Raises:
        ModuleFileError: the user's module cannot be loaded.
        DataError: `run_fn` met a file or record that cannot be read.
        TrainingError: `run_fn` raised.
    """
    export_dir = _export_dir(request)
    with run_fn_of(request.user_code) as run_fn:
        fn_args = make_fn_args(request, export_dir)
        _logger.info("Training with %s of %s", request.user_code.function, request.user_code.module)
        _logger.info("TensorBoard: tensorboard --logdir %s", request.model_run_dir)
        with explain_read_errors(), _refusals():
            call_user_function(run_fn, fn_args, request.user_code)


def rehearse(
    request: TrainingRequest, make_fn_args: Callable[[TrainingRequest, str], Any], export_dir: str
) -> None:
    """Has the user's `export_fn` export untrained weights, so that a wrong signature costs seconds.

    Exports nothing when the module has no such function.

    Args:
        request: the run.
        make_fn_args: see `run`.
        export_dir: directory that the model directories go into.

    Raises:
        ModuleFileError: the user's module cannot be loaded.
        TrainingError: `export_fn` raised.
    """
    with user_module(request.user_code) as module:
        export_fn = getattr(module, _EXPORT_FN, None)
        if export_fn is None:
            _logger.warning(
                "The contract asks for a rehearsal, but %s has no %s(fn_args): there is none.",
                request.user_code.module,
                _EXPORT_FN,
            )
            return
        _logger.info("Rehearsing: %s exports untrained weights", _EXPORT_FN)
        os.makedirs(export_dir)
        call_user_function(export_fn, make_fn_args(request, export_dir), request.user_code)


def _refusals() -> contextlib.AbstractContextManager[None]:
    return keras_3_on_one_worker_only() if is_one_of_several() else contextlib.nullcontext()


def _export_dir(request: TrainingRequest) -> str:
    if not is_chief():
        return os.path.join(request.scratch_dir, _SCRATCH_EXPORT_DIR)
    import tensorflow as tf

    if tf.io.gfile.exists(request.staging_dir):  # a killed run left it
        tf.io.gfile.rmtree(request.staging_dir)
    tf.io.gfile.makedirs(request.staging_dir)
    return request.staging_dir
