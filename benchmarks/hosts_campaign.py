"""A Ray cluster of several hosts, which lose processes, nodes and networks during a training.

    python -m benchmarks.hosts_campaign [CASE ...]
    python -m benchmarks.hosts_campaign --rounds 100 --seed 1

Each host is a network namespace of this machine with a separate address, host name and /tmp; all of
them share one directory. Three hosts form a cluster by `ray start`. A fourth one, which is not part
of it, runs the pipeline. Two workers train; the fault happens between two of their steps, in rounds
after a random time.

Needs root, Linux, and the commands `ip`, `mount` and `unshare`. Prints what each run ended with,
and after how long. Exits with 1 if one ended otherwise than it should, took too long, or left
actors or processes behind. With LIBFAKETIME, the path of that library, one case has a node whose
clock is an hour fast.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks._hosts import Host, Hosts, missing, several_hosts
from generic_trainer._core.progress import ProgressReader
from tests.processes import wait_until

_START_S, _LEFT_S = 240.0, 60.0
_COSTS = "infrastructure_recovery", "wasted_progress"
_CLOCKS = "LIBFAKETIME" in os.environ
_MODULE = """
import time
from generic_trainer import training

def run_fn(fn_args):
    strategy = training.get_strategy()
    dataset = read(fn_args, batch_size=8, num_epochs=None)
    with strategy.scope():
        layer = tf.keras.layers.Dense(1, kernel_initializer="ones")
        model = tf.keras.Sequential([tf.keras.layers.Input([1]), layer])
        model.compile(tf.keras.optimizers.SGD(0.001), "mse")

    def step_ends(batch, logs):
        if training.is_chief():
            open(f"{fn_args.model_run_dir}/trains", "w").close()
        time.sleep(0.3)

    pairs = dataset.map(lambda batch: (tf.reshape(batch["x"], [-1, 1]), batch["x"] * 2))
    pause = tf.keras.callbacks.LambdaCallback(on_train_batch_end=step_ends)
    callbacks = [pause, *training.resume_callbacks(fn_args, every_steps=5)]
    model.fit(pairs, steps_per_epoch=10, epochs=6, verbose=0, callbacks=callbacks)
    print("ends:", *(float(w.sum()).hex() for w in model.get_weights()))
    export(fn_args.serving_model_dir)
"""


@dataclass(frozen=True)
class Case:
    """A fault, and what the run must end with.

    Attributes:
        fault: called with the hosts and one of them whose worker trains.
        outcome: `"weights"`: those of the undisturbed run; else a pattern of the error.
        limit_s: how long the run may take from the fault on.
        repair: called afterwards, so that the cluster is whole again.
        address: that of the cluster; no fault happens with another one than that for outside.
        is_last: whether the cluster ends with it.
        num_workers: the fewest and the most; the weights depend on it by their rounding.
    """

    fault: Callable[[Hosts, Host], Any] = lambda hosts, host: None
    outcome: str = "weights"
    limit_s: float = 240.0
    repair: Callable[[Hosts, Host], Any] = lambda hosts, host: None
    address: str = ""
    is_last: bool = False
    num_workers: tuple[int, int] = 2, 2


def _unplug(host: Host, seconds: float) -> None:
    host.plug("down")
    time.sleep(seconds)
    host.plug("up")


def _rejoin(hosts: Hosts, host: Host) -> None:
    host.plug("up")
    hosts.join(host)


def _lose_two(hosts: Hosts, host: Host) -> None:
    """Kills both nodes besides the head, one after the other; later both are back."""
    others = sorted(hosts.hosts[1:-1], key=lambda other: other is not host)
    for other in others:
        other.kill()
        time.sleep(5)
    for other in others:
        hosts.join(other)


def _fill(hosts: Hosts, host: Host) -> None:
    """Fills the disk of /tmp, where Ray and the workers have their files."""
    with (host.tmp / "full").open("wb") as file:
        subprocess.run(["cat", "/dev/zero"], stdout=file, stderr=subprocess.DEVNULL, check=False)


def _empty(hosts: Hosts, host: Host) -> None:
    (host.tmp / "full").unlink()
    _rejoin(hosts, host)


def _set_clock(hosts: Hosts, host: Host) -> None:
    """Loses both nodes besides the head; one is back, with a clock that is an hour fast."""
    library = shutil.copy(os.environ["LIBFAKETIME"], hosts.folder)  # which all hosts see
    for other in hosts.hosts[1:-1]:
        other.kill()
    fake = {"LD_PRELOAD": str(library), "FAKETIME": "+1h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    hosts.join(host, env=fake)
    assert float(host.output("date", "+%s", env=fake)[1]) > time.time() + 3000


def _rejoin_all(hosts: Hosts, host: Host) -> None:
    for other in hosts.hosts[1:-1]:
        hosts.join(other)


CASES = {
    "nothing": Case(),
    "node drained": Case(lambda hosts, host: hosts.drain(host, 30), repair=_rejoin),
    "one of three nodes drained": Case(
        lambda hosts, host: hosts.drain(host, 30), "TRAINED", repair=_rejoin, num_workers=(2, 3)
    ),
    "node killed": Case(lambda hosts, host: host.kill(), repair=_rejoin),
    "two nodes killed": Case(_lose_two, limit_s=400.0),
    "node unplugged for 5 s": Case(lambda hosts, host: _unplug(host, 5)),
    "node unplugged for ever": Case(lambda hosts, host: host.plug("down"), repair=_rejoin),
    "pipeline unplugged for 5 s": Case(lambda hosts, host: _unplug(hosts.hosts[-1], 5)),
    "pipeline unplugged for ever": Case(
        lambda hosts, host: hosts.hosts[-1].plug("down"),
        "FAILED (WorkerLostError|ConfigurationError)",
        repair=lambda hosts, host: hosts.hosts[-1].plug("up"),
    ),
    "5 % of packets lost": Case(
        lambda hosts, host: host.disturb(loss=0.05), repair=lambda hosts, host: host.disturb()
    ),
    "packets delayed by 200 ms": Case(
        lambda hosts, host: host.disturb(delay_s=0.2), repair=lambda hosts, host: host.disturb()
    ),
    "disk of a node full": Case(_fill, "weights|WorkerDiskError|disk is full", repair=_empty),
    "clock of a node wrong": Case(_set_clock, limit_s=400.0, repair=_rejoin_all),
    "address for nodes": Case(outcome="give the address ray://", address="{address}"),
    "head killed": Case(
        lambda hosts, host: hosts.hosts[0].kill(), "WorkerLostError|Config", is_last=True
    ),
}


def main() -> int:
    """Runs the cases, prints a line for each, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts_campaign")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="; ".join(CASES))
    parser.add_argument("--rounds", type=int, help="so many random cases, in place of each once")
    parser.add_argument("--seed", type=int, default=1, help="of the rounds")
    options = parser.parse_args()
    if reason := missing():
        parser.error(reason)
    names = [name for name in options.cases or CASES if name != "clock of a node wrong" or _CLOCKS]
    drawn, delays = random.Random(options.seed), [3.0] * len(names)
    if options.rounds:
        kinds = [name for name in names if not CASES[name].is_last and not CASES[name].address]
        names = ["nothing", *drawn.choices(kinds, k=options.rounds)]
        delays = [drawn.uniform(0, 12) for _ in names]
    wrong: dict[str, int] = dict.fromkeys(("ended otherwise", "hung", "left something"), 0)
    expected = ""
    with several_hosts(4, are_relayed=True) as hosts:
        hosts.start_cluster()
        for number, (name, delay_s) in enumerate(zip(names, delays, strict=True)):
            result, took_s, left = _round(hosts, f"run{number}", CASES[name], delay_s)
            expected = expected or result
            outcome = CASES[name].outcome
            is_right = result == expected if "weights" in outcome else False
            is_right = is_right or bool(re.search(outcome, result))
            wrong["ended otherwise"] += not is_right
            wrong["hung"] += result == "HANGS"
            wrong["left something"] += bool(left)
            verdict = "right" if is_right and not left else f"WRONG {left}"
            spent_s = ProgressReader(str(hosts.folder / f"run{number}/model_run/1")).look().spent_s
            recovery_s, wasted_s = (spent_s[f"{cost}_from_disruption"] for cost in _COSTS)
            times = f"{took_s:.0f} s, recovery {recovery_s:.1f} s, lost steps {wasted_s:.1f} s"
            print(f"{name}: {verdict} after {times}: {result[:300]}", flush=True)
    counts = ", ".join(f"{count} {what}" for what, count in wrong.items())
    print(f"{len(names)} runs, seed {options.seed}: {counts}")
    return int(any(wrong.values()))


