"""SavedModels that the exporters of an estimator have written."""

import os
from typing import Any

from generic_trainer._core.files import copy_tree, gfile
from generic_trainer.errors import ExportError


def copy_newest_export(estimator: Any, exporter: Any, target: str) -> None:
    """Copies an exporter's newest SavedModel, which stays where it is, into `target`."""
    copy_newest(os.path.join(estimator.model_dir, "export", exporter.name), target)


def copy_newest(folder: str, target: str) -> None:
    """Copies the newest SavedModel of an exporter's folder, which has them by their time.

    Raises:
        ExportError: there is none.
    """
    names = gfile().listdir(folder) if gfile().isdir(folder) else []
    # Times are in seconds. Unfinished exports are not a number.
    times = [int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal()]
    if not times:
        raise ExportError(
            f"The exporter {os.path.basename(folder)!r} has written no model: expected one in "
            f"{folder}. A FinalExporter exports when training ends at TrainSpec(max_steps=...), a "
            "BestExporter when the metric that it compares improves.",
            path=folder,
        )
    copy_tree(os.path.join(folder, str(max(times))), target)
