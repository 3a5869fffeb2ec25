"""SavedModels that the exporters of an estimator have written."""

import os
from typing import Any

from generic_trainer._core.files import copy_tree
from generic_trainer.errors import ExportError
from generic_trainer.estimator._best_export import times_of
from generic_trainer.estimator._tensorflow import tf


def copy_newest_export(estimator: Any, exporter: Any, target: str) -> None:
    """Copies an exporter's newest SavedModel, which stays where it is, into `target`.

    A FinalExporter exports first if it has not: it only knows that training has ended where that
    ends at `max_steps`, and not where it ends with the data.

    Raises:
        ExportError: there is none.
    """
    folder = os.path.join(estimator.model_dir, "export", exporter.name)
    newest = estimator.latest_checkpoint()
    if isinstance(exporter, tf.estimator.FinalExporter) and newest and not times_of(folder):
        exporter.export(estimator, folder, newest, {}, is_the_final_export=True)
    copy_newest(folder, target)


def copy_newest(folder: str, target: str) -> None:
    """Copies the newest SavedModel of an exporter's folder, which has them by their time.

    Raises:
        ExportError: there is none.
    """
    times = times_of(folder)
    if not times:
        raise ExportError(
            f"The exporter {os.path.basename(folder)!r} has written no model: expected one in "
            f"{folder}. A BestExporter exports when the metric that it compares improves.",
            path=folder,
        )
    copy_tree(os.path.join(folder, str(max(times))), target)
