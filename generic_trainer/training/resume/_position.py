"""How far a fit is, which a checkpoint has beside the variables."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Position:
    """How far `fit` is; the metadata of its checkpoints.

    Attributes:
        lengths: the batches of each epoch that has ended.
        batches: batches of the current epoch that are done.
        consumed: batches taken from the iterator in use; more than `batches` if it serves several
            epochs.
        done: whether `fit` has ended.
        stopped: whether a callback has ended training after this batch.
        stops_after: whether one had when `fit` ended: at the end of an epoch, too.
        epochs: that `fit` was to train; None until it has ended.
        of_epoch: batches of an epoch, as far as Keras knows their number before it.
        first: the epoch that `fit` began with, as Keras counts.
        streams: whether the examples were streamed, which is an order of its own.
        shared: whether several workers trained. Their iterators cut shares out of the batches, so
            that the state of one does not fit that of a single worker.
    """

    lengths: list[int] = dataclasses.field(default_factory=list)
    batches: int = 0
    consumed: int = 0
    done: bool = False
    stopped: bool = False
    stops_after: bool = False
    epochs: int | None = None
    of_epoch: int | None = None
    first: int = 0
    streams: bool = False
    shared: bool = False

    @property
    def steps(self) -> int:
        """Batches that are done in all epochs."""
        return sum(self.lengths) + self.batches


# Directories of checkpoints, and runs, whose fit has trained and ended in this process.
_ended: set[tuple[str, str]] = set()


def note_end(directory: str, run_dir: str) -> None:
    """Notes for `has_ended` that a fit has trained and ended."""
    _ended.add((directory, run_dir))


def has_ended(directory: str, run_dir: str) -> bool:
    """Returns whether the fit with these checkpoints has trained and ended in this run.

    Args:
        directory: of the checkpoints.
        run_dir: of the run, which tells it from an earlier run in the same process. Without one
            the checkpoints may have been deleted in order to begin anew.
    """
    return bool(run_dir) and (directory, run_dir) in _ended
