"""The names of `determined.horovod`: `hvd`, for where a process stands, and `HorovodContext`.

The slots of a trial are the workers of the component; there is no Horovod among them.
"""

from __future__ import annotations

from generic_trainer.training import distributed
from generic_trainer.trials._context import DistributedContext
from generic_trainer.trials._env import HorovodContext

__all__ = ["HorovodContext", "hvd"]


class hvd:
    """The functions of `horovod.tensorflow` that tell of processes."""

    @staticmethod
    def init() -> None:
        """Does nothing: the launcher has started what is needed."""

    @staticmethod
    def rank() -> int:
        """Returns the number of this process, from 0 on."""
        return distributed.rank()

    @staticmethod
    def size() -> int:
        """Returns the number of processes."""
        return distributed.size()

    @staticmethod
    def local_rank() -> int:
        """Returns the number of this process among those on its machine."""
        size = distributed.size()
        return DistributedContext.of_processes(size).get_local_rank() if size > 1 else 0
