"""A member of a group in its own process, for tests that kill it; it records what it handles.

`python group_member.py ADDRESS GROUP TOPIC REPORT [--face trio|asyncio|blocking] [--orderly] [--pop] ...`
consumes until SIGTERM, and ends once the current messages are handled. Each line of REPORT is one event, written at
once so that SIGKILL takes none back:

    start TIME                                 it is a member
    assigned TIME QUEUE,QUEUE,...              the queues of TOPIC that are its own now
    begun TIME QUEUE OFFSET BODY               a handler was called with a message
    handled TIME QUEUE OFFSET BODY             and has handled it
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
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

import reput_client
import reput_client.blocking
from support.short_locks import shorten_in_members

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
    """A running member; `report` is what it has written so far.

    As `init` it is process 1 of a process namespace of its own, as in a container (Linux, root): the kernel drops every
    signal to it that it has no handler for.
    """

    def __init__(self, address: str, group: str, topic: str, report: Path, *options: str, init: bool = False) -> None:
        self.path = report
        self._events: list[Event] = []
        self._read_to = 0
        self._log = report.with_suffix(".log").open("ab")
        arguments = [address, group, topic, str(report), *options]
        self._init = init
        namespace = ["unshare", "--pid", "--fork", "--kill-child"] if init else []
        self.process = subprocess.Popen(
            [*namespace, sys.executable, __file__, *arguments],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    def events(self) -> list[Event]:
        """Return what was written; a line that is not whole yet is left out."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read_to)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read_to += len(whole)
            self._events += [_parsed(line) for line in whole.decode().splitlines()]
        return self._events

    def handled(self) -> list[Event]:
        """Return the messages that were handled."""
        return [event for event in self.events() if event.kind == "handled"]

    def queues(self) -> tuple[int, ...]:
        """Return the queues that it has, by its own account."""
        for event in reversed(self.events()):
            if event.kind == "assigned":
                return event.queues
        return ()

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self._init:
            pid = self.process.pid
            (member,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            os.kill(int(member), number)
        else:
            self.process.send_signal(number)

    def end(self, deadline_s: float = 20.0) -> int:
        """Ask it to leave the group; return its exit code."""
        self.process.terminate()
        return self.wait(deadline_s)

    def kill(self) -> None:
        """End it, in any state."""
        self.process.kill()
        self.process.wait()
        self._log.close()

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
        case "begun" | "handled":
            return Event(kind, float(at), int(rest[0]), int(rest[1]), rest[2])
    return Event(kind, float(at))


class _Member:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self._file = os.open(arguments.report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.options: dict[str, Any] = {
            "group": arguments.group,
            "topic": arguments.topic,
            "orderly": arguments.orderly,
            **({} if arguments.pop else {"heartbeat_interval_s": arguments.heartbeat}),
            "on_failure": reput_client.RetryHere(0.05) if arguments.fail else None,
        }
        self._assigned: list[int] | None = None
        self._failed: set[str] = set()

    def note(self, *words: object) -> None:
        kind, *rest = map(str, words)
        os.write(self._file, (" ".join([kind, f"{time.monotonic():.6f}", *rest]) + "\n").encode())

    def kind_in(self, api: Any) -> Any:
        return api.PopConsumer if self.arguments.pop else api.Consumer

    def look(self, consumer: Any) -> None:
        if self.arguments.pop:
            return  # it has no queues
        queues = [q.queue_id for q in consumer.assignment if q.topic == self.arguments.topic]
        if queues != self._assigned:
            self._assigned = queues
            self.note("assigned", ",".join(map(str, queues)))

    def begin(self, message: Any) -> None:
        self.note("begun", message.queue_id, message.queue_offset, message.body.decode())

    def finish(self, message: Any) -> None:
        body = message.body.decode()
        if self.arguments.fail and body not in self._failed and zlib.crc32(message.body) % 100 < self.arguments.fail:
            self._failed.add(body)
            raise ValueError(f"{body} is not handled the first time")
        self.note("handled", message.queue_id, message.queue_offset, body)

    async def run(self) -> None:
        async with (
            self.kind_in(reput_client)(self.arguments.address, **self.options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            self.note("start")

            async def watch() -> None:
                while True:
                    self.look(consumer)
                    await anyio.sleep(_LOOK_S)

            async def handle(message: Any) -> None:
                self.begin(message)
                await anyio.sleep(self.arguments.hold)
                self.finish(message)

            tasks.start_soon(watch)
            await consumer.run(handle, concurrency=self.arguments.concurrency)
            tasks.cancel_scope.cancel()
        self.note("end")

    def run_blocking(self) -> None:
        with self.kind_in(reput_client.blocking)(self.arguments.address, **self.options) as consumer:
            self.note("start")
            ending = threading.Event()

            def watch() -> None:
                while not ending.wait(_LOOK_S):
                    self.look(consumer)

            watcher = threading.Thread(target=watch)
            watcher.start()

            def handle(message: Any) -> None:
                self.begin(message)
                time.sleep(self.arguments.hold)
                self.finish(message)

            if self.arguments.loop:
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: consumer.stop())
                for message in consumer:
                    handle(message)
            else:
                consumer.run(handle, concurrency=self.arguments.concurrency)
            ending.set()
            watcher.join()
        self.note("end")


def main() -> None:
    """Consume as the command line says."""
    parser = argparse.ArgumentParser()
    for name in ("address", "group", "topic", "report"):
        parser.add_argument(name)
    parser.add_argument("--face", default="trio", choices=("trio", "asyncio", "blocking"))
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--pop", action="store_true", help="be a PopConsumer")
    parser.add_argument("--loop", action="store_true", help="iterate, with own signal handlers; blocking")
    parser.add_argument("--hold", type=float, default=0.001, help="how long a handler takes")
    parser.add_argument("--fail", type=int, default=0, help="so many of 100 messages fail once")
    parser.add_argument("--heartbeat", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=1)
    arguments = parser.parse_args()
    shorten_in_members()
    member = _Member(arguments)
    if arguments.face == "blocking":
        member.run_blocking()
    else:
        anyio.run(member.run, backend=arguments.face)


if __name__ == "__main__":
    main()
