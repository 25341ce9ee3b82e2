"""Three brokers of one group, as processes, with a real etcd, for tests and measurements of failover."""

from __future__ import annotations

import base64
import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.broker_process import BrokerProcess, free_port
from support.etcd_process import Etcd
from support.kubernetes_process import PROGRAM, Kubernetes
from support.waiting import wait_until

_DEADLINE_S = 40.0


class ClusterOfThree:
    """Members 0, 1 and 2 of a group, and etcd. A context manager that ends all of them.

    Args:
        path: for the directories and logs.
        lease: as in the configuration.
        environment: further options of all brokers.
        command: as of `BrokerProcess`; the installed `reput` by default.
    """

    def __init__(
        self,
        path: Path,
        *,
        lease: str = "3s",
        environment: dict[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "reput_cli"),
    ) -> None:
        self.etcd = Etcd(path)
        self.etcd.start()
        self.kubernetes = Kubernetes(path, self.etcd.address) if PROGRAM else None
        engine = self.kubernetes.variables if self.kubernetes else {"REPUT_ELECTION__ETCD": self.etcd.address}
        self.brokers = []
        self.ha_ports = [free_port() for _ in range(3)]
        user = f"admin:{(environment or {}).get('REPUT_ACCESS__ADMIN_SECRET', '')}"
        self._headers = {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
        for number, ha_port in enumerate(self.ha_ports):
            options = {
                "REPUT_BROKER_ID": str(number),
                "REPUT_HA_PORT": str(ha_port),
                "REPUT_NAME_PORT": "off",
                **engine,
                "REPUT_ELECTION__LEASE": lease,
                "REPUT_HA__SEND_HEARTBEAT_INTERVAL": "500ms",
                "REPUT_ELECTION__IN_SYNC_TIMEOUT": "2s",
                **(environment or {}),
            }
            self.brokers.append(BrokerProcess(path / str(number), environment=options, command=command))

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers:
                broker.start()
            for broker in self.brokers:
                broker.wait_ready()
            self.wait_in_sync(0, 1, 2)
            assert self.kubernetes is None or len(self.kubernetes.leases()) == 1
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers:
            if broker.running:
                broker.kill()
        if self.kubernetes is not None:
            self.kubernetes.stop()
        self.etcd.stop()

    @property
    def addresses(self) -> list[str]:
        """Of all brokers, for clients."""
        return [broker.address for broker in self.brokers]

    def status(self, number: int) -> dict[str, Any]:
        """Return what a broker's status page says."""
        url = f"http://127.0.0.1:{self.brokers[number].http_port}/status"
        with urllib.request.urlopen(urllib.request.Request(url, headers=self._headers), timeout=5) as answer:
            status: dict[str, Any] = json.load(answer)
        return status

    def master(self) -> int | None:
        """Return the number of the running broker that is the master now; None without one."""
        for number, broker in enumerate(self.brokers):
            if broker.running:
                election = self._election(number)
                if election is not None and election["lease_left_s"] is not None:
                    return number
        return None

    def _election(self, number: int) -> dict[str, Any] | None:
        try:
            election: dict[str, Any] | None = self.status(number).get("election")
        except OSError:
            return None
        return election

    def wait_master(self) -> int:
        """Wait until there is a master, and return its number."""
        masters = wait_until(
            lambda: [master for master in (self.master(),) if master is not None], _DEADLINE_S, what=self.tails
        )
        return masters[0]

    def wait_in_sync(self, *numbers: int) -> int:
        """Wait until exactly these members are in sync with a master that leads; return its number."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            master = self.wait_master()
            election = self._election(master)
            is_leading = election is not None and election["confirm_offset"] is not None
            if election is not None and is_leading and election["in_sync"] == sorted(numbers):
                return master
            assert time.monotonic() < deadline, (election, self.tails())
            time.sleep(0.02)

    def tails(self) -> str:
        """Return the ends of the logs."""
        return "\n".join(f"-- {broker.data_dir.name}\n{broker.log_tail()}" for broker in self.brokers)
