"""The scene of a kind of fault: a directory, a broker on it, and drivers that are started and may die."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias
from unittest.mock import patch

from pipeline_faults.outcomes import Outcome
from pipeline_faults.points import BUG, MARKS, POINT
from reput_client import TLS
from reput_client.blocking import Admin
from support.broker_process import BrokerProcess
from support.cluster_of_three import ClusterOfThree
from support.tls_files import make_tls_files
from support.waiting import wait_until

HERE: Final = Path(__file__).resolve().parent
PATIENCE_S: Final = 900.0
"""So long a driver may take on a machine that is busy."""
KILLED: Final = -signal.SIGKILL
_DYING_BROKER: Final = HERE / "dying_broker.py"
_SECRET: Final = "secret-of-the-scene"
Ports: TypeAlias = tuple[int, int]
"""Of a broker: for clients, and for its slaves."""


@dataclass(frozen=True)
class Trial:
    """What a kind is given.

    Args:
        random: its choices.
        points: where something dies; all points of the kind if there are none.
        bug: the planted bug.
        minutes: how long a kind takes that runs for a time.
    """

    random: random.Random
    points: tuple[str, ...] = ()
    bug: str = ""
    minutes: float = 5.0

    def chosen(self, points: Sequence[str]) -> list[str]:
        """Return those of the points that are to be tried, in a random order."""
        found = [point for point in points if not self.points or point in self.points]
        self.random.shuffle(found)
        return found

    def bodies(self, count: int) -> list[str]:
        """Return distinct texts of various sizes."""
        return [f"{number:09d}-{self.random.randbytes(self.random.randrange(1, 40)).hex()}" for number in range(count)]


class Scene:
    """A broker on a directory, and drivers."""

    def __init__(self, directory: Path, trial: Trial) -> None:
        self.directory = directory
        self.marks = directory / "marks"
        self.marks.mkdir()
        self.log = directory / "driver.log"
        self._trial = trial
        environment = {"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "4MiB", "REPUT_STORE__FLUSH": "sync"}
        if trial.bug:
            environment[BUG] = trial.bug
        self._environment = environment
        self.broker = self._new_broker("none")

    @property
    def addresses(self) -> str:
        """Where clients find the broker."""
        return self.broker.address

    @property
    def master_address(self) -> str:
        """Where the broker is that has everything."""
        return self.broker.address

    def _new_broker(self, step: str, like: BrokerProcess | None = None) -> BrokerProcess:
        return BrokerProcess(
            self.directory / "store",
            port=like.port if like else None,
            http_port=like.http_port if like else None,
            environment=self._environment,
            command=[sys.executable, str(_DYING_BROKER), step],
        )

    def change_broker(self, step: str) -> BrokerProcess:
        """Kill the broker if it runs, and start one at its address that dies at a step."""
        self.broker.kill()
        self.broker = self._new_broker(step, self.broker)
        self.broker.start()
        return self.broker

    def wait_broker(self) -> None:
        """Wait until the broker answers, whichever it is by then."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.broker.wait_ready(PATIENCE_S)
            except AssertionError:  # it dies, or is being changed
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.05)
            else:
                return

    def drive(self, script: str, *arguments: str, point: str = "none:0") -> int:
        """Run a driver to its end, and return how it ended."""
        with self.driving(script, *arguments, point=point) as driver:
            return driver.wait(PATIENCE_S)

    @contextmanager
    def driving(self, script: str, *arguments: str, point: str = "none:0") -> Iterator[subprocess.Popen[bytes]]:
        """Start a driver, and kill what is left of it at the end."""
        path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, POINT: point, MARKS: str(self.marks)}
        environment[BUG] = self._trial.bug
        with self.log.open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, str(HERE / script), *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            try:
                yield driver
            finally:
                if driver.poll() is None:
                    os.killpg(driver.pid, signal.SIGKILL)
                    driver.wait()

    def expect_end(self, outcome: Outcome, what: str, wanted: int, ended: int | None) -> None:
        """Note a violation if a driver did not end as wanted."""
        outcome.expect(ended == wanted, "driver end", f"{what}: with {ended}, not {wanted}:\n{self.tail()}")

    def tail(self) -> str:
        """The last output of the drivers."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    @contextmanager
    def breaking(self, steps: Sequence[str], outcome: Outcome) -> Iterator[None]:
        """Have the broker die at one step after the other while the body runs, and restart each time."""
        self.change_broker(steps[0])
        self.wait_broker()
        ended = threading.Event()
        breaker = threading.Thread(target=self._break, args=(steps, ended, outcome))
        breaker.start()
        try:
            yield
        finally:
            ended.set()
            breaker.join()

    def _break(self, steps: Sequence[str], ended: threading.Event, outcome: Outcome) -> None:
        for number, step in enumerate(steps):
            broker = self.change_broker(step) if number else self.broker
            while not ended.wait(0.02) and broker.running:
                pass
            if broker.running:
                outcome.expect(False, "step reached", f"{step} of the broker, before the driver ended")
                break
            code = broker.wait(1.0)
            outcome.rounds += 1
            outcome.expect(code == KILLED, "broker end", f"{step}: with {code}:\n{broker.log_tail()}")
        self.change_broker("none")
        self.broker.wait_ready(PATIENCE_S)


class GroupScene(Scene):
    """A group of three brokers with an etcd, and drivers. It runs within the context."""

    def __init__(self, directory: Path, trial: Trial, *, secured: bool = False) -> None:
        super().__init__(directory, trial)
        self.tls: TLS | None = None
        if secured:
            files = make_tls_files(directory)
            self.tls = TLS(str(files.ca))
            self._environment |= {
                # What counts the rows at the end does without TLS.
                "REPUT_TLS__MODE": "permissive",
                "REPUT_TLS__CERT": str(files.broker),
                "REPUT_TLS__CA": str(files.ca),
                "REPUT_TLS__CONNECT": "true",
                "REPUT_TLS__HTTP_MODE": "off",
                "REPUT_ACCESS__ENABLED": "true",
                "REPUT_ACCESS__ADMIN_SECRET": _SECRET,
            }
        self._step = directory / "step"
        self._step.write_text("")
        command = [sys.executable, str(_DYING_BROKER), f"@{self._step}"]
        self._cluster = ClusterOfThree(directory, environment=self._environment, command=command)

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.__exit__(kind, error, trace)

    @property
    def addresses(self) -> str:
        return ",".join(self._cluster.addresses)

    @property
    def master_address(self) -> str:
        return self._cluster.brokers[self._cluster.wait_master()].address

    def lose_master(
        self,
        outcome: Outcome,
        step: str,
        driver: subprocess.Popen[bytes],
        amid: Callable[[Ports, list[Ports]], AbstractContextManager[None]] | None = None,
    ) -> None:
        """Kill the master, wait for another one, and have the old one return as a slave.

        Args:
            step: at which the master dies of itself; with an empty one it is killed at once.
            driver: what makes it come to the step, as long as it runs.
            amid: what happens meanwhile, given the ports of the master and of all.
        """
        cluster = self._cluster
        old = cluster.wait_in_sync(0, 1, 2)
        ports = [(broker.port, ha) for broker, ha in zip(cluster.brokers, cluster.ha_ports, strict=True)]
        with nullcontext() if amid is None else amid(ports[old], ports):
            master = cluster.wait_master()  # may be another one by now
            broker = cluster.brokers[master]
            if step:
                self._step.write_text(step)
                with suppress(AssertionError):
                    wait_until(lambda: not broker.running or driver.poll() is not None, PATIENCE_S)
                self._step.write_text("")
                outcome.expect(not broker.running, "step reached", f"{step} of the master")
            broker.kill()
            if amid is None:  # otherwise it may have been the only one in sync, and no other can take over
                outcome.expect(cluster.wait_master() != master, "failover", "a killed broker is still the master")
        broker.start()
        cluster.wait_master()

    @contextmanager
    def losing_its_master(self, step: str, outcome: Outcome) -> Iterator[None]:
        """Have the master die at a step while the body runs, and return as a slave afterwards."""
        cluster = self._cluster
        old = cluster.wait_in_sync(0, 1, 2)
        self._step.write_text(step)
        ended = threading.Event()

        def wait() -> None:
            while cluster.brokers[old].running and not ended.wait(0.02):
                pass
            self._step.write_text("")

        waiter = threading.Thread(target=wait)
        waiter.start()
        try:
            yield
        finally:
            ended.set()
            waiter.join()
        died = not cluster.brokers[old].running
        outcome.expect(died, "step reached", f"{step} of the master, before the driver ended")
        if died:
            outcome.rounds += 1
            outcome.expect(cluster.wait_master() != old, "failover", f"{step}: there is no other master")
            cluster.brokers[old].kill()  # so that it can be started again
            cluster.brokers[old].start()


@contextmanager
def group_scene(trial: Trial, topic: str, queues: int, *, secured: bool = False) -> Iterator[GroupScene]:
    """A scene whose group runs and has a topic; `secured` with TLS and a user, who is this process's meanwhile."""
    with (
        patch.dict(os.environ, {"REPUT_USER": "admin", "REPUT_SECRET": _SECRET} if secured else {}),
        tempfile.TemporaryDirectory(prefix="reput-faults-", ignore_cleanup_errors=True) as directory,
        GroupScene(Path(directory), trial, secured=secured) as found,
    ):
        with Admin(found.addresses, tls=found.tls) as admin:
            admin.create_topic(topic, queues=queues)
        yield found


