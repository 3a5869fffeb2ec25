"""The names of `determined.horovod`: `hvd`, for the place of a process, and `HorovodContext`.

The slots of a trial are the workers of the component; Horovod is not used.
"""

from types import SimpleNamespace

from generic_trainer.training import distributed
from generic_trainer.trials._context import DistributedContext
from generic_trainer.trials._trial import HorovodContext

__all__ = ["HorovodContext", "hvd"]


# Of `horovod.tensorflow`. `init` does nothing: the launcher has started all processes.
hvd = SimpleNamespace(
    init=lambda: None,
    rank=distributed.rank,
    size=distributed.size,
    local_rank=lambda: DistributedContext(distributed.size()).get_local_rank(),
)
