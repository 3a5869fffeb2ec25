"""SavedModels that the exporters of an estimator have written."""

from __future__ import annotations

import os
from typing import Any

from generic_trainer._core.files import copy_tree, gfile
from generic_trainer.errors import ExportError


def copy_newest_export(estimator: Any, exporter: Any, target: str) -> None:
    """Copies an exporter's newest SavedModel, which stays where it is, into `target`."""
    folder = os.path.join(estimator.model_dir, "export", exporter.name)
    missing = (
        f"The exporter {exporter.name!r} has written no model: expected one in {folder}. A "
        "FinalExporter exports when training ends at TrainSpec(max_steps=...), a BestExporter "
        "when the metric that it compares improves."
    )
    copy_newest(folder, target, missing)


def copy_newest(folder: str, target: str, missing: str = "") -> None:
    """Copies the newest SavedModel of a folder that has them by the time of the export.

    Raises:
        ExportError: there is none; with the message `missing`, if that is given.
    """
    times = times_of_exports(folder)
    if not times:
        raise ExportError(missing or f"Expected {folder}/<time>/saved_model.pb", path=folder)
    copy_tree(os.path.join(folder, str(times[-1])), target)


def times_of_exports(folder: str) -> list[int]:
    """Returns the names of a folder's exports, from old to new.

    They are the times of the exports, in seconds.
    """
    names = gfile().listdir(folder) if gfile().isdir(folder) else []
    # Unfinished ones are not a number.
    return sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal())
