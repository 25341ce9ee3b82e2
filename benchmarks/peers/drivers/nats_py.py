"""NATS JetStream through nats-py: publish_async for batches, publish for messages that are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats
from nats.errors import TimeoutError as NothingCame
from nats.js.api import DeliverPolicy, StorageType, StreamConfig

from peers.bodies import Bodies, Tally
from peers.drivers.base import QUIET_S, Driver, at_pace, by_tasks

_CHUNK = 500


class NatsPy(Driver):
    """A stream with the subjects `TOPIC.TAG`, kept in files."""

    async def _connect(self) -> None:
        self._nats = await nats.connect(f"nats://{self.server}", pending_size=64 << 20, flusher_queue_size=4_096)
        self._stream = self._nats.jetstream(timeout=30)

    async def create(self) -> None:
        """Create the stream."""
        await self._connect()
        await self._stream.add_stream(StreamConfig(self.topic, subjects=[f"{self.topic}.>"], storage=StorageType.FILE))
        await self._nats.close()

    async def drop(self) -> None:
        """Delete the stream."""
        await self._connect()
        await self._stream.delete_stream(self.topic)
        await self._nats.close()

    async def open_producer(self) -> None:
        """Connect."""
        await self._connect()
        await self._stream.account_info()
        self._subjects = {f"t{number}": f"{self.topic}.t{number}" for number in range(16)}

    async def close_producer(self) -> None:
        """Close the connection."""
        await self._nats.close()

    async def batched(self, bodies: Bodies) -> None:
        """publish_async with the client's own limit on what is unacknowledged (4,000)."""
        futures: list[asyncio.Future[object]] = []
        while chunk := bodies.chunk(_CHUNK):
            for body, tag in chunk:
                futures.append(await self._stream.publish_async(self._subjects[tag], body, wait_stall=30.0))
        await asyncio.gather(*futures)

    async def singles(self, bodies: Bodies) -> None:
        """The same: publish_async takes one message."""
        await self.batched(bodies)

    async def _send(self, body: bytes, tag: str) -> object:
        return await self._stream.publish(self._subjects[tag], body)

    async def windowed(self, bodies: Bodies, in_flight: int) -> list[int]:
        """As many tasks on one connection."""
        return await by_tasks(bodies, in_flight, self._send)

    async def paced(self, bodies: Bodies, rate: int) -> None:
        """publish_async when due."""
        futures: list[asyncio.Future[object]] = []

        async def send(due: list[tuple[bytes, str]]) -> None:
            for body, tag in due:
                futures.append(await self._stream.publish_async(self._subjects[tag], body, wait_stall=30.0))

        await at_pace(bodies, rate, send)
        await asyncio.gather(*futures)

    async def consume(self, tally: Tally) -> None:
        """An ordered consumer from the first message."""
        await self._read(tally, DeliverPolicy.ALL, lambda: None)

    async def tail(self, tally: Tally, ready: Callable[[], None]) -> None:
        """An ordered consumer of what is new."""
        await self._read(tally, DeliverPolicy.ALL, ready)

    async def _read(self, tally: Tally, policy: DeliverPolicy, ready: Callable[[], None]) -> None:
        await self._connect()
        subscription = await self._stream.subscribe(
            f"{self.topic}.>", stream=self.topic, ordered_consumer=True, deliver_policy=policy
        )
        ready()
        prefix = len(self.topic) + 1
        try:
            while not tally.is_complete:
                message = await subscription.next_msg(timeout=QUIET_S)
                tally.add(message.data, message.subject[prefix:])
        except NothingCame:
            pass  # the tally says what is missing
        await self._nats.close()
