"""Apache Kafka through aiokafka, which is asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from peers.bodies import Bodies, Tally
from peers.drivers.base import QUIET_S, Driver, at_pace, by_tasks

_CHUNK = 500
_READ = 1_000


class AioKafka(Driver):
    """A topic of one partition; the tag is the key; acks=all, which one broker is all of."""

    async def create(self) -> None:
        """Create the topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.server)
        await admin.start()
        await admin.create_topics([NewTopic(self.topic, 1, 1)])
        await admin.close()

    async def drop(self) -> None:
        """Delete the topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.server)
        await admin.start()
        await admin.delete_topics([self.topic])
        await admin.close()

    async def open_producer(self) -> None:
        """Connect and look the topic up."""
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self.server,
            acks="all",
            linger_ms=0 if self.job.kind == "windowed" else 5,
            max_batch_size=1 << 18,
        )
        await self._producer.start()
        await self._producer.partitions_for(self.topic)

    async def close_producer(self) -> None:
        """Stop the producer."""
        await self._producer.stop()

    async def batched(self, bodies: Bodies) -> None:
        """send, which gathers; a chunk's futures are awaited together."""
        futures: list[asyncio.Future[object]] = []
        while chunk := bodies.chunk(_CHUNK):
            futures += [await self._producer.send(self.topic, body, tag.encode(), partition=0) for body, tag in chunk]
            if len(futures) > 10 * _CHUNK:
                await asyncio.gather(*futures)
                futures.clear()
        await asyncio.gather(*futures)

    async def singles(self, bodies: Bodies) -> None:
        """The same: send takes one message."""
        await self.batched(bodies)

    async def _send(self, body: bytes, tag: str) -> object:
        return await self._producer.send_and_wait(self.topic, body, tag.encode(), partition=0)

    async def windowed(self, bodies: Bodies, in_flight: int) -> list[int]:
        """As many tasks on one producer."""
        return await by_tasks(bodies, in_flight, self._send)

    async def paced(self, bodies: Bodies, rate: int) -> None:
        """send when due."""
        futures: list[asyncio.Future[object]] = []

        async def send(due: list[tuple[bytes, str]]) -> None:
            for body, tag in due:
                futures.append(await self._producer.send(self.topic, body, tag.encode(), partition=0))

        await at_pace(bodies, rate, send)
        await asyncio.gather(*futures)

    async def consume(self, tally: Tally) -> None:
        """getmany, a thousand at a time."""
        await self._read(tally, lambda: None)

    async def tail(self, tally: Tally, ready: Callable[[], None]) -> None:
        """As `consume`, started before the first message is sent."""
        await self._read(tally, ready)

    async def _read(self, tally: Tally, ready: Callable[[], None]) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.server, enable_auto_commit=False, max_partition_fetch_bytes=4 << 20
        )
        await consumer.start()
        partition = TopicPartition(self.topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        ready()
        while not tally.is_complete:
            records = await consumer.getmany(partition, timeout_ms=int(QUIET_S * 1000), max_records=_READ)
            for record in records.get(partition, ()):
                tally.add(record.value, record.key.decode())
            if not records:
                break
        await consumer.stop()
