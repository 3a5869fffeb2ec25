"""A Ray cluster of several hosts: network namespaces of this machine, with names and a /tmp each.

All hosts share one folder, as a pipeline root is shared. The last one is no part of the cluster:
there the pipeline runs, and connects by `ray://`.

    python -m benchmarks._hosts SPEC      (on a host) trains as a file of `Hosts.drive` specifies
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from generic_trainer._core.values import from_json, to_json
from tests.processes import wait_until

__all__ = ["Host", "Hosts", "missing", "several_hosts"]

ROOT = Path(__file__).parent.parent
NETWORK = "10.77.0"
_BRIDGE = f"gt{os.getpid()}"  # names of links have at most 15 characters
_PORT, _CLIENT_PORT = 6379, 10001
_TRIES = 6  # of a node: Ray gives up on one whose agent a busy machine has not started in 15 s
_TMP_MIB = 512  # Ray's logs, and scratch folders


def missing() -> str:
    """Returns why this machine cannot make hosts; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts are network namespaces, which only root of Linux makes"
    if absent := [name for name in ("ip", "unshare", "mount") if shutil.which(name) is None]:
        return f"hosts need the commands {', '.join(absent)} (packages iproute2, util-linux)"
    for kind, more in (("netns", ""), ("link", "type bridge")):
        add = f"ip {kind} add {_BRIDGE} {more}".split()
        made = subprocess.run(add, capture_output=True, text=True)
        subprocess.run(["ip", kind, "del", _BRIDGE], capture_output=True)
        if made.returncode:
            return f"this machine makes no network namespaces and bridges: {made.stderr.strip()}"
    return ""


