"""Random state for data that Python code makes, when a resumed `fit` reads them again."""

import logging
from typing import Any

from generic_trainer._core.values import unpickled_data
from generic_trainer.training._plain import pickled
from generic_trainer.training.distributed import DataParallelStrategy
from generic_trainer.training.resume._randomness import (
    OF_PROCESS,
    random_state,
    set_random_state,
)
from generic_trainer.training.resume._reader import is_of_python, shuffles

_logger = logging.getLogger(__name__)


class Draws:
    """The states of `random` and `numpy.random` at which passes over the data begin and end.

    A generator draws while it is read, ahead of the steps; a Sequence also shuffles between epochs.
    So the state at a checkpoint is of no use to them. Instead the pass of the checkpoint gets the
    state in which it began, and its batches are read again. Each pass before gets, before the data
    learn of its start and its end, the state that there was then. No batch of theirs has to be read
    again for that.

    Attributes:
        is_replay: whether the states are set, and not noted.
        of_python: whether Python code makes the data; False until a replay knows.
        reads_all: whether a replay has to read all batches of the current pass.
    """

    def __init__(self, model: Any) -> None:
        """Takes a model of Keras, before its fit begins."""
        self._model = model
        self._start = b""
        # Number of an epoch that ends a pass, or half before of one that begins one → state; empty
        # for the same as before.
        self._ends: dict[float, bytes] = {}
        self._noted: dict[float, bytes] = {}  # likewise of the last epoch, if a pass begins next
        self._is_known = self.of_python = self.reads_all = self._reads_passes = False
        self.is_replay = False
        self._own = b""  # the state of this worker, if it has got another before the data are known

    def values(self) -> dict[str, Any]:
        """Returns plain data for a checkpoint."""
        return {"start": self._start, "ends": dict(self._ends)}

    def restore(self, values: dict[str, Any]) -> None:
        """Takes the result of `values`, for a replay."""
        self.is_replay = True
        self._start, self._ends = values["start"], dict(values["ends"])

    def begin_pass(self, iterator: Any) -> None:
        """Notes the state, or in a replay sets it, before a new iterator is read."""
        self.reads_all = False
        if not self.is_replay:
            self._start = _state()
            for number, state in self._noted.items():
                last = next((end for end in reversed(self._ends.values()) if end), b"")
                self._ends[number] = b"" if state == last else state
            self._noted = {}
            return
        if not self._is_known:
            self.of_python = is_of_python(iterator)
            self._is_known = True
            if not self.of_python and self._own:
                set_random_state(self._model, unpickled_data(self._own), in_all_workers=True)
            # A thread that reads ahead must not draw any more when the next state is set; and
            # shuffles of TensorFlow draw while their buffers are filled.
            self.reads_all = self.of_python
            self._reads_passes = self.of_python and shuffles(iterator)
        self.reads_all = self.reads_all or self._reads_passes
        self._set(self._start)

    def begin_epoch(self, number: int) -> None:
        """Is as `end_pass`, before data of Keras 3 learn that an epoch begins."""
        self.end_pass(number - 0.5)

    def end_pass(self, number: float) -> None:
        """Notes the state, or in a replay sets it, before the data learn that an epoch has ended.

        Args:
            number: of the epoch among those of this fit.
        """
        if not self.is_replay:
            self._noted = {at: state for at, state in self._noted.items() if at > number - 1}
            self._noted[number] = _state()
        elif number in self._ends:  # else the same iterator is read on
            self._set([state for at, state in self._ends.items() if at <= number and state][-1])

    def end_replay(self, saved: dict[str, Any], passes: int) -> None:
        """Leaves the state to the data, which read ahead; logs what starts anew.

        Args:
            saved: the state of all generators that is going to be restored.
            passes: number of epochs before the current one.
        """
        if not self.of_python:
            return
        for name in OF_PROCESS:
            saved.pop(name, None)
        if passes and not self._reads_passes:
            _logger.warning(
                "Python code makes the data, and this fit resumes after its first epoch. Draws "
                "from random and numpy.random are those of a fit without interruption. Generators "
                "of the data's own, such as default_rng, and counters of batches start anew: in "
                "this epoch some rows may come twice and others never. Seed them by the number of "
                "the epoch, in on_epoch_end."
            )

    def _set(self, state: bytes) -> None:
        if (self.of_python or not self._is_known) and state:
            # All workers of this strategy read the same batches; others may draw their own.
            is_common = isinstance(self._model.distribute_strategy, DataParallelStrategy)
            if is_common and not self._is_known:
                self._own = self._own or _state()
            set_random_state(self._model, unpickled_data(state), in_all_workers=is_common)


def _state() -> bytes:
    state = random_state()
    return pickled({name: state[name] for name in OF_PROCESS})