def _round(hosts: Hosts, run: str, case: Case, delay_s: float) -> tuple[str, float, str]:
    """Returns the result of a run with a fault, its seconds from then on, and what it left."""
    address = case.address.format(address=hosts.address) or hosts.client
    wanted = {"num_workers": case.num_workers, "max_failures": 3, "options": {"address": address}}
    process = hosts.drive(run, _MODULE, **wanted)
    host = hosts.hosts[0]
    if not case.address:
        host = _host_that_trains(hosts, run)
        time.sleep(3 + delay_s)  # past the first checkpoint
    start_s = time.monotonic()
    case.fault(hosts, host)
    try:
        process.wait(case.limit_s)
        result = re.findall(r"^(?:TRAINED|FAILED) .*", hosts.log(run), re.M)[-1]
    except subprocess.TimeoutExpired:
        process.kill()
        result = "HANGS"
    took_s = time.monotonic() - start_s
    case.repair(hosts, host)
    return result, took_s, "" if case.is_last else _leftovers(hosts)


def _host_that_trains(hosts: Hosts, run: str) -> Host:
    """Waits until a run trains, and returns a host with a worker that is not the head."""
    trains = hosts.folder / run / "model_run" / "1" / "trains"
    if not wait_until(trains.exists, _START_S):
        raise RuntimeError(f"{run} does not train: {hosts.log(run)[-3000:]}")
    return hosts.host_that_trains()


def _leftovers(hosts: Hosts) -> str:
    """Returns what of a run is left in the cluster: reserved processors, and processes."""
    code = (
        "import ray, sys, time; ray.init(sys.argv[1], log_to_driver=False)\n"
        "total, free = ray.cluster_resources, ray.available_resources\n"
        f"end_s = time.monotonic() + {_LEFT_S}\n"
        "def left(): return total().get('CPU', 0) - free().get('CPU', 0)\n"
        "while left() and time.monotonic() < end_s: time.sleep(1)\n"
        "print('LEFT', left())"
    )
    output = hosts.hosts[0].output(sys.executable, "-c", code, hosts.address)[1]
    found = re.search(r"LEFT ([\d.]+)", output)
    if not found or float(found[1]):
        return output[-500:]
    lines = [f"{host.name}: {line[:200]}" for host in hosts.hosts for line in host.trainers()]
    return "; ".join(lines)


if __name__ == "__main__":
    sys.exit(main())
