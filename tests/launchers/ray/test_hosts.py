"""What the documents promise of Ray, on a cluster of three hosts; the pipeline is on a fourth."""

import contextlib
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks._hosts import Hosts, missing, several_hosts
from tests.launchers.local.test_cluster import KERAS, PARAMETER_SERVERS
from tests.launchers.local.test_slots import assert_alike
from tests.launchers.tutorials import GUIDE
from tests.processes import wait_until
from tests.trials import slots

pytestmark = pytest.mark.campaign("launchers", "training")  # four clusters of Ray: minutes

# Trains with a package and a data file of the user's, and slowly, until the file `go` exists.
TRAINS = f"""
import os, time, mine
print("mine:", mine.WORDS, mine.__file__)
{KERAS}
def callbacks(fn_args):
    wait = lambda *_, **__: os.path.exists(fn_args.custom_config["go"]) or time.sleep(5)
    slow = tf.keras.callbacks.LambdaCallback(on_train_batch_end=wait)
    return [slow, *training.resume_callbacks(fn_args, every_steps=1000)]
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if reason := missing():
        pytest.skip(reason)
    with several_hosts(4) as made:
        made.start_cluster()
        yield made


def told(log: str, start: str) -> dict[str, str]:
    """Returns worker → the rest of its last line that starts so."""
    line = rf"^\((worker \d|chief) pid=\d+(?:, ip=[\d.]+)?\) {start} (.*)$"
    return dict(re.findall(line, log, re.MULTILINE))


def with_package(hosts: Hosts, name: str) -> str:
    """Gives a run a package with a data file, beside its module, and returns its name."""
    package = hosts.folder / name / "mine"
    package.mkdir(parents=True)
    (package / "words.txt").write_text("words-of-mine")
    (package / "__init__.py").write_text(
        "import pathlib\nWORDS = (pathlib.Path(__file__).parent / 'words.txt').read_text()\n"
    )
    return name


@pytest.mark.parametrize(
    "legacy", ["0", pytest.param("1", marks=pytest.mark.campaign("launchers", "training"))]
)
def test_drained_node_costs_no_step(hosts: Hosts, legacy: str) -> None:
    wanted = {"num_workers": 2, "max_failures": 1, "env": {"TF_USE_LEGACY_KERAS": legacy}}
    name, go = with_package(hosts, f"drained{legacy}"), hosts.folder / f"go{legacy}"
    with hosts.drive(name, TRAINS, custom_config={"go": str(go)}, **wanted) as process:
        started = hosts.folder / name / "model_run/1/progress-chief.jsonl"
        assert wait_until(lambda: started.exists() and '"step": ' in started.read_text(), 300)
        host = hosts.host_that_trains()
        hosts.drain(host, 180)
        assert wait_until(lambda: "preempted in epoch" in hosts.log(name)), hosts.log(name)
        go.touch()
        assert process.wait(400) == 0, hosts.log(name)
    drained = hosts.log(name)
    [steps] = {*re.findall(r"preempted in epoch \d after (\d+) steps", drained)}
    assert f"({steps} steps in all)" in drained
    assert "Ray drains the node of this worker" in drained
    hosts.join(host)
    name, at_once = with_package(hosts, f"alone{legacy}"), {"go": "/"}
    with hosts.drive(name, TRAINS, custom_config=at_once, launcher="local") as process:
        straight = with_package(hosts, f"straight{legacy}")
        straight = hosts.train(straight, TRAINS, custom_config=at_once, **wanted)
        assert process.wait(300) == 0, hosts.log(name)
    ends = told(straight, "ends:")
    assert ends.keys() == {"worker 0", "worker 1"}
    for worker, text in told(drained, "ends:").items():
        (weight, *losses), (expected, *means) = text.split(), ends[worker].split()
        assert weight == expected
        # A checkpoint sums up the workers' metrics: their terms are added in another order.
        np.testing.assert_allclose([*map(float, losses)], [*map(float, means)], rtol=1e-6)
    assert all(re.match("words-of-mine /tmp/", code) for code in told(straight, "mine:").values())
    if legacy == "0":  # Keras 2 divides the data otherwise
        [expected] = re.findall(r"^ends: (.*)$", hosts.log(name), re.MULTILINE)
        numbers = [[float(x) for x in text.split()] for text in (ends["worker 0"], expected)]
        np.testing.assert_allclose(*numbers, rtol=1e-5)


@pytest.mark.campaign("launchers", "trials")
def test_trial_trains_on_slots_of_several_hosts_as_on_one(hosts: Hosts) -> None:
    jobs: list[Any] = []
    for size, launcher in ((2, "ray"), (1, "local")):
        name, wanted = f"trial-{launcher}", {"num_workers": size, "launcher": launcher}
        log = hosts.train(name, slots.ESTIMATOR_TRIAL, custom_config=slots.CONFIG, **wanted)
        assert "TRAINED" in log, log
        run_dir = str(hosts.folder / name / "model_run/1")
        jobs.append(SimpleNamespace(request=SimpleNamespace(model_run_dir=run_dir)))
    assert_alike(*jobs)


@pytest.mark.campaign("launchers")
def test_parameter_servers_hold_variables_for_other_hosts(hosts: Hosts) -> None:
    log = hosts.train("servers", PARAMETER_SERVERS, num_workers=1, parameter_servers=1)
    assert told(log, "steps:") == {"chief": "10.0"}, log
    assert "the variable is on /job:ps" in log


def test_what_nodes_lack_is_reported_before_training(hosts: Hosts) -> None:
    lacks = hosts.folder / "lacks"
    lacks.mkdir()
    (lacks / "generic_trainer.py").write_text("raise ImportError('not this release')")
    other = {"address": hosts.client, "runtime_env": {"env_vars": {"PYTHONPATH": str(lacks)}}}
    with (
        hosts.drive("private", KERAS, root="/tmp/private", num_workers=2) as private,
        hosts.drive("lacking", KERAS, options=other, num_workers=1) as lacking,
    ):
        assert private.wait(300) == lacking.wait(300) == 1
    expected = "FAILED ConfigurationError .*that all nodes share, but /tmp/private"
    assert re.search(expected, hosts.log("private")), hosts.log("private")
    expected = "FAILED ConfigurationError The nodes of .* cannot run the job: not this release. I"
    assert re.search(expected, hosts.log("lacking")), hosts.log("lacking")


def test_strategy_of_tensorflow_trains_on_the_hosts_of_tf_config(hosts: Hosts) -> None:
    cluster = {"worker": [f"{host.address}:2222" for host in hosts.hosts[1:3]]}
    with contextlib.ExitStack() as stack:
        for index in range(2):
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            variables = {"TF_CONFIG": json.dumps(task), "TF_USE_LEGACY_KERAS": "1"}
            run = {"launcher": "in_process", "host": index + 1, "variables": variables}
            stack.enter_context(hosts.drive(f"guide{index}", GUIDE, **run))
    logs = [hosts.log(f"guide{index}") for index in range(2)]
    weights = [re.findall(r"^weights: (.*)$", log, re.MULTILINE) for log in logs]
    assert len(weights[0]) == 1 and weights[0] == weights[1], logs
    assert "batch of this worker: 8" in logs[1]
