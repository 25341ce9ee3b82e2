"""A member of a group in a process of its own, for tests that kill it: it writes down what it handles.

`python group_member.py ADDRESS GROUP TOPIC REPORT [--orderly] [--hold SECONDS] [--concurrency N] [--blocking]` consumes
until SIGTERM. Each line of REPORT is one event, written at once so that SIGKILL takes none back:

    start TIME                                 it is a member
    assigned TIME QUEUE,QUEUE,...              the queues of TOPIC that are its own now
    handled TIME QUEUE OFFSET BODY             one message
    end TIME
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

import reput_client
import reput_client.blocking

_LOOK_S = 0.005


@dataclass(frozen=True)
class Event:
    """One line of a report."""

    kind: str
    at: float
    queue_id: int = -1
    offset: int = -1
    body: str = ""
    queues: tuple[int, ...] = ()


class MemberProcess:
    """A running member; `report` is what it has written so far."""

    def __init__(self, address: str, group: str, topic: str, report: Path, *options: str) -> None:
        self.path = report
        self._log = report.with_suffix(".log").open("ab")
        arguments = [address, group, topic, str(report), *options]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def events(self) -> list[Event]:
        """Return what was written; a line that is not whole yet is left out."""
        if not self.path.exists():
            return []
        return [
            _parsed(line) for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]

    def handled(self) -> list[Event]:
        """Return the messages that were handled."""
        return [event for event in self.events() if event.kind == "handled"]

    def queues(self) -> tuple[int, ...]:
        """Return the queues that it has, by its own account."""
        found = [event.queues for event in self.events() if event.kind == "assigned"]
        return found[-1] if found else ()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def end(self, deadline_s: float = 20.0) -> int:
        """Ask it to leave the group; return its exit code."""
        self.process.terminate()
        return self.wait(deadline_s)

    def wait(self, deadline_s: float = 20.0) -> int:
        """Wait for its end."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the member did not end:\n{self.log()}") from None
        finally:
            self._log.close()

    def log(self) -> str:
        """Return what it has printed."""
        return self.path.with_suffix(".log").read_text(errors="replace")


def _parsed(line: str) -> Event:
    kind, at, *rest = line.split()
    match kind:
        case "assigned":
            return Event(kind, float(at), queues=tuple(map(int, rest[0].split(","))) if rest else ())
        case "handled":
            return Event(kind, float(at), int(rest[0]), int(rest[1]), rest[2])
    return Event(kind, float(at))


class _Member:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._file = os.open(arguments.report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._options: dict[str, Any] = {
            "group": arguments.group,
            "topic": arguments.topic,
            "orderly": arguments.orderly,
            "heartbeat_interval_s": arguments.heartbeat,
        }
        self._assigned: list[int] | None = None

    def note(self, *words: object) -> None:
        kind, *rest = map(str, words)
        os.write(self._file, (" ".join([kind, f"{time.monotonic():.6f}", *rest]) + "\n").encode())

    def look(self, consumer: Any) -> None:
        queues = [q.queue_id for q in consumer.assignment if q.topic == self._arguments.topic]
        if queues != self._assigned:
            self._assigned = queues
            self.note("assigned", ",".join(map(str, queues)))

    def handled(self, message: Any) -> None:
        self.note("handled", message.queue_id, message.queue_offset, message.body.decode())

    async def run(self) -> None:
        async with (
            reput_client.Consumer(self._arguments.address, **self._options) as consumer,
            trio.open_nursery() as nursery,
        ):
            self.note("start")

            async def watch() -> None:
                while True:
                    self.look(consumer)
                    await trio.sleep(_LOOK_S)

            async def leave() -> None:
                with trio.open_signal_receiver(signal.SIGTERM) as signals:
                    async for _ in signals:
                        await consumer.aclose()

            async def handle(message: Any) -> None:
                await trio.sleep(self._arguments.hold)
                self.handled(message)

            nursery.start_soon(watch)
            nursery.start_soon(leave)
            await consumer.run(handle, concurrency=self._arguments.concurrency)
            nursery.cancel_scope.cancel()
        self.note("end")

    def run_blocking(self) -> None:
        with reput_client.blocking.Consumer(self._arguments.address, **self._options) as consumer:
            self.note("start")
            ending = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: ending.set())

            def watch() -> None:
                while not ending.wait(_LOOK_S):
                    self.look(consumer)
                consumer.close()

            threading.Thread(target=watch).start()

            def handle(message: Any) -> None:
                time.sleep(self._arguments.hold)
                self.handled(message)

            consumer.run(handle, concurrency=self._arguments.concurrency)
        self.note("end")


def main() -> None:
    """Consume as the command line says."""
    parser = argparse.ArgumentParser()
    for name in ("address", "group", "topic", "report"):
        parser.add_argument(name)
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--blocking", action="store_true")
    parser.add_argument("--hold", type=float, default=0.001)
    parser.add_argument("--heartbeat", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=1)
    member = _Member(parser.parse_args())
    if member._arguments.blocking:
        member.run_blocking()
    else:
        trio.run(member.run)


if __name__ == "__main__":
    main()
