"""What stands in for a model's train function, so that a resumed `fit` can replay what is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["TrainFunction"]


class TrainFunction:
    """Calls the model's train function, or only pretends to.

    While it replays, the first call is a real step: it makes every variable that training makes,
    which is then overwritten by what was saved. The others return at once.

    Attributes:
        iterator: what the last step read from.
        consumed: how many batches the steps have taken from it.
        replays: whether the steps are those that the checkpoint holds already.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.iterator: Any = None
        self.consumed = 0
        self.replays = False
        self._logs: Any = None

    def __call__(self, iterator: Any) -> Any:
        """Trains on the next batch or batches of the iterator, and returns their logs."""
        if iterator is not self.iterator:
            self.iterator, self.consumed = iterator, 0
        if not self.replays:
            return self.function(iterator)
        if self._logs is None:
            self._logs = self.function(iterator)
        return self._logs
