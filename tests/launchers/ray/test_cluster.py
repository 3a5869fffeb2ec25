"""Several workers on two nodes: what each is told, what is retried, and what an error says."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.launchers import Distribution, Job, RayOptions, launch
from tests.launchers import jobs
from tests.launchers.local.test_cluster import MULTI_WORKER, PARAMETER_SERVERS

pytestmark = pytest.mark.slow  # each attempt starts several processes, which import TensorFlow

Run = Callable[..., Job]
Told = Callable[[Job, str], dict[str, str]]

# Worker 1 kills its own process, then that of Ray's worker, and then Ray's controller.
KILLS = """
    def parent(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

    # Ray names the file that a worker prints to after its process.
    ray_worker = int(os.readlink("/proc/self/fd/1").rpartition("-")[2].removesuffix(".out"))
    print("forked from:", os.getppid(), parent(os.getppid()), "for", ray_worker)
    assert "/tensorflow/" not in open(f"/proc/{ray_worker}/maps").read(), "imported for nothing"
    kills = len(glob.glob(fn_args.model_run_dir + "/kill.*"))
    if kills < 3 and not training.is_chief():
        open(f"{fn_args.model_run_dir}/kill.{kills}", "w").close()
        with open(fn_args.model_run_dir + "/training.log") as log:
            controller = int(re.findall(r"\\(TrainController pid=(\\d+)", log.read())[-1])
        os.kill([os.getpid(), ray_worker, controller][kills], 9)
        time.sleep(600)
"""


def test_each_worker_reads_its_share_once_and_all_have_the_same_weights(
    run: Run, told: Told
) -> None:
    job = run(MULTI_WORKER, num_workers=2)
    seen = {name: set(numbers.split()) for name, numbers in told(job, "seen:").items()}
    assert seen.keys() == {"worker 0", "worker 1"}
    assert len(seen["worker 0"]) == len(seen["worker 1"]) == 16
    assert seen["worker 0"] | seen["worker 1"] == {str(number) for number in range(32)}
    weights = told(job, "weight:")
    assert weights["worker 0"] == weights["worker 1"] == "496.0"
    assert jobs.exported(job) == ["Format-Serving"]


def test_as_many_workers_train_as_there_is_room_for(run: Run, told: Told) -> None:
    job = run(MULTI_WORKER, num_workers=(1, 3))  # on two nodes
    weights = told(job, "weight:")
    assert weights == {"worker 0": "496.0", "worker 1": "496.0"}
    with pytest.raises(ConfigurationError, match=r"within 2 s. Expected room for 3 x \(1 CPU\)"):
        run(MULTI_WORKER, num_workers=(3, 4), ray=RayOptions(connect_timeout_s=2))


def test_chief_trains_with_the_workers_and_parameter_servers_it_is_given(run: Run) -> None:
    job = run(PARAMETER_SERVERS, num_workers=1, parameter_servers=1, cpus_per_worker=0.5)
    assert "steps: 10.0" in jobs.log(job)
    assert "the variable is on /job:ps/replica:0/task:0" in jobs.log(job)
    assert jobs.exported(job) == ["Format-Serving"]


def test_error_of_one_worker_is_the_error_of_the_run_and_is_not_retried(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.util import placement_group_table

    monkeypatch.setattr("generic_trainer.launchers._ray.engine._LEAVE_S", 0.0)
    raises = """
    print("an attempt")
    assert training.is_chief(), "only worker 1 has this"
    strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
    print("seen:"
"""
    source = MULTI_WORKER.replace('    print("seen:"', raises.rstrip())
    with pytest.raises(TrainingError, match=r"^worker 1: ") as caught:
        run(source, num_workers=2, max_failures=2)
    assert type(caught.value) is TrainingError
    assert "only worker 1 has this" in str(caught.value)
    assert "trainer.py" in str(caught.value.__cause__)
    assert caught.value.worker == "worker 1"
    states = {group["state"] for group in placement_group_table().values()}
    assert states == {"REMOVED"}, "what workers have that do not leave in time is given back"


def test_what_is_lost_is_replaced_and_what_is_not_lost_is_used_again(run: Run, told: Told) -> None:
    source = MULTI_WORKER.replace('    print("seen:"', KILLS + '    print("seen:"')
    job = run("import glob, os, re, time\n" + source, num_workers=2, max_failures=3)
    log = jobs.log(job)
    assert told(job, "weight:") == {"worker 0": "496.0", "worker 1": "496.0"}
    found = re.findall(
        r"^\((.*) pid=(\d+).*\) forked from: (\d+) (\d+) for (\d+)$", log, re.MULTILINE
    )
    for worker in ("worker 0", "worker 1"):
        first, *others = [each[1:] for each in found if each[0] == worker]
        assert first[0] == first[3], "Ray shows the lines of its worker's children"
        assert others[0] == first, "where the worker stayed, so did what trains are forked from"
        assert len({first, *others[1:]}) == 3
    importers = {int(each[3]) for each in found}
    assert len(importers) == 2, "on each node one process has imported TensorFlow for all attempts"
    deadline_s = time.monotonic() + 60
    while any(map(jobs.is_running, importers)):
        assert time.monotonic() < deadline_s, "it is left running"
        time.sleep(0.1)
    for number, reason in (
        (1, "worker 1: .* was ended by SIGKILL from outside"),
        (2, "worker 1: this worker was lost, with its process or its node"),
        (3, "The process that watches the workers was lost"),
    ):
        assert re.search(rf"{reason}.*failure {number} of the 3", log)


def test_keeper_that_is_lost_is_told_and_another_one_started(ray_nodes: Any) -> None:
    import ray
    from ray.exceptions import RayError

    from generic_trainer.launchers._ray.keepers import lender_on

    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    (other,) = alive - {ray.get_runtime_context().get_node_id()}
    lost = lender_on(other)
    assert lender_on(other) == lost
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(lost)
        peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    os.kill(struct.unpack("3i", peer)[0], signal.SIGKILL)
    with pytest.raises(RayError):
        lender_on(other)
    assert lender_on(other) != lost


RESUMES = """
import os, signal
from generic_trainer import training

class KillOnce(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        flag = os.path.join(os.path.dirname(self.directory), "killed")
        if batch == 7 and not training.is_chief() and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

def run_fn(fn_args):
    tf.keras.utils.set_random_seed(1)
    strategy = training.get_strategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile(tf.keras.optimizers.SGD(1e-4), "mse")
    data = read(fn_args, num_epochs=None).map(lambda batch: (batch["x"], batch["y"]))
    callbacks = training.resume_callbacks(fn_args, every_steps=3)
    if KILLS:
        kill = KillOnce()
        kill.directory = fn_args.model_run_dir
        callbacks.insert(0, kill)
    model.fit(data, steps_per_epoch=10, epochs=2, verbose=2, shuffle=False, callbacks=callbacks)
    print("weights:", *(float(w) for w in tf.reshape(model.get_weights()[0], [-1])))
    export(fn_args.serving_model_dir)
"""


def test_worker_killed_in_mid_epoch_costs_no_more_than_the_steps_since_the_last_checkpoint(
    ray_nodes: Any, examples: Path, tmp_path: Path
) -> None:
    # What is not killed is the same locally, where nothing has to be started for it.
    weights = []
    for launcher in ("local", "ray"):
        kills = launcher == "ray"
        wanted = Distribution(
            launcher=launcher,
            num_workers=2,
            max_failures=1 if kills else 0,
            env={"TF_USE_LEGACY_KERAS": "1"},
        )
        source = RESUMES.replace("KILLS", str(kills))
        job = jobs.make_job(tmp_path / launcher, examples, source, distribution=wanted, seed=1)
        launch(job)
        weights += re.findall(r"^.worker 0.*. weights: (.*)$", jobs.log(job), re.MULTILINE)
    # The checkpoint of step 6 may be on its way to the disk still.
    assert re.search("Resuming in epoch 1 after [36] of its batches", jobs.log(job))
    assert len(weights) == 2 and weights[0] == weights[1]
