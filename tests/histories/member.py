"""A member of a group in its own process, which records everything that happens to it.

`python member.py NAME ADDRESS GROUP HISTORY [--face trio|asyncio|blocking] [--way run|take] [--concurrency N]
[--bug NAME]` consumes until SIGTERM. What its handlers do is written in the messages (see `terms.Body`).
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

import anyio

import reput_client
import reput_client.blocking
from histories import instruments, planted, terms
from histories.history import Pulse, Recorder
from histories.terms import Body
from reput_client.errors import ConnectFailed, RequestTimeout

_LOOK_S = 0.02
_JOIN_AGAIN_S = 0.1


class Failed(Exception):
    """What a handler raises that cannot handle its message."""


class _Member:
    def __init__(self, arguments: argparse.Namespace, recorder: Recorder) -> None:
        self.arguments = arguments
        self.note = recorder.note
        group = arguments.group
        orderly = group == terms.ORDERLY
        self.options: dict[str, Any] = {
            "group": group,
            "topics": terms.GROUPS[group],
            "orderly": orderly,
            "heartbeat_interval_s": terms.HEARTBEAT_S,
            "commit_interval_s": 1.0,
            "handler_timeout_s": terms.HANDLER_TIMEOUT_S if group == terms.SHARED else 600.0,
            "on_failure": reput_client.GiveBack(
                delay_level=0 if orderly else terms.RETRY_LEVEL,
                attempts_max=terms.ATTEMPTS_MAX,
                after_s=terms.ORDERLY_AGAIN_S,
            ),
        }
        self._assigned: list[list[Any]] | None = None
        self._failures: dict[str, int] = {}

    def look(self, consumer: Any) -> None:
        queues = [[queue.topic, queue.queue_id] for queue in consumer.assignment]
        if queues != self._assigned:
            self._assigned = queues
            self.note("assigned", group=self.arguments.group, queues=queues)

    def begin(self, message: Any) -> dict[str, Any]:
        """Write down that a message is here; return what is known of it, for its end."""
        body = Body.of(message.body)
        queue = message.queue
        facts = {
            "group": self.arguments.group,
            "topic": queue.topic,
            "queue": queue.queue_id,
            "offset": message.queue_offset,
            "uid": body.uid,
            "kind": body.kind,
            "attempt": message.reconsume_times,
        }
        self.note("begun", **facts)
        return facts

    def pause_s(self, facts: dict[str, Any]) -> float:
        """How long the handler takes."""
        if self.arguments.group == terms.BYSTANDER:
            return 0.0
        if Body(facts["uid"], facts["kind"]).hangs(facts["attempt"]):
            return terms.HANG_S if self.arguments.group == terms.SHARED else 1.0
        return self.arguments.hold

    def finish(self, facts: dict[str, Any]) -> None:
        """Write down how it ends, then end it so."""
        attempt = facts["attempt"]
        if self.arguments.group == terms.ORDERLY:  # in order it comes again here
            attempt = self._failures.get(facts["uid"], 0)
        if self.arguments.group != terms.BYSTANDER and Body(facts["uid"], facts["kind"]).fails(attempt):
            self._failures[facts["uid"]] = self._failures.get(facts["uid"], 0) + 1
            self.note("raised", **facts)
            raise Failed(facts["uid"])
        self.note("handled", **facts)

    def forgets(self, facts: dict[str, Any]) -> bool:
        """Whether the message is never marked as done."""
        return self.arguments.group == terms.SHARED and Body(facts["uid"], facts["kind"]).hangs(
            facts["attempt"]
        )

    async def run(self) -> None:
        while True:
            try:
                await self._consume()
                return
            except (ConnectFailed, RequestTimeout) as error:  # while it joins the broker may be down, or slow
                self.note("unconnected", error=str(error))
                await anyio.sleep(_JOIN_AGAIN_S)

    async def _consume(self) -> None:
        async with (
            reput_client.Consumer(self.arguments.address, **self.options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            self.note("start", group=self.arguments.group)

            async def watch() -> None:
                while True:
                    self.look(consumer)
                    await anyio.sleep(_LOOK_S)

            async def leave() -> None:
                with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                    async for _ in signals:
                        self.note("leaving", group=self.arguments.group)
                        consumer.stop()

            async def handle(message: Any) -> None:
                facts = self.begin(message)
                await anyio.sleep(self.pause_s(facts))
                self.finish(facts)

            tasks.start_soon(watch)
            tasks.start_soon(leave)
            if self.arguments.way == "run":
                await consumer.run(handle, concurrency=self.arguments.concurrency)
            else:
                await self._take(consumer)
            tasks.cancel_scope.cancel()
        self.note("end", group=self.arguments.group)

    async def _take(self, consumer: Any) -> None:
        """The same by hand, with some messages that are never acknowledged."""
        while (message := await consumer.take()) is not None:
            facts = self.begin(message)
            if self.forgets(facts):
                continue
            await anyio.sleep(self.pause_s(facts))
            try:
                self.finish(facts)
            except Failed as error:
                await consumer.failed(message, error)
            else:
                consumer.done(message)

    def run_blocking(self) -> None:
        while True:
            try:
                self._consume_blocking()
                return
            except (ConnectFailed, RequestTimeout) as error:
                self.note("unconnected", error=str(error))
                time.sleep(_JOIN_AGAIN_S)

    def _consume_blocking(self) -> None:
        with reput_client.blocking.Consumer(self.arguments.address, **self.options) as consumer:
            self.note("start", group=self.arguments.group)
            ending = threading.Event()

            def leave(*_: object) -> None:
                self.note("leaving", group=self.arguments.group)
                consumer.stop()

            signal.signal(signal.SIGTERM, leave)

            def watch() -> None:
                while not ending.wait(_LOOK_S):
                    self.look(consumer)

            watcher = threading.Thread(target=watch)
            watcher.start()

            def handle(message: Any) -> None:
                facts = self.begin(message)
                time.sleep(self.pause_s(facts))
                self.finish(facts)

            consumer.run(handle, concurrency=self.arguments.concurrency)
            ending.set()
            watcher.join()
        self.note("end", group=self.arguments.group)


def main() -> None:
    """Consume as the command line says."""
    parser = argparse.ArgumentParser()
    for name in ("name", "address", "group", "history"):
        parser.add_argument(name)
    parser.add_argument("--face", default="trio", choices=("trio", "asyncio", "blocking"))
    parser.add_argument("--way", default="run", choices=("run", "take"))
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--hold", type=float, default=0.002, help="how long a handler takes")
    parser.add_argument("--bug", choices=[*planted.BUGS])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until it is a member, which leaves in order
    recorder = Recorder(Path(arguments.history), arguments.name)
    if arguments.bug:
        planted.BUGS[arguments.bug].in_member()
    instruments.install(recorder, arguments.group)
    instruments.shorten_lock_times()
    Pulse(recorder)
    member = _Member(arguments, recorder)
    if arguments.face == "blocking":
        member.run_blocking()
    else:
        anyio.run(member.run, backend=arguments.face)


if __name__ == "__main__":
    main()
