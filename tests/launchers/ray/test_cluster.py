"""Several workers on two nodes: what each is told, what is retried, and what an error says."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from generic_trainer.errors import ConfigurationError, DataError
from generic_trainer.launchers import RayOptions
from tests.launchers import jobs
from tests.launchers.jobs import Run, told
from tests.launchers.local.test_cluster import MULTI_WORKER
from tests.processes import wait_until

pytestmark = pytest.mark.slow  # each attempt starts several processes, which import TensorFlow

# Worker 1 kills its own process, and then that of its actor.
KILLS = """
    # Ray names the file that a worker prints to after its process.
    ray_worker = int(os.readlink("/proc/self/fd/1").rpartition("-")[2].removesuffix(".out"))
    kills = len(glob.glob(fn_args.model_run_dir + "/kill.*"))
    if kills < 2 and not training.is_chief():
        open(f"{fn_args.model_run_dir}/kill.{kills}", "w").close()
        os.kill([os.getpid(), ray_worker][kills], 9)
        time.sleep(600)
"""


def test_error_of_one_worker_is_the_error_of_the_run_and_is_not_retried(run: Run) -> None:
    from ray.util import placement_group_table

    raises = """
    if not training.is_chief():
        fn_args.train_files = [__file__]
        list(read(fn_args))
    strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
    print("seen:"
"""
    source = MULTI_WORKER.replace('    print("seen:"', raises.rstrip())
    with pytest.raises(DataError, match=r"^worker 1: .*trainer\.py") as caught:
        run(source, num_workers=2, max_failures=2)
    assert "trainer.py" in str(caught.value.__cause__)
    states = {group["state"] for group in placement_group_table().values()}
    assert states == {"REMOVED"}, "what the workers had reserved is given back"


def test_what_is_lost_is_replaced(run: Run) -> None:
    source = MULTI_WORKER.replace('    print("seen:"', KILLS + '    print("seen:"')
    job = run("import glob, os, time\n" + source, num_workers=2, max_failures=2)
    log = jobs.log(job)
    assert told(job, "weight:") == {"worker 0": "496.0", "worker 1": "496.0"}
    for number, reason in (
        (1, "worker 1: .* was ended by SIGKILL from outside"),
        (2, "worker 1: this worker was lost, with its process or its node"),
    ):
        assert re.search(rf"(?s){reason}.*failure {number} of the 2", log)


def test_as_many_train_as_there_is_room_for_and_late_last_lines_are_kept(
    run: Run, ray_nodes: Any, tmp_path: Path
) -> None:
    # The processes of Ray that bring the lines get no processor until the workers have ended.
    logs = f"--logs-dir={ray_nodes.head_node.get_logs_dir_path()}"
    processes = psutil.process_iter(["cmdline"])
    bringers = [process for process in processes if logs in (process.info["cmdline"] or [])]
    bringers = [process for process in bringers if "log_monitor.py" in " ".join(process.cmdline())]
    assert bringers

    def bring_lines() -> None:
        wait_until(lambda: (tmp_path / "model_run" / "1" / "over").exists())
        time.sleep(5)  # more than the workers need to end: else the test proves nothing
        for process in bringers:
            process.resume()

    for process in bringers:
        process.suspend()
    thread = threading.Thread(target=bring_lines)
    thread.start()
    last = """
    print("last:", 1)
    open(fn_args.model_run_dir + "/over", "w").close()
"""
    job = run(MULTI_WORKER + last, num_workers=(1, 3))  # on two nodes
    thread.join()
    assert told(job, "weight:") == {"worker 0": "496.0", "worker 1": "496.0"}
    assert told(job, "last:") == {"worker 0": "1", "worker 1": "1"}
    with pytest.raises(ConfigurationError, match=r"within 2 s. Expected room for 3 x \(1 CPU\)"):
        run(MULTI_WORKER, num_workers=(3, 4), ray=RayOptions(connect_timeout_s=2))
