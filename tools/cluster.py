"""`make cluster`: three brokers that elect their master, etcd and a name service as processes on loopback.

Everything is in one directory: `DIR/broker-0/` to `broker-2/`, `DIR/etcd/`, and a log of each process next to them.
Prints the addresses, then what happens: which broker leads, and how long after the end of the one before. A process
that ends is started again after a while, as a container engine would; Ctrl-C stops all. What is in the directory stays,
and the next start uses it.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from reput_broker.compose.proxy_process import supervise

LOOK_S: Final = 0.1
START_AGAIN_S: Final = 15.0
STOP_S: Final = 40.0
NAME_PORT: Final = 9876
ETCD_PORT: Final = 2379
PORTS_APART: Final = 10
"""Each broker has three ports: clients, the log, HTTP."""
_NO_VARIABLES: Final[Mapping[str, str]] = {}
BROKERS: Final = 3


class Program:
    """A process of the cluster, started again when it ends. Its output is added to `NAME.log`."""

    def __init__(
        self, name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str] = _NO_VARIABLES
    ) -> None:
        self.name = name
        self.process: trio.Process | None = None
        self.ended_at = 0.0
        self._command = command
        self._log = directory / f"{name}.log"
        self._environment = {**os.environ, **environment}
        self._stopping = trio.Event()

    async def keep(self, say: Callable[[str], None]) -> None:
        """Run it until `stop`; pass each end and each other start to `say`."""

        async def run() -> int:
            if self.ended_at:
                say(f"{self.name} is started again")
            return await self._run()

        def on_end(code: int, pause_s: float) -> bool:
            say(f"{self.name} has ended with {code}; it is started again in {pause_s:g} s")
            return True

        await supervise(run, on_end, self._stopping, pause_s=START_AGAIN_S)

    async def _run(self) -> int:
        with self._log.open("ab") as log:
            self.process = process = await trio.lowlevel.open_process(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for this program, which stops the others in order
            )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end, process)
                code = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            process.kill()  # it runs still if this program has failed
        self.process, self.ended_at = None, trio.current_time()
        return code

    async def _end(self, process: trio.Process) -> None:
        """Once it is to stop, ask it to end; kill it if that takes too long."""
        await self._stopping.wait()
        process.terminate()
        await trio.sleep(STOP_S)
        process.kill()

    def stop(self) -> None:
        """Have it end; `keep` returns when it has."""
        self._stopping.set()


class Broker(Program):
    """A broker, and what its page /status says."""

    def __init__(self, number: int, directory: Path, port: int, engine: str, names: str) -> None:
        self.number = number
        self.port = port
        super().__init__(
            f"broker-{number}",
            [sys.executable, "-m", "reput_cli", "serve"],
            directory,
            {
                "REPUT_DATA_DIR": str(directory / f"broker-{number}"),
                "REPUT_BROKER_ID": str(number),
                "REPUT_PORT": str(port),
                "REPUT_HA_PORT": str(port + 1),
                "REPUT_HTTP_PORT": str(port + 2),
                "REPUT_NAME_PORT": "off",
                "REPUT_NAME_SERVERS": names,
                "REPUT_ELECTION__ETCD": engine,
                "REPUT_ELECTION__LEASE": "5s",
                "REPUT_ELECTION__IN_SYNC_TIMEOUT": "3s",
                "REPUT_HA__SEND_HEARTBEAT_INTERVAL": "1s",
                "REPUT_HA__IN_SYNC_REPLICAS": "2",
                "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "64MiB",
                "REPUT_STORE__INDEX_SLOTS": "100000",
                "REPUT_STORE__INDEX_ENTRIES": "400000",
            },
        )

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def http(self) -> str:
        """Where metrics, health and status are."""
        return f"http://127.0.0.1:{self.port + 2}"

    def leads(self) -> bool:
        """Tell whether it is the master, by its page /status.

        Raises:
            PageRefused: the page needs a user.
        """
        page = urllib.request.Request(f"{self.http}/status", headers=_authorization())
        try:
            with urllib.request.urlopen(page, timeout=1.0) as answer:
                master: str | None = json.load(answer).get("election", {}).get("master")
                return master == self.address
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise PageRefused from None
        except (OSError, ValueError):
            pass
        return False


class PageRefused(Exception):
    """A page of a broker with access control was asked for without a user that may see it."""


def _authorization() -> dict[str, str]:
    """Return the header for pages that need a user: that of the commands (REPUT_USER), or else the administrator that
    the brokers are given.
    """
    for user, secret in (("REPUT_USER", "REPUT_SECRET"), ("REPUT_ACCESS__ADMIN_USER", "REPUT_ACCESS__ADMIN_SECRET")):
        file, text = os.environ.get(f"{secret}_FILE"), os.environ.get(secret)
        if file:
            text = Path(file).read_text().strip()
        if text:
            coded = base64.b64encode(f"{os.environ.get(user, 'admin')}:{text}".encode()).decode()
            return {"Authorization": f"Basic {coded}"}
    return {}


def main() -> int:
    """Run the cluster until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("reput-cluster"), help="default: %(default)s")
    parser.add_argument("--port", type=int, default=10911, help="of the first broker; the others are 10 apart")
    arguments = parser.parse_args()
    etcd = shutil.which("etcd")
    if etcd is None:
        print("error: there is no command etcd; on Debian and Ubuntu: apt install etcd-server", file=sys.stderr)
        return 1
    directory = arguments.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    brokers, others = _programs(etcd, directory, arguments.port)
    taken = [port for port in _ports(arguments.port) if _is_taken(port)]
    if taken:
        print(
            f"error: port {taken[0]} of 127.0.0.1 is in use; stop what listens there, or choose --port", file=sys.stderr
        )
        return 1
    trio.run(_run, brokers, others, directory)
    return 0


