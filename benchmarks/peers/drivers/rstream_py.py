"""RabbitMQ streams through rstream, with messages in AMQP 1.0 as its documentation shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rstream import (
    AMQPMessage,
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetType,
    Producer,
    Properties,
    amqp_decoder,
)

from peers.bodies import Bodies, Tally
from peers.drivers.base import QUIET_S, Driver, WrongRun, at_pace

_CHUNK = 500
_MAX_WAITING = 10_000


class Rstream(Driver):
    """The tag is the message's subject."""

    def _login(self) -> dict[str, object]:
        host, port = self.server.split(":")
        return {"host": host, "port": int(port), "username": "guest", "password": "guest"}

    async def create(self) -> None:
        """Create the stream."""
        async with Producer(**self._login()) as producer:
            await producer.create_stream(self.topic)

    async def drop(self) -> None:
        """Delete the stream."""
        async with Producer(**self._login()) as producer:
            await producer.delete_stream(self.topic)

    async def open_producer(self) -> None:
        """Connect."""
        delay_s = 0.001 if self.job.kind == "windowed" else 0.005
        self._producer = Producer(**self._login(), default_batch_publishing_delay=delay_s)
        await self._producer.start()
        self._waiting = 0
        self._wrong = 0
        self._moved = asyncio.Event()

    async def close_producer(self) -> None:
        """Close the producer."""
        await self._producer.close()

    def _confirmed(self, status: ConfirmationStatus) -> None:
        self._waiting -= 1
        self._wrong += not status.is_confirmed
        self._moved.set()

    async def _until(self, most: int) -> None:
        while self._waiting > most:
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), 30.0)
        if self._wrong:
            raise WrongRun(f"{self._wrong} messages were not confirmed")

    def _message(self, body: bytes, tag: str) -> AMQPMessage:
        return AMQPMessage(body=body, properties=Properties(subject=tag))

    async def _send_chunk(self, chunk: list[tuple[bytes, str]]) -> None:
        self._waiting += len(chunk)
        await self._producer.send_batch(
            self.topic, [self._message(*message) for message in chunk], on_publish_confirm=self._confirmed
        )

    async def batched(self, bodies: Bodies) -> None:
        """send_batch."""
        while chunk := bodies.chunk(_CHUNK):
            await self._send_chunk(chunk)
            await self._until(_MAX_WAITING)
        await self._until(0)

    async def singles(self, bodies: Bodies) -> None:
        """send, which gathers for 5 ms."""
        while chunk := bodies.chunk(_CHUNK):
            for message in chunk:
                self._waiting += 1
                await self._producer.send(self.topic, self._message(*message), on_publish_confirm=self._confirmed)
            await self._until(_MAX_WAITING)
        await self._until(0)

    async def windowed(self, bodies: Bodies, in_flight: int) -> list[int]:
        """send_batch of one message for as many tasks; `send` would gather for a while."""
        latencies: list[int] = []
        loop = asyncio.get_running_loop()

        async def sender() -> None:
            while (message := bodies.one()) is not None:
                confirmed: asyncio.Future[ConfirmationStatus] = loop.create_future()
                started_at = loop.time()
                await self._producer.send_batch(
                    self.topic, [self._message(*message)], on_publish_confirm=confirmed.set_result
                )
                self._wrong += not (await confirmed).is_confirmed
                latencies.append(int((loop.time() - started_at) * 1e6))

        await asyncio.gather(*(sender() for _ in range(in_flight)))
        await self._until(0)
        return latencies

    async def paced(self, bodies: Bodies, rate: int) -> None:
        """send_batch of what is due."""
        await at_pace(bodies, rate, self._send_chunk)
        await self._until(0)

    async def consume(self, tally: Tally) -> None:
        """A callback for each message, from the first."""
        await self._read(tally, lambda: None)

    async def tail(self, tally: Tally, ready: Callable[[], None]) -> None:
        """As `consume`, started before the first message is sent."""
        await self._read(tally, ready)

    async def _read(self, tally: Tally, ready: Callable[[], None]) -> None:
        consumer = Consumer(**self._login())
        complete = asyncio.Event()

        def received(message: AMQPMessage, _: MessageContext) -> None:
            subject = message.properties.subject
            tally.add(message.body, subject.decode() if isinstance(subject, bytes) else subject)
            if tally.is_complete:
                complete.set()

        await consumer.start()
        await consumer.subscribe(
            self.topic,
            received,
            decoder=amqp_decoder,
            offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST),
        )
        ready()
        while not complete.is_set():
            before = tally.count
            try:
                await asyncio.wait_for(complete.wait(), QUIET_S)
            except TimeoutError:
                if tally.count == before:
                    break
        await consumer.close()
