"""The names of `determined.horovod`: `hvd`, for where a process stands, and `HorovodContext`.

The slots of a trial are the workers of the component; there is no Horovod among them.
"""

from __future__ import annotations

from types import SimpleNamespace

from generic_trainer.training import distributed
from generic_trainer.trials._context import DistributedContext
from generic_trainer.trials._trial import HorovodContext

__all__ = ["HorovodContext", "hvd"]


def _local_rank() -> int:
    size = distributed.size()
    return DistributedContext.of_processes(size).get_local_rank() if size > 1 else 0


# Of `horovod.tensorflow`. `init` does nothing: the launcher has started what is needed.
hvd = SimpleNamespace(
    init=lambda: None, rank=distributed.rank, size=distributed.size, local_rank=_local_rank
)
