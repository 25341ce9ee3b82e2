"""Redis Streams through redis-py with hiredis: pipelines for batches, asyncio for messages that are awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import redis
import redis.asyncio

from peers.bodies import Bodies, Tally
from peers.drivers.base import QUIET_S, Driver, at_pace, by_tasks

_PIPELINE = 500
_READ = 1_000
_BLOCK_MS = 1_000


class RedisPy(Driver):
    """A stream is a key; an entry has the fields `b` (body) and `t` (tag)."""

    def _address(self) -> tuple[str, int]:
        host, port = self.server.split(":")
        return host, int(port)

    def _client(self) -> redis.Redis:
        host, port = self._address()
        return redis.Redis(host=host, port=port)

    async def create(self) -> None:
        """A stream begins with its first entry."""

    async def drop(self) -> None:
        """Delete the key."""
        self._client().unlink(self.topic)

    async def open_producer(self) -> None:
        """Connect the synchronous and the asyncio client."""
        host, port = self._address()
        self._sync = self._client()
        self._sync.ping()
        self._pool = redis.asyncio.Redis(host=host, port=port, max_connections=max(64, self.job.in_flight))
        await self._pool.ping()

    async def close_producer(self) -> None:
        """Close both clients."""
        self._sync.close()
        await self._pool.aclose()

    async def batched(self, bodies: Bodies) -> None:
        """Pipelines of XADD without MULTI."""
        while chunk := bodies.chunk(_PIPELINE):
            pipeline = self._sync.pipeline(transaction=False)
            for body, tag in chunk:
                pipeline.xadd(self.topic, {"b": body, "t": tag})
            pipeline.execute()

    async def singles(self, bodies: Bodies) -> None:
        """There is no gathering: 64 tasks, each with its own connection of the pool."""
        await by_tasks(bodies, 64, self._send)

    async def _send(self, body: bytes, tag: str) -> object:
        return await self._pool.xadd(self.topic, {"b": body, "t": tag})

    async def windowed(self, bodies: Bodies, in_flight: int) -> list[int]:
        """As many tasks, each with its own connection of the pool."""
        return await by_tasks(bodies, in_flight, self._send)

    async def paced(self, bodies: Bodies, rate: int) -> None:
        """What is due together goes in one pipeline."""

        async def send(due: list[tuple[bytes, str]]) -> None:
            pipeline = self._pool.pipeline(transaction=False)
            for body, tag in due:
                pipeline.xadd(self.topic, {"b": body, "t": tag})
            await pipeline.execute()

        await at_pace(bodies, rate, send)

    async def consume(self, tally: Tally) -> None:
        """XREAD from the beginning."""
        self._read(tally, "0", lambda: None)

    async def tail(self, tally: Tally, ready: Callable[[], None]) -> None:
        """XREAD that blocks; it begins after the last entry."""
        await asyncio.to_thread(self._read, tally, "0", ready)

    def _read(self, tally: Tally, last: bytes | str, ready: Callable[[], None]) -> None:
        client = self._client()
        client.ping()
        ready()
        heard_at = time.perf_counter()
        while not tally.is_complete and time.perf_counter() - heard_at < QUIET_S:
            answer = client.xread({self.topic: last}, count=_READ, block=_BLOCK_MS)
            for _, entries in answer or ():
                for entry_id, fields in entries:
                    tally.add(fields[b"b"], fields[b"t"].decode())
                    last = entry_id
                heard_at = time.perf_counter()
        client.close()