async def _run(brokers: Sequence[Broker], others: Sequence[Program], directory: Path) -> None:
    """Run the cluster until SIGINT or SIGTERM."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as watching:
            async with trio.open_nursery() as needed:
                for program in others:
                    needed.start_soon(program.keep, say)
                async with trio.open_nursery() as leading:
                    for broker in brokers:
                        leading.start_soon(broker.keep, say)
                    _print_addresses(brokers, directory)
                    watching.start_soon(_name_masters, brokers, say)
                    await anext(signals)
                    print("\nstopping", flush=True)
                    for broker in brokers:
                        broker.stop()
                for program in others:  # after the brokers: they resign with etcd's help
                    program.stop()
            watching.cancel_scope.cancel()


def _programs(etcd: str, directory: Path, port: int) -> tuple[list[Broker], list[Program]]:
    """Return the brokers, and what they need."""
    engine, peers = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
    options = {
        "data-dir": directory / "etcd",
        "listen-client-urls": engine,
        "advertise-client-urls": engine,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "auto-compaction-retention": "1h",
    }
    names = [sys.executable, "-m", "reput_cli", "namesrv", "--port", str(NAME_PORT)]
    names += ["--data-dir", str(directory / "names")]
    others = [
        Program("etcd", [etcd, *(f"--{name}={value}" for name, value in options.items())], directory),
        Program("namesrv", names, directory),
    ]
    ports = range(port, port + BROKERS * PORTS_APART, PORTS_APART)
    brokers = [Broker(number, directory, own, engine, f"127.0.0.1:{NAME_PORT}") for number, own in enumerate(ports)]
    return brokers, others


def _ports(port: int) -> list[int]:
    own = [port + PORTS_APART * number + part for number in range(BROKERS) for part in range(3)]
    return [NAME_PORT, ETCD_PORT, ETCD_PORT + 1, *own]


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _print_addresses(brokers: Sequence[Broker], directory: Path) -> None:
    server = ",".join(broker.address for broker in brokers)
    lines = [
        f"etcd          http://127.0.0.1:{ETCD_PORT}",
        f"name service  127.0.0.1:{NAME_PORT}",
        *(f"{broker.name}      {broker.address}      {broker.http}" for broker in brokers),
        f"data and logs {directory}",
        "",
        f"  export REPUT_SERVER={server}",
        "  reput produce orders 'first message' --ack replicated",
        "  reput consume orders -g workers",
        f"  reput cluster status --server 127.0.0.1:{NAME_PORT}",
        "",
        "Ctrl-C stops all. To see a failover, kill the master with the command that is shown.",
    ]
    print("\n".join(lines), flush=True)


async def _name_masters(brokers: Sequence[Broker], say: Callable[[str], None]) -> None:
    """Say which broker is the master, and how long after the end of the one before, until cancelled."""
    leader: Broker | None = None
    leads_since = 0.0
    while True:
        for broker in brokers:
            if broker is leader or broker.process is None:
                continue
            try:
                is_master = await trio.to_thread.run_sync(broker.leads, abandon_on_cancel=True)
            except PageRefused:
                say("the pages of the brokers need a user: set REPUT_USER and REPUT_SECRET_FILE to see the master")
                return
            if not is_master or broker.process is None:
                continue
            after = ""
            if leader is not None and leader.ended_at > leads_since:
                after = f", {trio.current_time() - leader.ended_at:.1f} s after the end of {leader.name}"
            say(f"{broker.name} is the master{after}; to kill it: kill -9 {broker.process.pid}")
            leader, leads_since = broker, trio.current_time()
        await trio.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
