"""Reput through its own client: the synchronous API for batches, asyncio for messages that are awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from peers.bodies import Bodies, Tally
from peers.drivers.base import QUIET_S, Driver, at_pace, by_tasks
from reput_client import AckLevel, Message, Producer, blocking
from reput_protocol.properties import TAGS

_CHUNK = 4_096
_PULL = 1_024


class Reput(Driver):
    """A topic of one queue."""

    async def create(self) -> None:
        """Create the topic."""
        with blocking.Admin(self.server) as admin:
            admin.create_topic(self.topic, queues=1)

    async def drop(self) -> None:
        """Delete the topic."""
        with blocking.Admin(self.server) as admin:
            admin.delete_topic(self.topic)

    async def open_producer(self) -> None:
        """Connect what the job's kind needs."""
        ack = AckLevel(self.job.durability)
        self._blocking = blocking.Producer(self.server, group="bench", ack=ack)
        self._blocking.__enter__()
        self._producer = Producer(self.server, group="bench", ack=ack)
        await self._producer.__aenter__()

    async def close_producer(self) -> None:
        """Close both."""
        self._blocking.__exit__(None, None, None)
        await self._producer.aclose()

    async def batched(self, bodies: Bodies) -> None:
        """send_many, a list of bodies and tags at a time."""
        while chunk := bodies.chunk(_CHUNK):
            self._blocking.send_many(self.topic, [body for body, _ in chunk], tags=[tag for _, tag in chunk])

    async def singles(self, bodies: Bodies) -> None:
        """post, one by one; flush raises if any failed."""
        post, topic = self._blocking.post, self.topic
        for body, tag in bodies.each():
            post(Message(topic, body, tag=tag))
        self._blocking.flush()

    async def _send(self, body: bytes, tag: str) -> object:
        return await self._producer.send(Message(self.topic, body, tag=tag))

    async def windowed(self, bodies: Bodies, in_flight: int) -> list[int]:
        """As many tasks on one producer."""
        return await by_tasks(bodies, in_flight, self._send)

    async def paced(self, bodies: Bodies, rate: int) -> None:
        """What is due together goes in one block."""

        async def send(due: list[tuple[bytes, str]]) -> None:
            await self._producer.send_batch([Message(self.topic, body, tag=tag) for body, tag in due])

        await at_pace(bodies, rate, send)

    async def consume(self, tally: Tally) -> None:
        """pull with read-ahead."""
        self._read(tally, 0.0, lambda: None)

    async def tail(self, tally: Tally, ready: Callable[[], None]) -> None:
        """pull that waits at the end."""
        await asyncio.to_thread(self._read, tally, 1.0, ready)

    async def consume_columns(self, tally: Tally) -> bool:
        """pull_columns; bodies and tags are compared by columns, too."""
        with blocking.PullConsumer(self.server, group="bench") as consumer:
            offset = 0
            heard_at = time.perf_counter()
            while not tally.is_complete and time.perf_counter() - heard_at < QUIET_S:
                answer = consumer.pull_columns(self.topic, 0, offset, wait_s=0.0)
                if len(answer.columns):
                    table = answer.columns.body_matrix()
                    assert table is not None, "all bodies of a run are of one size"
                    tally.add_table(table, answer.columns.coded(TAGS))
                    heard_at = time.perf_counter()
                offset = answer.next_begin_offset
        return True

    def _read(self, tally: Tally, wait_s: float, ready: Callable[[], None]) -> None:
        with blocking.PullConsumer(self.server, group="bench") as consumer:
            offset = 0
            consumer.pull(self.topic, queue_id=0, offset=0, max_messages=1, wait_s=0.0)
            ready()
            heard_at = time.perf_counter()
            while not tally.is_complete and time.perf_counter() - heard_at < QUIET_S:
                answer = consumer.pull(
                    self.topic, queue_id=0, offset=offset, max_messages=_PULL, wait_s=wait_s, read_ahead=not wait_s
                )
                for message in answer.messages:
                    tally.add(bytes(message.body), message.tag or "")
                    heard_at = time.perf_counter()
                offset = answer.next_begin_offset
