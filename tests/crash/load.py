"""The load of one round: four producers, a committing consumer, all on the blocking client, until the broker dies.

A producer stops at the first error: its last send may or may not have been stored, which the ledger already allows for,
because it noted the body before the frame left.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from crash.ledger import Acknowledged, Ledger, make_body
from reput_client import Ack
from reput_client.blocking import Message, Producer, PullConsumer
from reput_protocol.errors import ReputError

TOPIC = "crash"
GROUP = "crash-group"
QUEUES = 4
_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """How one producer sends: one by one, in blocks, or pipelined; and what it asks to be acknowledged."""

    name: str
    ack: Ack
    batch: int
    pipelined: bool = False


PLANS = (
    ProducerPlan("flushed-single", "flushed", 1),
    ProducerPlan("flushed-batch", "flushed", 8),
    ProducerPlan("cache-single", "page_cache", 1),
    ProducerPlan("cache-pipelined", "page_cache", 16, pipelined=True),
)


class Load:
    """Runs the producers and the consumer in threads until `stop` or until the broker is gone."""

    def __init__(self, address: str, ledger: Ledger, seed: int, next_sequences: dict[str, int]) -> None:
        self._address = address
        self._ledger = ledger
        self._sequences = next_sequences
        self._stopping = threading.Event()
        self.faults: list[str] = []
        workers: list[Callable[[], None]] = [
            lambda plan=plan, n=n: self._produce(plan, random.Random(seed * 31 + n))  # type: ignore[misc]
            for n, plan in enumerate(PLANS)
        ]
        workers += [lambda q=q: self._consume(q) for q in range(QUEUES)]  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in workers]

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Tell the threads to stop and wait for them."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive(), "a load thread hangs"

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (ReputError, OSError):
            pass  # the broker was killed under it, as planned
        except Exception as error:
            self.faults.append(f"{type(error).__name__}: {error}")

    def _produce(self, plan: ProducerPlan, rng: random.Random) -> None:
        with Producer(self._address, group=plan.name, timeout_s=_TIMEOUT_S, retries=0, deduplicate=False) as producer:
            while not self._stopping.is_set():
                count = 1 if plan.batch == 1 else rng.randrange(1, plan.batch + 1)
                queue_id = rng.randrange(QUEUES)
                first = self._sequences[plan.name]
                self._sequences[plan.name] = first + count
                bodies = [make_body(plan.name, first + i, rng) for i in range(count)]
                for i, body in enumerate(bodies):
                    self._ledger.sending((plan.name, first + i), body)
                messages = [Message(TOPIC, body, tag=plan.name, keys=[f"k{first}"]) for body in bodies]
                if count == 1:
                    receipts = [producer.send(messages[0], ack=plan.ack, queue_id=queue_id)]
                elif plan.pipelined:
                    posted = [producer.post(each, ack=plan.ack, queue_id=queue_id) for each in messages]
                    receipts = [each.result() for each in posted]
                else:
                    receipts = producer.send_batch(messages, ack=plan.ack, queue_id=queue_id)
                for i, receipt in enumerate(receipts):
                    self._ledger.answered(
                        Acknowledged(
                            (plan.name, first + i),
                            bodies[i],
                            (receipt.topic, receipt.queue_id),
                            receipt.queue_offset,
                            str(receipt.ack),
                        )
                    )

    def _consume(self, queue_id: int) -> None:
        queue = (TOPIC, queue_id)
        with PullConsumer(self._address, group=GROUP, timeout_s=_TIMEOUT_S) as consumer:
            offset = self._ledger.committed.get(queue, 0)
            while not self._stopping.is_set():
                result = consumer.pull(TOPIC, queue_id=queue_id, offset=offset, max_messages=32, wait_s=0.0)
                for message in result.messages:
                    self._ledger.was_consumed(queue, message.queue_offset, bytes(message.body))
                if not result.messages:
                    time.sleep(0.01)
                if result.next_begin_offset > offset:
                    offset = result.next_begin_offset
                    consumer.commit(TOPIC, queue_id, offset)
                    self._ledger.commit_answered(queue, offset)
