"""Parts of a cluster that train trials side by side, each a share of the trials by itself.

As many workers as `resources.slots_per_trial` form a part, with a `TF_CONFIG` of its own. The
shares follow from the search alone, so parts need not talk while they train. At the end each part
writes its results below the checkpoints (`side-by-side/part-1-of-3.json`) for the one that exports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from generic_trainer._core.cluster import part_of_cluster
from generic_trainer._core.files import delete_tree, files_below, gfile, read_whole, write_whole
from generic_trainer.training import distributed
from generic_trainer.trials._config import ExperimentSettings

# Pauses of the part that waits for the results of the others, and between signs of life that it
# logs: without any, the launcher takes the job for hanging.
_POLL_S = 2.0
_LOG_S = 60.0
# For each trial its number, the error that it failed with, and its progress.
Results = list[tuple[int, str | None, dict[str, Any]]]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ClusterPart:
    """The workers that train a trial together with this one.

    Attributes:
        number: of the part; 0 has worker 0, which exports in the end.
        count: the number of parts that train; a part with a higher number has nothing to do.
        ranks: of its workers, in the whole cluster.
    """

    number: int
    count: int
    ranks: Sequence[int]

    @classmethod
    def of_this_worker(cls, settings: ExperimentSettings, num_trials: int) -> ClusterPart:
        """Returns the part that this worker belongs to.

        There are `max_concurrent_trials` parts, if there are workers and trials for so many. If
        that gives one part, and by default, all workers train each trial together.
        """
        size = distributed.size()
        rank = distributed.rank()
        slots = max(1, settings.resources.slots_per_trial)
        given = settings.searcher.max_concurrent_trials
        most = 1 if given is None else given or num_trials  # 0 means no limit
        count = min(most, num_trials, size // slots)
        if count < 2:
            if most > 1 and num_trials > 1:
                _logger.info(
                    "max_concurrent_trials: trials run one after another, because there are too "
                    "few workers; Distribution(launcher='local', num_workers=...) starts more"
                )
            return cls(0, 1, range(size))
        number = rank // slots
        return cls(number, count, range(number * slots, min(size, (number + 1) * slots)))

    def as_cluster(self) -> contextlib.AbstractContextManager[None]:
        """Makes the workers of this part the only ones that this process knows."""
        is_all = len(self.ranks) == distributed.size()
        return contextlib.nullcontext() if is_all else part_of_cluster(self.ranks)

    def written(self, checkpoint_dir: str) -> Results | None:
        """Returns the results that this part has written, maybe in a run that was killed later."""
        path = self._path(checkpoint_dir)
        return json.loads(read_whole(path)) if gfile().exists(path) else None

    def write(self, checkpoint_dir: str, results: Results) -> None:
        """Writes the results of this part, whose checkpoints must be closed."""
        path = self._path(checkpoint_dir)
        gfile().makedirs(os.path.dirname(path))
        write_whole(path, json.dumps(results))

    def forget(self, checkpoint_dir: str) -> None:
        """Deletes the results that this part has written: it trains again in the next attempt."""
        delete_tree(self._path(checkpoint_dir))

    def results_of_others(self, checkpoint_dir: str, log_dir: str) -> Results:
        """Waits for the other parts, and returns their results.

        Args:
            checkpoint_dir: the directory with the checkpoints of all trials.
            log_dir: the directory with their event files, which grow as long as they train.
        """
        others = [ClusterPart(number, self.count, ()) for number in range(1, self.count)]
        size = 0
        next_look = time.monotonic() + _LOG_S
        while any(other.written(checkpoint_dir) is None for other in others):
            time.sleep(_POLL_S)
            if time.monotonic() > next_look:
                before = size
                size = _bytes_below(log_dir)
                next_look += _LOG_S
                if size != before:
                    _logger.info("Waiting for trials that other workers train")
        return [result for other in others for result in other.written(checkpoint_dir) or ()]

    def _path(self, checkpoint_dir: str) -> str:
        name = f"part-{self.number}-of-{self.count}.json"
        return os.path.join(checkpoint_dir, "side-by-side", name)


def _bytes_below(directory: str) -> int:
    paths = (os.path.join(directory, name) for name in files_below(directory))
    return sum(gfile().stat(path).length for path in paths)