@contextmanager
def scene(trial: Trial, topic: str, queues: int) -> Iterator[Scene]:
    """A scene whose broker runs and has a topic."""
    with tempfile.TemporaryDirectory(prefix="reput-faults-", ignore_cleanup_errors=True) as directory:
        found = Scene(Path(directory), trial)
        found.broker.start()
        try:
            found.broker.wait_ready(PATIENCE_S)
            with Admin(found.broker.address) as admin:
                admin.create_topic(topic, queues=queues)
            yield found
        finally:
            found.broker.kill()


class Work(Protocol):
    """So many batches of work for a driver, which continues with the rest whenever it is started again."""

    def __init__(self, found: Scene, trial: Trial, batches: int) -> None: ...

    def drive(self, point: str = "none:0") -> int:
        """Run a driver, which dies or fails at a point, and return how it ended."""
        ...

    def check(self, outcome: Outcome, what: str) -> None:
        """Compare what should be there with what is there."""
        ...


def kill_driver(
    trial: Trial, points: Sequence[str], work: type[Work], topic: str, queues: int, *, last: str = "none:0"
) -> Outcome:
    """Kill the driver once at each point, each time in another batch; the last one runs to the end, with `last`."""
    outcome = Outcome()
    chosen = trial.chosen(points)
    with scene(trial, topic, queues) as found:
        driven = work(found, trial, len(chosen) + 1)
        for number, point in enumerate(chosen):
            outcome.rounds += 1
            found.expect_end(outcome, point, KILLED, driven.drive(f"{point}:{number}"))
        found.expect_end(outcome, "the last", 0, driven.drive(last))
        driven.check(outcome, "driver killed")
    return outcome


def kill_broker(trial: Trial, steps: Sequence[str], work: type[Work], topic: str, queues: int) -> Outcome:
    """Kill the broker at every step, a batch for each, while one driver continues."""
    outcome = Outcome()
    chosen = trial.chosen(steps)
    with scene(trial, topic, queues) as found:
        driven = work(found, trial, len(chosen) + 1)
        with found.breaking(chosen, outcome):
            ended = driven.drive()
        found.expect_end(outcome, "the broker killed", 0, ended)
        driven.check(outcome, "broker killed")
    return outcome