class Host:
    """A network namespace with an address, and processes in it that have a name and a /tmp.

    Attributes:
        tmp: the folder that is /tmp there, on a small disk of its own.
    """

    def __init__(self, number: int, folder: Path, bridge: str = _BRIDGE) -> None:
        self.name, self.address = f"{bridge}-{number}", f"{NETWORK}.{number}"
        self.tmp, self._bridge = folder / f"tmp{number}", bridge
        self._relay: subprocess.Popen[str] | None = None

    def make(self, is_relayed: bool = False) -> None:
        """Makes the host; its network is up.

        Args:
            is_relayed: whether `disturb` can lose and delay packets.
        """
        self.tmp.mkdir()
        _run(f"mount -t tmpfs -o size={_TMP_MIB}m {self.name} {self.tmp}")
        _run(f"ip netns add {self.name}")
        if is_relayed:
            command = [sys.executable, "-m", "benchmarks._relay", self.name, f"{self.name}h"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._relay = subprocess.Popen(command, cwd=ROOT, **pipes)  # type: ignore[call-overload]
            assert self._relay.stdout and self._relay.stdout.readline() == "ready\n"
            _run(f"ip link set {self.name}h netns {self.name} name eth0")
        else:
            _run(f"ip link add {self.name} type veth peer name eth0 netns {self.name}")
        _run(f"ip link set {self.name} master {self._bridge} up")
        _run(f"ip -n {self.name} addr add {self.address}/24 dev eth0")
        _run(f"ip -n {self.name} link set lo up")
        self.plug("up")

    def start(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on this host; `env` adds to the environment."""
        own = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
        environment = {**os.environ, **own, **options.pop("env", {})}
        enter = 'mount --rbind "$1" /tmp && hostname "$2" && shift 2 && exec "$@"'
        if ROOT.is_relative_to("/tmp"):  # or the host would not see this package
            seen = self.tmp / ROOT.relative_to("/tmp")
            seen.mkdir(parents=True, exist_ok=True)
            enter = f"mount --bind {ROOT} {seen} && {enter}"
        inside = ["ip", "netns", "exec", self.name, "unshare", "-m", "-u", "bash", "-c", enter, "_"]
        command = (*inside, str(self.tmp), self.name, *command)
        return subprocess.Popen(command, env=environment, **options)

    def output(self, *command: str, **options: Any) -> tuple[int, str]:
        """Runs a command on this host, and returns its exit code and output."""
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        output, _ = process.communicate()
        return process.returncode, output.decode(errors="replace")

    def plug(self, state: str) -> None:
        """Sets the link to the other hosts `"up"` or `"down"`."""
        _run(f"ip -n {self.name} link set eth0 {state}")

    def disturb(self, loss: float = 0.0, delay_s: float = 0.0) -> None:
        """Loses a share of all packets from and to this host, and delays the others."""
        assert self._relay and self._relay.stdin
        self._relay.stdin.write(f"{loss} {delay_s}\n")
        self._relay.stdin.flush()

    def pids(self) -> list[int]:
        """Returns the processes of this host."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def trainers(self) -> list[str]:
        """Returns the command lines of processes that train on this host, or have not ended yet."""
        lines = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                lines += [line] if "generic_trainer._core" in line else []
        return lines

    def kill(self) -> None:
        """Kills all processes of the host at once."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Ends the host, as far as it was made."""
        # One of them may start another meanwhile.
        wait_until(lambda: self.kill() or not self.pids(), timeout_s=10)
        if self._relay:
            self._relay.kill()
        links = f"ip link del {self.name}", f"ip netns del {self.name}"  # else after a while
        for command in (*links, f"umount -l {self.tmp}"):
            subprocess.run(command.split(), capture_output=True)

    def start_ray(self, *arguments: str, **options: Any) -> None:
        """Starts a node of the cluster, with one processor."""
        own = [f"--node-ip-address={self.address}", "--num-cpus=1", "--disable-usage-stats"]
        own += [f"--object-store-memory={100 << 20}", *arguments]
        for tries_left in reversed(range(_TRIES)):
            code, output = self.output(_tool("ray"), "start", *own, **options)
            if code == 0:
                return
            self.kill()
            if not tries_left:
                raise RuntimeError(f"Ray does not start on {self.name}: {output}")


@dataclass
class Hosts:
    """Hosts, and the folder that they share; the last one is no part of the cluster."""

    hosts: Sequence[Host]
    folder: Path

    @property
    def client(self) -> str:
        """The address of the cluster for the pipeline's host."""
        return f"ray://{self.hosts[0].address}:{_CLIENT_PORT}"

    @property
    def address(self) -> str:
        """The address of the cluster for its nodes."""
        return f"{self.hosts[0].address}:{_PORT}"

    def start_cluster(self) -> None:
        """Starts a head and a node on each other host but the last."""
        client = f"--ray-client-server-port={_CLIENT_PORT}"
        self.hosts[0].start_ray("--head", f"--port={_PORT}", client, "--include-dashboard=false")
        for host in self.hosts[1:-1]:
            self.join(host)

    def join(self, host: Host, **options: Any) -> None:
        """Adds a node to the cluster, in place of what is left of an earlier one."""
        host.kill()
        host.start_ray(f"--address={self.address}", **options)

    def drive(
        self,
        name: str,
        source: str,
        *,
        host: int = -1,
        variables: dict[str, str] | None = None,
        launcher: str = "ray",
        **spec: Any,
    ) -> subprocess.Popen[bytes]:
        """Starts a training on the cluster from the pipeline's host, which `log` shows.

        Args:
            name: a folder for the run, below the shared one.
            source: the module file.
            host: another host, by its place.
            variables: of the environment.
            launcher: another launcher.
            spec: `options` of the launcher; `root`, in place of the shared folder; `custom_config`;
                else fields of the distribution.
        """
        options = {"address": self.client} if launcher == "ray" else {}
        spec = {"options": options, "root": str(self.folder / name), **spec, "launcher": launcher}
        path = self.folder / f"{name}.json"
        path.write_text(to_json({**spec, "source": source, "examples": self.examples}))
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "benchmarks._hosts", str(path)]
            return self.hosts[host].start(*command, env=variables or {}, stdout=log, stderr=log)

    def train(self, name: str, source: str, timeout_s: float = 600.0, **spec: Any) -> str:
        """Trains as `drive` does, and returns the log; its last line begins TRAINED or FAILED."""
        with self.drive(name, source, **spec) as process:
            try:
                process.wait(timeout_s)
            finally:
                process.kill()
        return self.log(name)

    def log(self, name: str) -> str:
        """Returns the output of a training."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    @property
    def examples(self) -> str:
        """A folder of examples that all hosts see."""
        from tests.helpers import write_examples

        folder = self.folder / "examples"
        if not folder.exists():
            write_examples(folder)
        return str(folder)

    def host_that_trains(self) -> Host:
        """Returns a host other than the head where a worker trains.

        By its processes: what it prints reaches the log seconds later.
        """
        return next(host for host in self.hosts[1:-1] if host.trainers())

    def drain(self, host: Host, seconds: int) -> None:
        """Has Ray announce that a node will be gone after so many seconds, as a cloud would."""
        code = (
            "import ray, subprocess, sys; ray.init(sys.argv[1], log_to_driver=False)\n"
            "[node] = [n for n in ray.nodes() if n['Alive'] and"
            " n['NodeManagerAddress'] == sys.argv[2]]\n"
            "sys.exit(subprocess.call([*sys.argv[3:], '--node-id', node['NodeID']]))"
        )
        command = [_tool("ray"), "drain-node", "--address", self.address]
        command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "preempted"]
        command += ["--deadline-remaining-seconds", str(seconds)]
        given = [self.address, host.address, *command]
        status, output = self.hosts[0].output(sys.executable, "-c", code, *given)
        assert status == 0, output


@contextlib.contextmanager
def several_hosts(count: int, *, are_relayed: bool = False) -> Iterator[Hosts]:
    """Yields hosts, and removes them, also after an error."""
    _remove_stale()
    folder = Path(tempfile.mkdtemp(prefix=f"{_BRIDGE}-", dir="/var/tmp"))
    hosts: list[Host] = []
    try:
        _run(f"ip link add {_BRIDGE} type bridge")
        _run(f"ip link set {_BRIDGE} up")
        for number in range(1, count + 1):
            hosts.append(Host(number, folder))
            hosts[-1].make(are_relayed)
        (folder / "shared").mkdir()
        yield Hosts(hosts, folder / "shared")
    finally:
        for host in hosts:
            host.remove()
        subprocess.run(["ip", "link", "del", _BRIDGE], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_stale() -> None:
    """Removes hosts of processes that were killed before they could."""
    for folder in Path("/var/tmp").glob("gt*-*"):
        if (made := re.fullmatch(r"(gt(\d+))-\w+", folder.name)) and not psutil.pid_exists(
            int(made[2])
        ):
            for tmp in folder.glob("tmp*"):
                Host(int(tmp.name[3:]), folder, made[1]).remove()
            subprocess.run(["ip", "link", "del", made[1]], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


def _tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def main() -> int:
    """Trains on the cluster, from the host of the pipeline."""
    from tests.launchers import jobs

    spec = from_json(Path(sys.argv[1]).read_text(), is_ours=False)
    root, examples, source = Path(spec.pop("root")), spec.pop("examples"), spec.pop("source")
    config, options = spec.pop("custom_config", None), spec.pop("options")
    launcher = spec.pop("launcher")
    try:
        job = jobs.runner(root, Path(examples), launcher, config, **options)(source, **spec)
    except Exception as error:
        print("FAILED", type(error).__name__, str(error).replace("\n", " "))
        return 1
    ends = set(jobs.told(job, "ends:").values())
    print("TRAINED", *sorted(ends), *jobs.exported(job))
    return 0


if __name__ == "__main__":
    sys.exit(main())
