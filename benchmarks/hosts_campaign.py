"""A Ray cluster of several hosts, which lose processes, nodes and networks during a training.

    python -m benchmarks.hosts_campaign [CASE ...]

Each host is a network namespace of this machine with a separate address, host name and /tmp; all of
them share one directory. Three hosts form a cluster by `ray start`. A fourth one, which is not part
of it, runs the pipeline. Two workers train; the fault happens between two of their steps.

Needs root, Linux, and the commands `ip` and `unshare`. Prints what each run ended with, and after
how long. Exits with 1 if one ended otherwise than it should, took too long, or left actors behind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NETWORK, _BRIDGE = "10.77.0", "gt-bridge"
_PORT, _CLIENT_PORT = 6379, 10001
_CLIENT = f"ray://{_NETWORK}.1:{_CLIENT_PORT}"
_START_S, _LEFT_S = 240.0, 60.0
_MODULE = """
import os, socket, time
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
    print("weights:", [float(w.sum()).hex() for w in model.get_weights()], socket.gethostname())
    export(fn_args.serving_model_dir)
"""


class Host:
    """A network namespace with an address, and processes in it that have a name and a /tmp."""

    def __init__(self, number: int, folder: Path) -> None:
        self.name, self.address = f"gt-host{number}", f"{_NETWORK}.{number}"
        self._tmp = folder / f"tmp{number}"
        self._tmp.mkdir()
        link = f"gt-veth{number}"
        _ip(f"netns add {self.name}")
        _ip(f"link add {link} type veth peer name eth0 netns {self.name}")
        _ip(f"link set {link} master {_BRIDGE} up")
        _ip(f"-n {self.name} addr add {self.address}/24 dev eth0")
        _ip(f"-n {self.name} link set lo up")
        self.plug("up")

    def start(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on this host."""
        enter = 'mount --bind "$1" /tmp && hostname "$2" && shift 2 && exec "$@"'
        inside = ["ip", "netns", "exec", self.name, "unshare", "-m", "-u", "bash", "-c", enter, "_"]
        return subprocess.Popen([*inside, str(self._tmp), self.name, *command], **options)

    def plug(self, state: str) -> None:
        """Sets the link to the other hosts `"up"` or `"down"`."""
        _ip(f"-n {self.name} link set eth0 {state}")

    def kill(self) -> None:
        """Kills all processes of the host at once."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def start_ray(self, *arguments: str) -> None:
        """Starts a node of the cluster, with one processor."""
        own = [f"--node-ip-address={self.address}", "--num-cpus=1", "--disable-usage-stats"]
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", *arguments, *own, f"--object-store-memory={100 << 20}"]
        output, _ = (process := self.start(*command, stdout=-1, stderr=-2)).communicate()
        if process.returncode:
            raise RuntimeError(f"Ray does not start on {self.name}: {output.decode()}")


@dataclass
class Campaign:
    """The hosts, and the directory that they share; the last one is no part of the cluster."""

    hosts: Sequence[Host]
    folder: Path

    def start_cluster(self) -> None:
        head, *others = self.hosts[:-1]
        client = f"--ray-client-server-port={_CLIENT_PORT}"
        head.start_ray("--head", f"--port={_PORT}", client, "--include-dashboard=false")
        for host in others:
            self.join(host)

    def join(self, host: Host) -> None:
        host.start_ray(f"--address={self.hosts[0].address}:{_PORT}")

    def start_run(self, name: str, address: str = _CLIENT) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.hosts_campaign", "--drive", name, address]
        with (self.folder / f"{name}.log").open("wb") as log:
            return self.hosts[-1].start(*command, str(self.folder), stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def host_that_trains(self, name: str) -> Host:
        """Waits until a run trains, and returns a host with a worker that is not the head."""
        end_s = time.monotonic() + _START_S
        while not (self.folder / name / "model_run" / "1" / "trains").exists():
            if time.monotonic() > end_s:
                raise RuntimeError(f"{name} does not train: {self.log(name)[-3000:]}")
            time.sleep(0.2)
        time.sleep(3)  # past the first checkpoint
        found = re.search(rf"worker \d pid=\d+, ip={re.escape(_NETWORK)}\.(\d)", self.log(name))
        assert found is not None, "two workers are on two hosts"
        return self.hosts[int(found[1]) - 1]

    def leftovers(self) -> str:
        """Returns what of the cluster's processors is still reserved after a run."""
        ask = (
            f"import ray, time; ray.init('{self.hosts[0].address}:{_PORT}', log_to_driver=False)\n"
            f"end_s = time.monotonic() + {_LEFT_S}\n"
            "def left():\n"
            "    free = ray.available_resources().get('CPU', 0)\n"
            "    return ray.cluster_resources()['CPU'] - free\n"
            "while left() and time.monotonic() < end_s: time.sleep(1)\n"
            "print('LEFT', left())"
        )
        process = self.hosts[0].start(sys.executable, "-c", ask, stdout=-1, stderr=-2)
        output, _ = process.communicate()
        found = re.search(r"LEFT ([\d.]+)", output.decode())
        return "" if found and not float(found[1]) else output.decode()[-500:]


