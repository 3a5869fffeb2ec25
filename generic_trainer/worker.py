"""What every worker of a training run does: load the user's code, build its argument, call it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from generic_trainer.data import explain_read_errors
from generic_trainer.request import TrainingRequest
from generic_trainer.training import is_chief
from generic_trainer.training._cluster import is_one_of_several
from generic_trainer.training._keras_3 import keras_3_on_one_worker_only
from generic_trainer.user_code import call_user_function, user_function

__all__ = ["run"]

_logger = logging.getLogger(__name__)

_SCRATCH_EXPORT_DIR = "export"
_REHEARSAL_DIR = "rehearsal"
_EXPORT_FN = "export_fn"


def run(
    request: TrainingRequest,
    make_fn_args: Callable[[TrainingRequest, str], Any],
    *,
    check_rehearsal: Callable[[str], None] | None = None,
) -> None:
    """Calls the user's `run_fn` in this process.

    The chief exports into the staging directory of the model; every other worker exports into
    scratch, because a distribution strategy has all of them save and only one copy is wanted.

    Args:
        request: the run.
        make_fn_args: builds the argument of `run_fn` from the request and the directory that the
            model directories go into. TFX's `FnArgs` is built by who knows TFX.
        check_rehearsal: called before training with the directory of an export of untrained
            weights, where the module has `export_fn(fn_args)` to make one; it raises when the
            export is no good. None leaves the rehearsal out.

    Raises:
        ModuleFileError: the user's module cannot be loaded.
        DataError: `run_fn` met a file or record that cannot be read.
        TrainingError: `run_fn` raised.
    """
    export_dir = _export_dir(request)
    with user_function(request.user_code) as run_fn:
        if check_rehearsal is not None:
            _rehearse(request, make_fn_args, check_rehearsal)
        fn_args = make_fn_args(request, export_dir)
        _logger.info("Training with %s of %s", request.user_code.function, request.user_code.module)
        _logger.info("TensorBoard: tensorboard --logdir %s", request.model_run_dir)
        with explain_read_errors(), _refusals():
            call_user_function(run_fn, fn_args, request.user_code)


def _refusals() -> contextlib.AbstractContextManager[None]:
    return keras_3_on_one_worker_only() if is_one_of_several() else contextlib.nullcontext()


def _rehearse(
    request: TrainingRequest,
    make_fn_args: Callable[[TrainingRequest, str], Any],
    check: Callable[[str], None],
) -> None:
    """Exports before training, so that a bug in a signature costs seconds."""
    export_fn = getattr(sys.modules[request.user_code.module], _EXPORT_FN, None)
    if export_fn is None:
        _logger.warning(
            "The contract asks for a rehearsal, but %s has no %s(fn_args): there is none.",
            request.user_code.module,
            _EXPORT_FN,
        )
        return
    _logger.info("Rehearsing: %s exports untrained weights", _EXPORT_FN)
    fn_args = make_fn_args(request, os.path.join(request.scratch_dir, _REHEARSAL_DIR))
    call_user_function(export_fn, fn_args, request.user_code)
    check(fn_args.serving_model_dir)


def _export_dir(request: TrainingRequest) -> str:
    if not is_chief():
        return os.path.join(request.scratch_dir, _SCRATCH_EXPORT_DIR)
    import tensorflow as tf

    if tf.io.gfile.exists(request.staging_dir):  # a killed run left it
        tf.io.gfile.rmtree(request.staging_dir)
    tf.io.gfile.makedirs(request.staging_dir)
    return request.staging_dir
