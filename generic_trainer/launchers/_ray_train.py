"""Ray Train's functions in a `run_fn`: `ray.train.report` and the others that its examples call.

Ray Train has them for a function that a trainer of its own has started. A `run_fn` runs in a
process that one of the launchers has started, so they are set up there, for each launcher alike.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from generic_trainer._core import internals
from generic_trainer._core.files import copy_tree, delete_tree, gfile, read_text, write_whole
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import distributed
from generic_trainer.user_code import loaded_modules

_logger = logging.getLogger(__name__)

_IMPORTED = re.compile(r"^\s*(import|from)\s+ray\b", re.MULTILINE)
_FOLDER = "ray_train"
_NEWEST = "newest"  # the file with the name of the newest checkpoint's directory
_PLACE = "in ray.train.report"


@contextlib.contextmanager
def ray_train_functions(run_key: str, checkpoint_dir: str) -> Iterator[None]:
    """Gives a `run_fn` that imports Ray what `ray.train` has for one of its own workers.

    1. `report` logs the metrics of rank 0, and keeps its newest checkpoint. All workers call it.
    2. `get_checkpoint` returns that, also after a restart.
    3. `get_context` tells rank and size, `ray.train.collective` works.
    4. `get_dataset_shard` fails, and says what to read instead.

    Args:
        run_key: what the experiment is called.
        checkpoint_dir: where the checkpoints of this `run_fn` lie.
    """
    if not _is_imported():
        yield
        return
    module = internals.RAY_TRAIN_FUNCTIONS.get()
    with contextlib.suppress(RuntimeError):
        module.get_train_fn_utils()  # a Ray Train has started this process itself
        yield
        return
    folder = os.path.join(checkpoint_dir, _FOLDER)
    module.set_train_fn_utils(_functions(module.LocalTrainFnUtils, run_key, folder))
    try:
        yield
    finally:
        module.set_train_fn_utils(None)


def _is_imported() -> bool:
    if "ray.train" in sys.modules:
        return True
    with contextlib.suppress(OSError, TypeError):  # a module without a source
        return any(_IMPORTED.search(inspect.getsource(module)) for module in loaded_modules())
    return False


def _functions(base: Any, run_key: str, folder: str) -> Any:
    """Returns what `ray.train` calls for a worker.

    Args:
        base: that of a worker on its own.
        run_key: what the experiment is called.
        folder: where the newest checkpoint lies.
    """
    rank, size = distributed.rank(), distributed.size()

    class Functions(base):  # type: ignore[misc]
        reports = 0

        def report(self, metrics: Any, checkpoint: Any = None, **options: Any) -> None:
            distributed.barrier(_PLACE)  # so that nobody is told of a checkpoint too early
            self.reports += 1
            if rank == 0:
                _logger.info("ray.train.report, number %d: %s", self.reports, metrics)
                if checkpoint is not None:
                    with checkpoint.as_directory() as directory:
                        _keep(directory, folder)
            distributed.barrier(_PLACE)

        def get_checkpoint(self) -> Any:
            newest = _newest(folder)
            return None if newest is None else sys.modules["ray.train"].Checkpoint(newest)

        def get_dataset_shard(self, dataset_info: Any) -> Any:
            raise ConfigurationError(
                f"ray.train.get_dataset_shard({dataset_info.dataset_name!r}): a pipeline gives "
                "run_fn files, and no datasets of Ray Data. Read them with "
                "fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, ...); the strategy "
                "gives each worker its share of every batch."
            )

        def is_distributed(self) -> bool:
            return size > 1

        def barrier(self) -> None:
            distributed.barrier("in ray.train.collective.barrier")

        def broadcast_from_rank_zero(self, data: Any) -> Any:
            return distributed.gather(data if rank == 0 else None)[0]

    return Functions(run_key, world_size=size, world_rank=rank)


def _keep(directory: str, folder: str) -> None:
    """Copies a checkpoint, and deletes the one before once it is there as a whole."""
    before = _newest(folder)
    number = 1 if before is None else int(os.path.basename(before)) + 1
    target = os.path.join(folder, f"{number:08d}")
    if gfile().exists(target):  # a killed run left it
        delete_tree(target)
    copy_tree(directory, target)
    write_whole(os.path.join(folder, _NEWEST), os.path.basename(target))
    if before is not None:
        delete_tree(before)


def _newest(folder: str) -> str | None:
    """Returns the directory of the newest checkpoint, if there is one."""
    pointer = os.path.join(folder, _NEWEST)
    return os.path.join(folder, read_text(pointer)) if gfile().exists(pointer) else None
