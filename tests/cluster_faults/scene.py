"""The machines of one run with their brokers, etcd, and the clients."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cluster_faults import network
from cluster_faults.machine import HTTP_PORT, PORT, Machine
from cluster_faults.network import Network, address_of, inside
from histories import terms
from histories.clients import Child, Clients
from histories.history import Tail
from histories.scene import ENVIRONMENT
from reput_client.blocking import Admin
from reput_protocol.errors import ReputError
from support.etcd_process import Etcd
from support.waiting import wait_until

LEASE_S: Final = 4.0
"""How long a master that is silent stays one; as short as etcd's own clock allows."""
ETCD_URL: Final = f"http://{address_of(network.ETCD)}:2379"
_WORKLOAD: Final = str(Path(__file__).with_name("workload.py"))
_READY_S: Final = 180.0
_CREATE_S: Final = 5.0


class Cluster(Clients):
    """Starts all; a context manager."""

    def __init__(self, directory: Path, *, seed: int, brokers: int) -> None:
        os.environ.update(network.USER)
        names = [f"b{number}" for number in range(brokers)]
        super().__init__(
            directory,
            ",".join(f"{address_of(name)}:{PORT}" for name in names),
            seed=seed,
            producer=[_WORKLOAD, "produce"],
            producer_options=["--alone"] if brokers == 1 else [],
        )
        self.network = Network([*names, network.ETCD])
        self.etcd = Etcd(directory, ETCD_URL, wrapper=inside(network.ETCD))
        self.machines = [Machine(name, directory, self.events, _environment(name, brokers)) for name in names]
        self.readers: list[Child] = []
        self._tail = Tail(self.events)
        self._leader: str | None = None
        self.keeps_stores = False
        """Whether the brokers' directories are kept when the block ends; they are after an error."""

    def __enter__(self) -> Self:
        try:
            self.etcd.start()
            for machine in self.machines:
                machine.start()
            self.until_whole()
            self._create_topics()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self.readers:
            reader.process.kill()
            reader.process.wait()
        super().__exit__(kind, error, trace)
        for machine in self.machines:
            machine.end(keep_store=self.keeps_stores or error is not None)
        self.etcd.stop()
        self.network.close()

    def read(self) -> None:
        """Start a pull reader."""
        options = ["--seed", str(self._seed)]
        self.readers.append(self.start("r", "", [_WORKLOAD, "read"], *options))

    @property
    def master(self) -> Machine | None:
        """The broker that was last to become master, by the brokers' own records; it may be gone."""
        for event in self._tail.new():
            if event.what == "leads":
                self._leader = event.who
        return next((machine for machine in self.machines if machine.name == self._leader), None)

    def until_whole(self, deadline_s: float = _READY_S) -> None:
        """Wait until all brokers serve, one of them as master and the others in sync with it."""
        until = time.monotonic() + deadline_s
        for machine in self.machines:
            machine.wait_ready(until - time.monotonic())
        self._wait_for("a master with all in sync", lambda: self.is_whole, until)

    @property
    def is_whole(self) -> bool:
        """Whether all brokers serve, one of them as master and the others in sync with it."""
        master = self.master
        if master is None or any(machine.page("readyz?verbose").get("state") != "running" for machine in self.machines):
            return False
        if len(self.machines) == 1:
            return True
        election = master.page("status").get("election", {})
        members = [machine.number for machine in self.machines]
        return bool(election.get("master") == master.address and election.get("in_sync") == members)

    def _wait_for(self, what: str, condition: Callable[[], bool], until: float) -> None:
        def logs() -> str:
            tails = "\n".join(f"{machine.name}: {machine.log_tail(8)}" for machine in self.machines)
            return f"the cluster has not come to {what}:\n{tails}"

        wait_until(condition, until - time.monotonic(), what=logs, step_s=0.1)

    def _create_topics(self) -> None:
        until = time.monotonic() + _READY_S
        for topic, queues in terms.TOPICS.items():
            while True:
                try:
                    with Admin(self.address, timeout_s=_CREATE_S) as admin:
                        admin.create_topic(topic, queues=queues)
                    break
                except ReputError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.2)

    def promote(self, machine: Machine) -> bool:
        """Hand over to a broker, as an operator does; return whether that was accepted."""
        command = ["-m", "reput_cli", "broker", "promote", str(machine.number), "--server", self.address]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        self.recorder.note("promoted", on=machine.name, code=done.returncode, said=(done.stdout + done.stderr)[-300:])
        return done.returncode == 0

    def watch_for_failures(self) -> None:
        """Write down which processes have ended by themselves."""
        super().watch_for_failures()
        for machine in self.machines:
            code = machine.died()
            if code is not None:
                self.recorder.note("failed", process=machine.name, code=code, log=machine.log_tail())
                machine.kill()
                machine.start()

    def end_brokers(self) -> None:
        """End all brokers at the same moment."""
        for machine in self.machines:
            machine.freeze()
        for machine in self.machines:
            machine.kill()

    def end_readers(self) -> None:
        """Ask the readers to end."""
        self.leave(*self.readers)
        self.readers.clear()


def _environment(name: str, brokers: int) -> dict[str, str]:
    options = {
        **ENVIRONMENT,
        "REPUT_HOST": address_of(name),
        "REPUT_PORT": str(PORT),
        "REPUT_NAME_PORT": "off",
        "REPUT_HTTP_HOST": address_of(name),
        "REPUT_HTTP_PORT": str(HTTP_PORT),
        "REPUT_ACCESS__ENABLED": "true",
        "REPUT_ACCESS__ADMIN_SECRET": network.USER["REPUT_SECRET"],
        "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "4MiB",
        "REPUT_STORE__INDEX_SLOTS": "5000",
        "REPUT_STORE__INDEX_ENTRIES": "20000",
        "REPUT_STORE__DISK_CLEAN_FORCIBLY_RATIO": "1.0",
        "REPUT_STORE__DISK_WARNING_RATIO": "1.0",
    }
    if brokers > 1:
        options |= {
            "REPUT_BROKER_ID": name[1:],
            "REPUT_ELECTION__ETCD": ETCD_URL,
            "REPUT_ELECTION__LEASE": f"{LEASE_S:g}s",
            "REPUT_ELECTION__IN_SYNC_TIMEOUT": "3s",
            "REPUT_HA__IN_SYNC_REPLICAS": "2",
            "REPUT_HA__SEND_HEARTBEAT_INTERVAL": "1s",
            "REPUT_HA__HOUSEKEEPING_INTERVAL": "5s",
        }
    return options
