"""The processes of one history: a broker, its producers, the members of three groups; and what is done to them.

Whatever is done is written down before it is done, and that it is done after. A context manager: it leaves no process
behind.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from broker_process import BrokerProcess
from histories import terms
from histories.history import Pulse, Recorder
from reput_client.blocking import Admin

_HERE = Path(__file__).parent
_BEGIN_DEADLINE_S = 120.0
"""How long a process may take to begin, on a machine that has other things to do."""
ENVIRONMENT = {
    "REPUT_GROUPS__HEARTBEAT_TIMEOUT": f"{terms.HEARTBEAT_TIMEOUT_S}s",
    "REPUT_TRANSACTIONS__TIMEOUT": "500ms",
    "REPUT_TRANSACTIONS__CHECK_INTERVAL": "300ms",
    "REPUT_TRANSACTIONS__CHECK_MAX": "10000",
    "REPUT_TRANSACTIONS__OP_INTERVAL": "100ms",
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
}


class Child:
    """A process of ours: a member or the producers."""

    def __init__(self, name: str, group: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.group = group
        self.process = process
        self.is_stopped = False


class Scene:
    """Starts, stops and kills, and writes that down."""

    def __init__(
        self, directory: Path, *, seed: int, bug: str | None = None, kinds: str | None = None
    ) -> None:
        self.directory = directory
        self.events = directory / "events"
        self.events.mkdir(parents=True)
        self.recorder = Recorder(self.events / "runner.jsonl", "runner")
        self._pulse = Pulse(self.recorder)
        self._seed = seed
        self._bug = ["--bug", bug] if bug else []
        self._kinds = ["--kinds", kinds] if kinds else []
        self._numbers = {"m": 0, "p": 0}
        self.members: list[Child] = []
        self.producer: Child | None = None
        entry = [
            sys.executable,
            str(_HERE / "broker_entry.py"),
            "--history",
            str(self.events / "broker.jsonl"),
        ]
        self.broker = BrokerProcess(
            directory / "store", environment=ENVIRONMENT, command=[*entry, *self._bug]
        )

    def __enter__(self) -> Self:
        try:
            self.start_broker()
            with Admin(self.broker.address, timeout_s=30.0) as admin:
                for topic, queues in terms.TOPICS.items():
                    admin.create_topic(topic, queues=queues)
        except BaseException:
            self.broker.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in [*self.members, *([self.producer] if self.producer else [])]:
            child.process.kill()
            child.process.wait()
        self.broker.kill()
        self._pulse.stop()
        self.recorder.close()

    # -- the broker --------------------------------------------------------------------------------------------

    def start_broker(self) -> None:
        """Start it and wait until it serves."""
        self.broker.start()
        self.broker.wait_ready(_BEGIN_DEADLINE_S)
        self.recorder.note("broker-up")

    def end_broker(self, how: signal.Signals, down_s: float) -> None:
        """End it, with SIGKILL or SIGTERM, and start it again after a while."""
        self.recorder.note("broker-down", how=how.name)
        if how is signal.SIGKILL:
            self.broker.kill()
        elif self.broker.terminate() != 0:
            self.recorder.note("failed", process="broker", log=self.broker.log_tail())
        time.sleep(down_s)
        self.start_broker()

    # -- members and producers ---------------------------------------------------------------------------------

    def _start(self, letter: str, group: str, script: str, *options: str) -> Child:
        self._numbers[letter] += 1
        name = f"{letter}{self._numbers[letter]}"
        own = [name, self.broker.address, *([group] if group else []), str(self.events / f"{name}.jsonl")]
        self.recorder.note("starting", process=name, group=group, options=options)
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(_HERE / script), *own, *options], stdout=log, stderr=log
            )
        return Child(name, group, process)

    def join(self, group: str, *options: str) -> Child:
        """Start one more member of a group."""
        child = self._start("m", group, "member.py", *options, *self._bug)
        self.members.append(child)
        return child

    def until_joined(self) -> None:
        """Wait until all members that were started are members."""
        self._until("joined", lambda: all(self._has_noted(member, "assigned") for member in self.members))

    def until_produced(self) -> None:
        """Wait until the producers have sent something, and the bystander has it."""
        bystander, producer = self.members[0], self.producer
        assert producer is not None
        self._until(
            "sent", lambda: self._has_noted(producer, "acked") and self._has_noted(bystander, "handled")
        )

    def until_it_listens(self, child: Child) -> None:
        """Wait until a process that was started hears signals, if it is there still."""
        self._until(
            f"begun as {child.name}",
            lambda: self._has_noted(child, "start") or child.process.poll() is not None,
        )

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _BEGIN_DEADLINE_S
        while not condition():
            self.watch_for_failures()
            if time.monotonic() > until:
                raise AssertionError(f"nobody has {what}; see the logs in {self.directory}")
            time.sleep(0.05)

    def _has_noted(self, child: Child, what: str) -> bool:
        path = self.events / f"{child.name}.jsonl"
        return path.exists() and f'"{what}"'.encode() in path.read_bytes()

    def produce(self) -> None:
        """Start producers; those before must have ended."""
        seed = self._seed * 1000 + self._numbers["p"]
        self.producer = self._start("p", "", "producer.py", "--seed", str(seed), *self._kinds)

    def of(self, group: str) -> list[Child]:
        """Return the running members of a group."""
        return [member for member in self.members if member.group == group]

    def kill(self, child: Child) -> None:
        """End a process with SIGKILL, in any state."""
        self.recorder.note("kill", process=child.name)
        child.process.kill()
        child.process.wait()
        self.recorder.note("killed", process=child.name)
        self._gone(child)

    def leave(self, *children: Child, deadline_s: float = 60.0) -> None:
        """Ask processes to end in order; one that does not, or not well, is a failure."""
        for child in children:
            self.recorder.note("asked-to-leave", process=child.name)
            child.process.terminate()
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(deadline_s)
            code = child.process.poll()
            if code is None:
                child.process.kill()
                child.process.wait()
            self.recorder.note("left", process=child.name, code=code)
            if code != 0 and (code != -signal.SIGTERM or self._has_noted(child, "start")):
                log = (self.directory / f"{child.name}.log").read_text(errors="replace")
                self.recorder.note("failed", process=child.name, code=code, log=log[-1500:])
            self._gone(child)

    def _gone(self, child: Child) -> None:
        if child in self.members:
            self.members.remove(child)
        if child is self.producer:
            self.producer = None

    def stop(self, child: Child) -> None:
        """Have a process stand still."""
        self.recorder.note("stop", process=child.name)
        child.process.send_signal(signal.SIGSTOP)
        child.is_stopped = True

    def wake(self, child: Child) -> None:
        """Resume a process."""
        child.process.send_signal(signal.SIGCONT)
        self.recorder.note("go-on", process=child.name)
        child.is_stopped = False

    def watch_for_failures(self) -> None:
        """Write down which processes have ended by themselves."""
        for child in list(self.members):
            code = child.process.poll()
            if code is not None:
                log = (self.directory / f"{child.name}.log").read_text(errors="replace")
                self.recorder.note("failed", process=child.name, code=code, log=log[-1500:])
                self._gone(child)