@dataclass(frozen=True)
class Case:
    """A fault, and what the run must end with.

    Attributes:
        fault: called with the campaign and a host whose worker trains.
        outcome: `"weights"`: those of the undisturbed run; else a pattern of the error.
        limit_s: how long the run may take from the fault on.
        repair: called afterwards, so that the cluster is whole again.
        address: that of the cluster; no fault happens with another one than that for outside.
    """

    fault: Callable[[Campaign, Host], Any] = lambda campaign, host: None
    outcome: str = "weights"
    limit_s: float = 240.0
    repair: Callable[[Campaign, Host], Any] = lambda campaign, host: None
    address: str = _CLIENT


def _unplug(host: Host, seconds: float) -> None:
    host.plug("down")
    time.sleep(seconds)
    host.plug("up")


def _rejoin(campaign: Campaign, host: Host) -> None:
    host.kill()
    host.plug("up")
    campaign.join(host)


CASES = {
    "nothing": Case(),
    "node killed": Case(lambda campaign, host: host.kill(), repair=_rejoin),
    "node unplugged for 5 s": Case(lambda campaign, host: _unplug(host, 5)),
    "node unplugged for ever": Case(lambda campaign, host: host.plug("down"), repair=_rejoin),
    "pipeline unplugged for 5 s": Case(lambda campaign, host: _unplug(campaign.hosts[-1], 5)),
    "address for nodes": Case(outcome="give the address ray://", address=f"{_NETWORK}.1:{_PORT}"),
    "head killed": Case(lambda campaign, host: campaign.hosts[0].kill(), "WorkerLostError|Config"),
}


def main() -> int:
    """Runs the cases, prints a line for each, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts_campaign")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="; ".join(CASES))
    parser.add_argument("--drive", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        return _drive(*options.drive)
    from tests.helpers import write_examples

    os.environ.update(PYTHONPATH=os.getcwd(), RAY_USAGE_STATS_ENABLED="0", PYTHONWARNINGS="ignore")
    expected, wrong = "", 0
    with _hosts(4) as campaign:
        write_examples(campaign.folder / "examples")
        campaign.start_cluster()
        for number, name in enumerate(options.cases or CASES):
            case, run = CASES[name], f"run{number}"
            process, host = campaign.start_run(run, case.address), campaign.hosts[0]
            if case.address == _CLIENT:
                host = campaign.host_that_trains(run)
            start_s = time.monotonic()
            case.fault(campaign, host)
            try:
                process.wait(case.limit_s)
                result = re.findall(r"^(?:TRAINED|FAILED) .*", campaign.log(run), re.M)[-1]
            except subprocess.TimeoutExpired:
                process.kill()
                result = "HANGS"
            took_s = time.monotonic() - start_s
            case.repair(campaign, host)
            expected = expected or result
            is_right, left = bool(re.search(case.outcome, result)), ""
            if case.outcome == "weights":
                is_right, left = result == expected, campaign.leftovers()
            wrong += not is_right or bool(left)
            verdict = "right" if is_right and not left else f"WRONG {left}"
            print(f"{name}: {verdict} after {took_s:.0f} s: {result[:300]}", flush=True)
    print(f"{len(options.cases or CASES)} cases, {wrong} wrong")
    return int(wrong > 0)


def _drive(name: str, address: str, folder: str) -> int:
    """Runs the training on the cluster, from the host of the pipeline."""
    from generic_trainer.launchers import RayOptions
    from tests.launchers import jobs

    run = jobs.runner(Path(folder, name), Path(folder, "examples"), "ray")
    try:
        job = run(_MODULE, num_workers=2, max_failures=3, ray=RayOptions(address=address))
    except Exception as error:
        print("FAILED", type(error).__name__, str(error).replace("\n", " "))
        return 1
    weights = set(re.findall(r"weights: (\[.*?\])", jobs.log(job)))
    print("TRAINED", *sorted(weights), jobs.exported(job))
    return 0


@contextlib.contextmanager
def _hosts(count: int) -> Iterator[Campaign]:
    """Yields hosts, and takes them away, also after an error."""
    folder = Path(tempfile.mkdtemp(prefix="gt-hosts-", dir="/var/tmp"))
    hosts: list[Host] = []
    try:
        _ip(f"link add {_BRIDGE} type bridge")
        _ip(f"link set {_BRIDGE} up")
        hosts += [Host(number, folder) for number in range(1, count + 1)]
        shared = folder / "shared"
        shared.mkdir()
        yield Campaign(hosts, shared)
    finally:
        for host in hosts:
            host.kill()
            _ip(f"netns del {host.name}")
        subprocess.run(["ip", "link", "del", _BRIDGE], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


if __name__ == "__main__":
    sys.exit(main())
