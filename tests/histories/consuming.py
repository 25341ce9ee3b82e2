"""A group member that records what happens to it. What its handlers do is written in the messages (`terms.Body`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

import reput_client
from histories import terms
from histories.terms import Body
from reput_client.errors import ConnectFailed, RequestTimeout

LOOK_S = 0.02
JOIN_AGAIN_S = 0.1


class Failed(Exception):
    """What a handler raises that cannot handle its message."""


class Member:
    """One member.

    Args:
        note: writes an event down.
        way: "run" for handlers, "take" for the same by hand, with some messages that are never acknowledged.
        hold_s: how long a handler takes.
    """

    def __init__(
        self,
        address: str,
        group: str,
        note: Callable[..., float],
        *,
        way: str = "run",
        concurrency: int = 1,
        hold_s: float = 0.002,
    ) -> None:
        self.address = address
        self.group = group
        self.note = note
        self.concurrency = concurrency
        self._way = way
        self._hold_s = hold_s
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
        """Write down which queues the member has, if that has changed."""
        queues = [[queue.topic, queue.queue_id] for queue in consumer.assignment]
        if queues != self._assigned:
            self._assigned = queues
            self.note("assigned", group=self.group, queues=queues)

    def begin(self, message: Any) -> dict[str, Any]:
        """Write down that a message is here; return what is known of it, for its end."""
        body = Body.of(message.body)
        queue = message.queue
        facts = {
            "group": self.group,
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
        if self.group == terms.BYSTANDER:
            return 0.0
        if Body(facts["uid"], facts["kind"]).hangs(facts["attempt"]):
            return terms.HANG_S if self.group == terms.SHARED else 1.0
        return self._hold_s

    def finish(self, facts: dict[str, Any]) -> None:
        """Write down how it ends, then end it so."""
        attempt = facts["attempt"]
        if self.group == terms.ORDERLY:  # in order it comes again here
            attempt = self._failures.get(facts["uid"], 0)
        if self.group != terms.BYSTANDER and Body(facts["uid"], facts["kind"]).fails(attempt):
            self._failures[facts["uid"]] = self._failures.get(facts["uid"], 0) + 1
            self.note("raised", **facts)
            raise Failed(facts["uid"])
        self.note("handled", **facts)

    def forgets(self, facts: dict[str, Any]) -> bool:
        """Whether the message is never marked as done."""
        return self.group == terms.SHARED and Body(facts["uid"], facts["kind"]).hangs(facts["attempt"])

    async def run(self, until_leaving: Callable[[], Awaitable[None]]) -> None:
        """Consume until `until_leaving` returns."""
        while True:
            try:
                await self._consume(until_leaving)
                return
            except (ConnectFailed, RequestTimeout) as error:  # while it joins the broker may be down, or slow
                self.note("unconnected", error=str(error))
                await anyio.sleep(JOIN_AGAIN_S)

    async def _consume(self, until_leaving: Callable[[], Awaitable[None]]) -> None:
        async with reput_client.Consumer(self.address, **self.options) as consumer, anyio.create_task_group() as tasks:
            self.note("start", group=self.group)

            async def watch() -> None:
                while True:
                    self.look(consumer)
                    await anyio.sleep(LOOK_S)

            async def leave() -> None:
                await until_leaving()
                self.note("leaving", group=self.group)
                consumer.stop()

            async def handle(message: Any) -> None:
                facts = self.begin(message)
                await anyio.sleep(self.pause_s(facts))
                self.finish(facts)

            tasks.start_soon(watch)
            tasks.start_soon(leave)
            if self._way == "run":
                await consumer.run(handle, concurrency=self.concurrency)
            else:
                await self._take(consumer)
            tasks.cancel_scope.cancel()
        self.note("end", group=self.group)

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
                message.ack()
