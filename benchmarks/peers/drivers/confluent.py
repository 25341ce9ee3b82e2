"""Apache Kafka through confluent-kafka, which is librdkafka in C."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from peers.bodies import Bodies, Tally
from peers.drivers.base import QUIET_S, Driver, WrongRun, at_pace

_CHUNK = 1_000
_FLUSH_S = 60.0
_BATCHING = {
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
    "delivery.report.only.error": True,
}
_AT_ONCE = {"linger.ms": 0}
_CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "fetch.min.bytes": 1,
    "fetch.message.max.bytes": 4 << 20,
    "queued.min.messages": 100_000,
}


class ConfluentKafka(Driver):
    """A topic of one partition; the tag is the key; acks=all, which one broker is all of."""

    async def create(self) -> None:
        """Create the topic and wait until it exists."""
        admin = AdminClient({"bootstrap.servers": self.server})
        for future in admin.create_topics([NewTopic(self.topic, 1, 1)]).values():
            future.result(30)

    async def drop(self) -> None:
        """Delete the topic."""
        for future in AdminClient({"bootstrap.servers": self.server}).delete_topics([self.topic]).values():
            future.result(30)

    async def open_producer(self) -> None:
        """Connect and look the topic up."""
        waits = self.job.kind == "windowed"
        self._failed: list[KafkaError] = []
        self._producer = Producer(
            {"bootstrap.servers": self.server, "acks": "all", **(_AT_ONCE if waits else _BATCHING)}
            | ({} if waits else {"on_delivery": self._on_failure})
        )
        self._producer.list_topics(self.topic, 30)

    def _on_failure(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._failed.append(error)

    async def close_producer(self) -> None:
        """What was sent is acknowledged by now."""
        del self._producer

    def _finish(self) -> None:
        left = self._producer.flush(_FLUSH_S)
        if left or self._failed:
            raise WrongRun(f"{left} messages unacknowledged, errors {self._failed[:3]}")

    async def batched(self, bodies: Bodies) -> None:
        """produce_batch, a thousand at a time."""
        while chunk := bodies.chunk(_CHUNK):
            messages: list[dict[str, Any]] = [{"value": body, "key": tag} for body, tag in chunk]
            while messages:
                self._producer.produce_batch(self.topic, messages)
                messages = [message for message in messages if "_error" in message]
                if messages:
                    self._again(messages)
        self._finish()

    def _again(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            error = message.pop("_error")
            if error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - the library's own name for it
                raise WrongRun(str(error))
        self._producer.poll(0.01)

    def _produce(self, body: bytes, tag: str) -> None:
        while True:
            try:
                self._producer.produce(self.topic, body, tag)
            except BufferError:
                self._producer.poll(0.01)
            else:
                return

    async def singles(self, bodies: Bodies) -> None:
        """produce, one by one."""
        for body, tag in bodies.each():
            self._produce(body, tag)
            self._producer.poll(0)
        self._finish()

    async def windowed(self, bodies: Bodies, in_flight: int) -> list[int]:
        """produce with a callback each, with at most `in_flight` unacknowledged."""
        latencies: list[int] = []
        waiting = 0

        def send() -> bool:
            nonlocal waiting
            message = bodies.one()
            if message is None:
                return False
            started_at = time.perf_counter()

            def acknowledged(error: KafkaError | None, _: Any) -> None:
                nonlocal waiting
                waiting -= 1
                self._on_failure(error, _)
                latencies.append(int((time.perf_counter() - started_at) * 1e6))

            self._producer.produce(self.topic, *message, on_delivery=acknowledged)
            waiting += 1
            return True

        more = True
        while more or waiting:
            while more and waiting < in_flight:
                more = send()
            self._producer.poll(1.0)
        self._finish()
        return latencies

    async def paced(self, bodies: Bodies, rate: int) -> None:
        """produce when due."""

        def send(due: list[tuple[bytes, str]]) -> None:
            for body, tag in due:
                self._produce(body, tag)
            self._producer.poll(0)

        await at_pace(bodies, rate, send)
        self._finish()

    async def consume(self, tally: Tally) -> None:
        """consume, a thousand at a time."""
        self._read(tally, lambda: None)

    async def tail(self, tally: Tally, ready: Callable[[], None]) -> None:
        """As `consume`, started before the first message is sent."""
        await asyncio.to_thread(self._read, tally, ready)

    def _read(self, tally: Tally, ready: Callable[[], None]) -> None:
        consumer = Consumer({"bootstrap.servers": self.server, **_CONSUMER})
        consumer.get_watermark_offsets(TopicPartition(self.topic, 0), 30)
        ready()
        consumer.assign([TopicPartition(self.topic, 0, 0)])  # from now on it fetches
        heard_at = time.perf_counter()
        while not tally.is_complete and time.perf_counter() - heard_at < QUIET_S:
            for message in consumer.consume(_CHUNK, 0.1 if not tally.count else 0.01):
                if message.error():
                    raise WrongRun(str(message.error()))
                tally.add(message.value(), message.key().decode())
                heard_at = time.perf_counter()
        consumer.close()
