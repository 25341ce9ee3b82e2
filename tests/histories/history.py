"""A history: requests, answers and actions of many processes, one event per line, one file per process.

Every event is appended with one write before what it announces is done (an invoke), or right after it has happened (a
result), so SIGKILL takes at most the line that was being written. Times are of the machine's monotonic clock, which is
the same for all processes.

    {"at": 123.456, "who": "m3", "what": "begun", "group": "shared", "topic": "orders", ...}

A suspended process reports that, too (`Pulse`), so that a judge can tell a slow machine from a broken promise.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PULSE_S: Final = 0.05
STOOD_S: Final = 0.3
"""Gap from which a process counts as suspended."""

EVENTS: Final = frozenset(
    {
        *("acked", "act", "ask-offset", "asked-to-leave", "assigned", "back", "back-failed", "backed"),
        *("begin", "begun", "broker-down", "broker-up", "commit", "committed", "decided", "dies", "end"),
        *("failed", "fault", "follows", "given-up", "go-on", "handed-over", "handled", "healed", "isolated"),
        *("kill", "killed", "leads", "leave", "leaving", "led", "left", "let-go", "lock", "locked", "log"),
        *("may-lose", "not-handed-over", "not-reached", "offset", "overruled", "pop-acks", "pop-changed"),
        *("pop-changes", "pop-done", "pop-sends", "pop-sent", "popped", "promoted", "put", "raised", "read"),
        *("refused", "settled", "settling", "start", "starting", "stood", "stop", "stored", "taken"),
        *("unconnected", "unknown", "unlock", "unread", "up", "wanted"),
    }
)
"""What the harnesses that write a history note; `Facts` takes no other."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line: when, who, what (one of `EVENTS`), and the facts."""

    at: float
    who: str
    what: str
    facts: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return a fact, or `otherwise`."""
        return self.facts.get(name, otherwise)

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.at:.3f} {self.who} {self.what} {facts}"


class Recorder:
    """Appends events to its own file. May be called from several threads."""

    def __init__(self, path: Path, who: str) -> None:
        self.who = who
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, **facts: Any) -> float:
        """Write an event down; return its time."""
        at = time.monotonic()
        os.write(self._file, (json.dumps({"at": round(at, 6), "who": self.who, "what": what, **facts}) + "\n").encode())
        return at

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Pulse:
    """A thread that notes when its process has stood still: stopped by a signal, or without a processor."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(PULSE_S):
            now = time.monotonic()
            if now - last > STOOD_S:
                self._recorder.note("stood", since=round(last, 6))
            last = now

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()


class Tail:
    """Reads all files of a directory as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_to: dict[Path, int] = {}

    def new(self) -> Iterator[Event]:
        """Return what has come since the last call; a line that is not whole yet is left for the next."""
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read_to.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read_to[path] = self._read_to.get(path, 0) + len(whole)
            for line in whole.splitlines():
                yield parsed(line)


def parsed(line: bytes | str) -> Event:
    """Return the event that a line holds."""
    facts = json.loads(line)
    return Event(facts.pop("at"), facts.pop("who"), facts.pop("what"), facts)


def read(directory: Path) -> list[Event]:
    """Return all events of a directory, in order of time."""
    return sorted(Tail(directory).new(), key=lambda event: event.at)
