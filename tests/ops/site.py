"""The brokers of the check: one with traffic, one on a small disk, one whose syncs can fail, a master and its slave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import trustme

from reput_client.blocking import Consumer, Message, Producer
from reput_protocol.errors import ReputError
from support.broker_process import BrokerProcess, free_port
from support.group_client import GroupClient
from support.mounts import try_to_mount, unmount

_QUICK: Final = {
    "REPUT_METRICS__REFRESH_INTERVAL": "1s",
    "REPUT_GROUPS__LAG_REFRESH_INTERVAL": "1s",
    "REPUT_GROUPS__STUCK_AFTER": "5s",
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
    "REPUT_NAME_PORT": "off",
}
_DISK_BYTES: Final = 256 << 20
_HOUR_AGO: Final = "-3600"


class Site:
    """All processes; a context manager. `reputs` has the addresses of their metrics by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._preload = self._compiled()
        self.sync_fault = directory / "syncs-fail"
        self.names_port = free_port()
        self.config_file = directory / "main.toml"
        self.certificate = directory / "main.pem"
        self.disk = directory / "disk"
        ha_port = str(free_port())
        names = f"127.0.0.1:{self.names_port}"
        pair = {"REPUT_NAME_SERVERS": names, "REPUT_HA__SEND_HEARTBEAT_INTERVAL": "500ms", "REPUT_HA_PORT": ha_port}
        self.main = self._broker(
            "main",
            {
                "REPUT_STORE__FLUSH": "async",
                "REPUT_TRANSACTIONS__CHECK_INTERVAL": "2s",
                "REPUT_TRANSACTIONS__CHECK_MAX": "1000",
                "REPUT_TRANSACTIONS__TIMEOUT": "5s",
                "REPUT_PROXY_PORT": "0",
                "REPUT_TLS__MODE": "permissive",
                "REPUT_TLS__CERT": str(self.certificate),
            },
            arguments=("-c", str(self.config_file)),
        )
        self.full = self._broker(
            "disk/full", {"REPUT_STORE__DISK_CLEAN_FORCIBLY_RATIO": "0.85", "REPUT_STORE__DISK_WARNING_RATIO": "0.9"}
        )
        self.faulty = self._broker("faulty", {"LD_PRELOAD": self._preload, "FAULT_SYNC": str(self.sync_fault)})
        self.master = self._broker("master", {**pair, "REPUT_HA__IN_SYNC_REPLICAS": "2"})
        self.slave = self._broker(
            "slave", {**pair, "REPUT_HA__ROLE": "SLAVE", "REPUT_BROKER_ID": "1", "REPUT_HA_PORT": str(free_port())}
        )
        self.brokers = {
            "main": self.main,
            "full": self.full,
            "faulty": self.faulty,
            "master": self.master,
            "slave": self.slave,
        }

    @property
    def targets(self) -> dict[str, str]:
        """What Prometheus scrapes."""
        return {name: f"127.0.0.1:{broker.http_port}" for name, broker in self.brokers.items()}

    def __enter__(self) -> Self:
        self.disk.mkdir()
        if not try_to_mount(self.disk, _DISK_BYTES):
            raise SystemExit("error: this needs a small disk of its own: run it as root, where mounts are allowed")
        self._stack.callback(unmount, self.disk)
        self.config_file.write_text("[topics]\ndefault_queues = 2\n")
        self.write_certificate(days=90)
        self._store_an_old_message()
        for broker in (self.main, self.full, self.faulty):
            self._stack.callback(broker.kill)
            broker.start()
        for broker in (self.master, self.slave):
            self._stack.callback(broker.kill)
        self.slave.start()  # its name server and its master come later: see `scenes.no_names`
        for broker in (self.main, self.full, self.faulty):
            broker.wait_ready()
        self._stack.enter_context(_traffic(self.main.address))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers.values():
            with suppress(AssertionError, OSError):
                os.kill(broker.pid, signal.SIGCONT)
        self._stack.close()

    def write_certificate(self, days: int) -> None:
        """Give the broker `main` a certificate that is valid for so many days."""
        ends_at = datetime.now(UTC) + timedelta(days=days)
        made = trustme.CA().issue_cert("127.0.0.1", not_after=ends_at)
        made.private_key_and_cert_chain_pem.write_to_path(str(self.certificate))

    def start_name_server(self) -> None:
        """Start a name server at the address that master and slave have."""
        command = [sys.executable, "-m", "reput_cli", "namesrv", "--host", "127.0.0.1"]
        command += ["--port", str(self.names_port), "--http-port", str(free_port())]
        command += ["--data-dir", str(self.directory / "names")]
        with (self.directory / "names.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)

    def _broker(self, name: str, environment: dict[str, str], arguments: tuple[str, ...] = ()) -> BrokerProcess:
        return BrokerProcess(self.directory / name, environment={**_QUICK, **environment}, arguments=arguments)

    def _store_an_old_message(self) -> None:
        """Store a message while the broker's clock is an hour late, and an offset of a group before it."""
        past = BrokerProcess(
            self.main.data_dir,
            port=self.main.port,
            http_port=self.main.http_port,
            environment={**_QUICK, "LD_PRELOAD": self._preload, "FAULT_CLOCK_S": _HOUR_AGO},
        )
        with past:
            with Producer(past.address) as producer:
                receipt = producer.send(Message("old", b"an hour old"))
            group = GroupClient(past.address, "late-1", "late")
            assert group.commit("old", 0, receipt.queue_id).code == 0
            group.close()

    def _compiled(self) -> str:
        library = self.directory / "faults.so"
        source = Path(__file__).with_name("faults.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        return str(library)


@contextmanager
def repeated(action: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Do something again and again in a thread while the block runs, and once before it."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(pause_s):
            action()

    action()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(30.0)


@contextmanager
def _traffic(address: str) -> Iterator[None]:
    """Send and consume a few messages of each kind; the broker may be stopped and started meanwhile."""
    is_over = threading.Event()

    def send() -> None:
        while not is_over.is_set():
            with suppress(ReputError, OSError), Producer(address, group="shop", timeout_s=5.0) as producer:
                while not is_over.wait(0.2):
                    producer.send(Message("orders", b"x" * 300, tag="paid"))
                    producer.send(Message("reminders", b"later", delay_s=1.0))

    def consume() -> None:
        while not is_over.is_set():
            with (
                suppress(ReputError, OSError),
                Consumer(address, group="billing", topic="orders", start="earliest") as consumer,
            ):
                while not is_over.is_set():
                    consumer.receive(1.0)

    threads = [threading.Thread(target=work, daemon=True) for work in (send, consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(10.0)


def scraped() -> None:
    """Wait until Prometheus has surely seen what there is now."""
    time.sleep(2.0)
