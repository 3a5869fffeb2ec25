"""SavedModels that the exporters of an estimator have written."""

import functools
import inspect
import json
import os
import weakref
from typing import Any

from generic_trainer._core.files import copy_tree, gfile, read_whole, write_whole
from generic_trainer.errors import ExportError
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
    if isinstance(exporter, tf.estimator.FinalExporter) and newest and not _times(folder):
        exporter.export(estimator, folder, newest, {}, is_the_final_export=True)
    copy_newest(folder, target)


def copy_newest(folder: str, target: str) -> None:
    """Copies the newest SavedModel of an exporter's folder, which has them by their time.

    Raises:
        ExportError: there is none.
    """
    times = _times(folder)
    if not times:
        raise ExportError(
            f"The exporter {os.path.basename(folder)!r} has written no model: expected one in "
            f"{folder}. A BestExporter exports when the metric that it compares improves.",
            path=folder,
        )
    copy_tree(os.path.join(folder, str(max(times))), target)


def remember_best(best_exporter: Any) -> None:
    """Makes the class BestExporter compare with exports of an attempt that was lost, too.

    A new object exports what it meets first. Here the metrics of an export are kept beside the
    checkpoints, and it has to be better than those.
    """
    original_init, original_export = best_exporter.__init__, best_exporter.export
    signature = inspect.signature(original_init)
    compares: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # before an export

    @functools.wraps(original_init)
    def init(exporter: Any, *args: Any, **named: Any) -> None:
        original_init(exporter, *args, **named)
        given = signature.bind(exporter, *args, **named)
        given.apply_defaults()
        compares[exporter] = given.arguments["compare_fn"]

    @functools.wraps(original_export)
    def export(
        exporter: Any,
        estimator: Any,
        export_path: str,
        checkpoint_path: Any,
        eval_result: Any,
        is_the_final_export: bool,
    ) -> Any:
        kept = os.path.join(estimator.model_dir, f"best-{exporter.name}.json")
        if exporter in compares and gfile().exists(kept) and _times(export_path):
            best = json.loads(read_whole(kept))
            both = {"best_eval_result": best, "current_eval_result": eval_result}
            if best.keys() == eval_result.keys() and not compares[exporter](**both):
                return None
        given = estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        exported = original_export(exporter, *given)
        if exported is not None:
            compares.pop(exporter, None)
            write_whole(kept, json.dumps(eval_result, default=lambda value: value.tolist()))
        return exported

    best_exporter.__init__, best_exporter.export = init, export


def _times(folder: str) -> list[int]:
    names = gfile().listdir(folder) if gfile().isdir(folder) else []
    # Times are in seconds. Unfinished exports are not a number.
    return [int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal()]
