"""The client processes of a history: producers and the members of groups; and what is done to them.

Whatever is done is written down before it is done, and that it is done after. A context manager: it leaves no process
behind.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from histories.history import Pulse, Recorder
from support.waiting import wait_until

BEGIN_DEADLINE_S: Final = 120.0
"""How long a process may take to begin, on a machine that has other things to do."""
_HERE: Final = Path(__file__).parent


class Child:
    """A process of ours: a member or the producers."""

    def __init__(self, name: str, group: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.group = group
        self.process = process
        self.is_stopped = False


class Clients:
    """Starts, stops and kills clients, and writes that down.

    Args:
        directory: gets `events/` with the history, and logs.
        address: what the clients dial.
        seed: of what the producers send.
        producer: the script that produces, and its first arguments.
        producer_options, member_options: further arguments.
    """

    def __init__(
        self,
        directory: Path,
        address: str,
        *,
        seed: int,
        producer: Sequence[str] = (str(_HERE / "producer.py"),),
        producer_options: Sequence[str] = (),
        member_options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.address = address
        self.events = directory / "events"
        self.events.mkdir(parents=True)
        self.recorder = Recorder(self.events / "runner.jsonl", "runner")
        self._pulse = Pulse(self.recorder)
        self._seed = seed
        self._producer_script = producer
        self._producer_options = producer_options
        self._member_options = member_options
        self._numbers: Counter[str] = Counter()
        self.members: list[Child] = []
        self.producer: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in [*self.members, *([self.producer] if self.producer else [])]:
            child.process.kill()
            child.process.wait()
        self._pulse.stop()
        self.recorder.close()

    def start(self, letter: str, group: str, script: Sequence[str], *options: str) -> Child:
        """Start a script as the next process of that letter: `SCRIPT NAME ADDRESS [GROUP] HISTORY OPTIONS`."""
        self._numbers[letter] += 1
        name = f"{letter}{self._numbers[letter]}"
        own = [name, self.address, *([group] if group else []), str(self.events / f"{name}.jsonl")]
        self.recorder.note("starting", process=name, group=group, options=options)
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *script, *own, *options], stdout=log, stderr=log)
        return Child(name, group, process)

    def join(self, group: str, *options: str) -> Child:
        """Start one more member of a group."""
        script = [str(_HERE / "member.py")]
        child = self.start("m", group, script, *options, *self._member_options)
        self.members.append(child)
        return child

    def until_joined(self) -> None:
        """Wait until all members that were started are members."""
        self._until("joined", lambda: all(self._has_noted(member, "assigned") for member in self.members))

    def until_produced(self) -> None:
        """Wait until the producers have sent something, and the bystander has it."""
        bystander, producer = self.members[0], self.producer
        assert producer is not None
        self._until("sent", lambda: self._has_noted(producer, "acked") and self._has_noted(bystander, "handled"))

    def until_it_listens(self, child: Child) -> None:
        """Wait until a process that was started hears signals, if it is there still."""
        self._until(
            f"begun as {child.name}", lambda: self._has_noted(child, "start") or child.process.poll() is not None
        )

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.watch_for_failures()
            return condition()

        wait_until(holds, BEGIN_DEADLINE_S, what=f"nobody has {what}; see the logs in {self.directory}")

    def _has_noted(self, child: Child, what: str) -> bool:
        path = self.events / f"{child.name}.jsonl"
        return path.exists() and f'"{what}"'.encode() in path.read_bytes()

    def produce(self) -> None:
        """Start producers; those before must have ended."""
        seed = self._seed * 1000 + self._numbers["p"]
        options = ["--seed", str(seed), *self._producer_options]
        self.producer = self.start("p", "", self._producer_script, *options)

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
        # First: on a busy machine it acts before a later note is made.
        self.recorder.note("go-on", process=child.name)
        child.process.send_signal(signal.SIGCONT)
        child.is_stopped = False

    def watch_for_failures(self) -> None:
        """Write down which processes have ended by themselves."""
        for child in [*self.members, *([self.producer] if self.producer else [])]:
            code = child.process.poll()
            if code is not None:
                log = (self.directory / f"{child.name}.log").read_text(errors="replace")
                self.recorder.note("failed", process=child.name, code=code, log=log[-1500:])
                self._gone(child)
