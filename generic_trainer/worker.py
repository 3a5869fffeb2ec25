"""What every worker of a training run does: load the user's code, build its argument, call it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from generic_trainer.output import kept_output
from generic_trainer.request import TrainingRequest
from generic_trainer.training import is_chief
from generic_trainer.user_code import call_user_function, user_function

__all__ = ["run"]

_logger = logging.getLogger(__name__)

_SCRATCH_EXPORT_DIR = "export"


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
        TrainingError: `run_fn` raised.
    """
    export_dir = _export_dir(request)
    with kept_output(request.log_path), user_function(request.user_code) as run_fn:
        fn_args = make_fn_args(request, export_dir)
        _logger.info("Training with %s of %s", request.user_code.function, request.user_code.module)
        _logger.info("TensorBoard: tensorboard --logdir %s", request.model_run_dir)
        call_user_function(run_fn, fn_args, request.user_code)


def _export_dir(request: TrainingRequest) -> str:
    if not is_chief():
        return os.path.join(request.scratch_dir, _SCRATCH_EXPORT_DIR)
    import tensorflow as tf

    if tf.io.gfile.exists(request.staging_dir):  # a killed run left it
        tf.io.gfile.rmtree(request.staging_dir)
    tf.io.gfile.makedirs(request.staging_dir)
    return request.staging_dir
