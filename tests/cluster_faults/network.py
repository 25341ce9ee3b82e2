"""Machines of a cluster as network namespaces on one bridge, and what may happen to the network between them.

All of it is in a network namespace of the run (see `enter`), so that a run needs no free names or addresses, and the
kernel removes everything when the run ends, whatever ends it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

CLIENTS: Final = "clients"
"""The machine of clients and runner: the namespace that has the bridge."""
ETCD: Final = "etcd"
USER: Final = {"REPUT_USER": "admin", "REPUT_SECRET": "secret-of-the-cluster"}
"""The brokers are reached over a network, so clients, commands and the runner need a user."""
_ENTERED: Final = "CLUSTER_FAULTS_ENTERED"
_NETNS: Final = Path("/run/netns")
_BRIDGE: Final = "reput0"
_SUBNET: Final = "10.77.0"
_CLIENTS: Final = "10.78"
_TOOLS: Final = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"}


Undo = Callable[[], None]


class Unavailable(Exception):
    """This machine cannot run a cluster of namespaces; the text names the reason and the remedy."""


def enter(*tools: tuple[str, str]) -> None:
    """Run the program again in namespaces of its own: network, mounts and processes. Returns inside them.

    Args:
        tools: further commands that the run needs, each with the Debian package that has it.

    Raises:
        Unavailable: not root, or a command is missing.
    """
    if os.environ.get(_ENTERED):
        subprocess.run(["mount", "-t", "tmpfs", "reput-run", "/run"], check=True)
        _NETNS.mkdir()
        _run("ip link set lo up")
        _run(f"ip link add {_BRIDGE} type bridge")
        _run(f"ip addr add {address_of(CLIENTS)}/24 dev {_BRIDGE}")
        _run(f"ip link set {_BRIDGE} up")
        return
    if os.geteuid() != 0:
        raise Unavailable("network namespaces need root: run it as root, or in a privileged container")
    for tool, package in {**_TOOLS, **dict(tools)}.items():
        if shutil.which(tool) is None:
            raise Unavailable(f"there is no command {tool!r}; on Debian and Ubuntu: apt install {package}")
    flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.execvpe("unshare", ["unshare", *flags, sys.executable, *sys.argv], {**os.environ, _ENTERED: "1"})


def address_of(machine: str) -> str:
    """Return the IP address of a machine: `b0` and up, ETCD or CLIENTS."""
    numbers = {CLIENTS: 254, ETCD: 200}
    return f"{_SUBNET}.{numbers[machine] if machine in numbers else 1 + int(machine[1:])}"


def inside(machine: str) -> list[str]:
    """Return the words before a command that run it on a machine; it keeps its process id."""
    return [] if machine == CLIENTS else ["nsenter", f"--net={_NETNS / machine}"]


class Network:
    """The bridge with its machines."""

    def __init__(self, machines: Iterable[str]) -> None:
        self.machines = [*machines]
        for machine in self.machines:
            _run(f"ip netns add {machine}")
            _run(f"ip link add v-{machine} type veth peer name eth0 netns {machine}")
            _run(f"ip link set v-{machine} master {_BRIDGE} up")
            for command in (
                f"ip addr add {address_of(machine)}/24 dev eth0",
                "ip link set eth0 up",
                "ip link set lo up",
            ):
                _run(command, machine)

    def close(self) -> None:
        """Remove the machines; no process is on them any more."""
        for machine in self.machines:
            _run(f"ip netns del {machine}")

    def more_clients(self) -> list[str]:
        """Give the machine of the clients as many addresses as there are, and return them."""
        _run(f"ip route add local {_CLIENTS}.0.0/16 dev lo")
        for machine in self.machines:
            _run(f"ip route add {_CLIENTS}.0.0/16 via {address_of(CLIENTS)}", machine)
        return [f"{_CLIENTS}.{number >> 8}.{number & 255}" for number in range(1, 0xFFFF)]

    def cut(self, source: str, destination: str) -> Undo:
        """Drop every packet from one machine to another; those the other way still arrive.

        Returns:
            What delivers them again. Connections that were open continue then, unless an end has given up.
        """
        return _drop(destination, f"-s {address_of(source)}")

    def cut_both(self, one: str, other: str) -> Undo:
        """Drop every packet between two machines."""
        return _all(self.cut(one, other), self.cut(other, one))

    def isolate(self, machine: str, *, but: str = "") -> Undo:
        """Drop every packet between a machine and all others, but for one of them."""
        others = {CLIENTS, *self.machines} - {machine, but}
        return _all(*(self.cut_both(machine, other) for other in sorted(others)))

    def lose(self, machine: str, share: float) -> Undo:
        """Drop a share of the packets that come to a machine, at random."""
        return _drop(machine, f"-i eth0 -m statistic --mode random --probability {share:.2f}")


def lose_at(port: int, share: float) -> Undo:
    """Drop a share of the packets to and from a port of loopback, at random; 1 for all of them."""
    chance = f"-m statistic --mode random --probability {share:.2f}"
    return _all(*(_drop(CLIENTS, f"-i lo -p tcp --{side} {port} {chance}") for side in ("dport", "sport")))


def _drop(machine: str, packets: str) -> Undo:
    _run(f"iptables -w -A INPUT {packets} -j DROP", machine)
    return lambda: _run(f"iptables -w -D INPUT {packets} -j DROP", machine)


def _all(*undos: Undo) -> Undo:
    def undo() -> None:
        for one in undos:
            one()

    return undo


def _run(command: str, machine: str = CLIENTS) -> None:
    done = subprocess.run([*inside(machine), *command.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{command!r} has failed: {done.stderr.strip()}")
