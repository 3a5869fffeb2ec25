"""SavedModels of an estimator, one per serving input receiver function."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from generic_trainer._core.files import gfile
from generic_trainer.estimator._exports import copy_newest, copy_tree

__all__ = ["Exports", "publish"]

_logger = logging.getLogger(__name__)


class Exports:
    """The exports of an estimator's newest checkpoint, made when they are asked for.

    Attributes:
        names: of the receiver functions.
    """

    def __init__(
        self, estimator: Any, receivers: Mapping[str, Callable[[], Any]], folder: str
    ) -> None:
        """Takes an estimator and a folder of its trial."""
        self.names = list(receivers)
        self._estimator = estimator
        self._receivers = dict(receivers)
        self._folder = os.path.join(folder, "exports")
        self._are_made = False

    def forget(self) -> None:
        """To be called when there is a newer checkpoint."""
        if gfile().exists(self._folder):
            gfile().rmtree(self._folder)
        self._are_made = False

    def copy_to(self, directory: str) -> None:
        """Writes `directory`/<name>/<time>/saved_model.pb for each function."""
        for name, receiver in self._receivers.items():
            place = os.path.join(self._folder, name)
            if not self._are_made:
                self._estimator.export_saved_model(place, receiver)
            copy_tree(place, os.path.join(directory, name))
        self._are_made = True


def publish(directory: str, names: list[str], fn_args: Any) -> None:
    """Copies the export of the first function to where it is checked and published.

    Args:
        directory: holds `<name>/<time>/saved_model.pb`.
        names: of the serving input receiver functions.
        fn_args: the argument of `run_fn`.
    """
    if len(names) > 1:
        _logger.warning(
            "The export %r is published, the first one; the others (%s) are in the checkpoints.",
            names[0],
            ", ".join(names[1:]),
        )
    copy_newest(os.path.join(directory, names[0]), fn_args.serving_model_dir)
