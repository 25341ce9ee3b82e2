"""One run: a broker, two workers, senders; kills of each; then waiting until everything due has run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol

from support.broker_process import BrokerProcess, free_port
from task_faults.judge import Kill, Marks, Verdict, judge

_WORKERS = 2
_SENDERS = 2
_INVISIBLE_S: Final = 20.0
"""After how long another worker gets what a killed one had: Reput's invisible time, Redis's visibility timeout."""


class Broker(Protocol):
    """What is killed and started again, with its files."""

    url: str

    @property
    def pid(self) -> int:
        """Of its process."""

    def kill(self) -> None:
        """Kill it with SIGKILL."""

    def start(self) -> None:
        """Start it, and wait until it answers."""


class Reput:
    """`reput serve`."""

    def __init__(self, directory: Path) -> None:
        self._process = BrokerProcess(
            directory / "data",
            environment={"REPUT_STORE__INDEX_SLOTS": "500000", "REPUT_STORE__INDEX_ENTRIES": "2000000"},
        )
        self.url = f"reput://{self._process.address}//"

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._process.start()
        self._process.wait_ready()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid


class Redis:
    """The installed redis-server, which syncs its append-only file each second."""

    def __init__(self, directory: Path) -> None:
        server = shutil.which("redis-server")
        if server is None:
            raise SystemExit("redis-server is not installed: apt-get install redis-server")
        self._port = free_port()
        self._log = directory / "redis.log"
        self._command = [
            server,
            "--port",
            str(self._port),
            "--dir",
            str(directory),
            "--appendonly",
            "yes",
            "--save",
            "",
        ]
        self._process: subprocess.Popen[bytes]
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        """Start it, and wait until it has loaded its file."""
        import redis

        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        client = redis.Redis(port=self._port)
        for _ in range(600):
            with suppress(redis.RedisError):
                client.ping()
                return
            time.sleep(0.1)
        raise AssertionError(f"redis-server does not respond: {self._log.read_text()[-2000:]}")

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid


BROKERS: Final[Mapping[str, Callable[[Path], Broker]]] = {"reput": Reput, "redis": Redis}
KILLS: Final = ("worker", "child", "broker")


class Worker:
    """A Celery worker with two processes, in a process group of its own."""

    def __init__(self, log: Path, environ: dict[str, str]) -> None:
        self._log = log
        self._environ = environ
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start it; does not wait until it is ready."""
        arguments = ["-m", "celery", "-A", "task_faults.program", "worker", "-c", "2", "-l", "WARNING"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments, "--without-gossip", "--without-mingle"],
                stdout=log,
                stderr=log,
                env=self._environ,
                cwd=self._log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process that has the tasks."""
        return self._process.pid

    @property
    def children(self) -> list[int]:
        """The processes that do its tasks."""
        pid = self._process.pid
        with suppress(OSError):
            return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return []

    def kill(self) -> frozenset[int]:
        """Kill it with its processes; return which those were."""
        pids = frozenset([self._process.pid, *self.children])
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return pids

    def kill_child(self, rng: random.Random) -> frozenset[int]:
        """Kill one of its processes; return which, if there was one."""
        for pid in rng.sample(children := self.children, min(1, len(children))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return frozenset([pid])
        return frozenset()


class Scene:
    """A run. `tasks` are sent within the first part of it, and are due within `spread_s` of their sending."""

    def __init__(
        self, directory: Path, broker: Broker, tasks: int, spread_s: float, invisible_s: float, bug: str | None
    ) -> None:
        self._marks = directory / "marks"
        self._marks.mkdir()
        self._broker = broker
        self._tasks = tasks
        self._spread_s = spread_s
        self._invisible_s = invisible_s
        self._environ = {
            **os.environ,
            "TASKS_URL": broker.url,
            "TASKS_INVISIBLE_S": str(invisible_s),
            "MARKS": str(self._marks),
            "PYTHONPATH": str(Path(__file__).parents[1]),
            **({} if bug is None else {"TASKS_BUG": bug}),
        }
        self.workers = [Worker(directory / f"worker-{number}.log", self._environ) for number in range(_WORKERS)]
        self._sender_log = directory / "senders.log"
        self.kills: list[Kill] = []

    def run(self, kills: Sequence[str], rng: random.Random, kills_s: float) -> Verdict:
        """Send, kill each of `kills` within `kills_s` seconds, wait until everything has run; judge."""
        with ExitStack() as stack:
            self._broker.start()
            stack.callback(self._broker.kill)
            for worker in self.workers:
                worker.start()
                stack.callback(worker.kill)
            senders = [stack.enter_context(self._sender(number)) for number in range(_SENDERS)]
            for what in kills:
                time.sleep(kills_s / (len(kills) + 1) * rng.uniform(0.5, 1.5))
                self._kill(what, rng)
            self._wait_for(senders)
            self._settle()
        return judge(Marks.read(self._marks), self.kills)

    def send(self) -> None:
        """Send the tasks."""
        with ExitStack() as stack:
            self._wait_for([stack.enter_context(self._sender(number)) for number in range(_SENDERS)])

    def _wait_for(self, senders: Sequence[subprocess.Popen[bytes]]) -> None:
        for sender in senders:
            if sender.wait():
                raise AssertionError(f"a sender has failed: {self._sender_log.read_text()[-3000:]}")

    def _sender(self, number: int) -> subprocess.Popen[bytes]:
        each = -(-self._tasks // _SENDERS)
        first = number * each
        arguments = [first, min(each, self._tasks - first), self._spread_s]
        with self._sender_log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "task_faults.program", *map(str, arguments)],
                env=self._environ,
                stdout=log,
                stderr=log,
            )

    def _kill(self, what: str, rng: random.Random) -> None:
        at = time.time()
        if what == "broker":
            # Until it is back and its clients have seen that, each acknowledgement may be one that is lost.
            self._broker.kill()
            self._broker.start()
            self.kills.append(Kill(what, at, time.time() + 1.0))
            return
        worker = rng.choice(self.workers)
        if what == "worker":
            pids = worker.kill()
            self.kills.append(Kill(what, at, time.time(), pids))
            worker.start()
        elif pids := worker.kill_child(rng):
            self.kills.append(Kill(what, at, time.time(), pids))

    def _settle(self) -> None:
        """Wait until everything that was sent has run, and long enough for what runs again."""

        time.sleep(max(0.0, max(Marks.read(self._marks).due.values(), default=0.0) - time.time()))
        size, since, are_all = 0, time.monotonic(), False
        # What is missing when nothing has run for so long is lost, and what has run comes again no more.
        while time.monotonic() - since < (self._invisible_s + 5.0 if are_all else 4 * self._invisible_s + 20.0):
            time.sleep(0.5)
            now = sum(path.stat().st_size for path in self._marks.iterdir())
            if now != size:
                size, since, are_all = now, time.monotonic(), False
            elif not are_all and time.monotonic() - since > 2.0:
                marks = Marks.read(self._marks)
                are_all = marks.sent <= marks.runs.keys()


def run(
    directory: Path,
    broker: str,
    tasks: int,
    spread_s: float,
    kills: Sequence[str],
    rng: random.Random,
    *,
    kills_s: float = 0.0,
    invisible_s: float = _INVISIBLE_S,
    bug: str | None = None,
) -> tuple[Verdict, list[Kill]]:
    """Make one run in a directory; return the verdict and the kills."""
    scene = Scene(directory, BROKERS[broker](directory), tasks, spread_s, invisible_s, bug)
    return scene.run(kills, rng, kills_s), scene.kills
