"""One batch, to see that everything fits together."""

from __future__ import annotations

import contextlib
import logging
import tempfile

from generic_trainer.trials._loop import Controller

__all__ = ["try_one_batch"]

_logger = logging.getLogger(__name__)


def try_one_batch(controller: Controller) -> None:
    """Trains one batch, validates once, writes a checkpoint, deletes it, and closes the trial."""
    with contextlib.closing(controller), tempfile.TemporaryDirectory() as folder:
        _logger.info("Training on one batch: %s", controller.train(1))
        _logger.info("Validating: %s", controller.validate())
        controller.save(folder)
        _logger.info(
            "A checkpoint was written and deleted again. The test is passed; to run the whole "
            "experiment, submit it (local=False) or run it in a pipeline."
        )
