"""Workers on a Ray cluster: an actor for each task, under the supervisor that all engines share.

1. A child of the executor's process is connected to Ray and supervises the run: `driver`. It may
   be outside of the cluster (`ray://...`).
2. An attempt reserves room for all workers at once and starts an actor in each place: `engine`.
3. An actor gets its place in the cluster by `TF_CONFIG`, and trains in a child process, as in the
   pods of Kubernetes: that distinguishes a crash, a hang and a lack of memory: `actors`.
4. If a worker, its node or the connection is lost, all workers start anew.
"""

from generic_trainer.launchers._distribution import RayOptions
from generic_trainer.launchers._launch import Launcher

RAY = Launcher(
    run=f"{__name__}.driver:launch_on_ray",
    options=RayOptions,
    refused={"gpu_type": "is for pods; Ray calls every GPU of its nodes 'GPU'"},
    takes_ranges=True,
    takes_fractions=True,
)
