"""`BestExporter` where a worker is lost: the best export of all attempts stays the newest.

A module of its own, because it extends a class of `tensorflow_estimator` while that is imported.
"""

import functools
import inspect
import json
import os
import weakref
from typing import Any

import numpy as np

from generic_trainer._core.files import gfile, read_whole, write_whole


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
        numbers = _numbers(eval_result)
        if exporter in compares and gfile().exists(kept) and times_of(export_path):
            best = json.loads(read_whole(kept))
            both = {"best_eval_result": {**eval_result, **best}, "current_eval_result": eval_result}
            if best.keys() == numbers.keys() and not compares[exporter](**both):
                return None
        given = estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        exported = original_export(exporter, *given)
        if exported is not None:
            compares.pop(exporter, None)
            write_whole(kept, json.dumps(numbers))
        return exported

    best_exporter.__init__, best_exporter.export = init, export


def _numbers(eval_result: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of an evaluation without its serialized summaries, such as images."""
    arrays = {name: np.asarray(value) for name, value in eval_result.items()}
    return {name: array.tolist() for name, array in arrays.items() if array.dtype.kind in "biuf"}


def times_of(folder: str) -> list[int]:
    """Returns the names of the complete exports in an exporter's folder."""
    names = gfile().listdir(folder) if gfile().isdir(folder) else []
    # Times are in seconds. Unfinished exports are not a number.
    return [int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal()]
