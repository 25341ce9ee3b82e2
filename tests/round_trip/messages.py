"""Messages of every kind that an archive must preserve: three topics, most columns null now and then, odd bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from reput_broker.store.base.results import Block, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.stores import BORN_HOST, T0

QUEUES: Final = {"orders": 8, "texts": 4, "events": 1}
"""The topics, and how many queues each has."""
BLOCK: Final = 64
_WORDS: Final = ["paid", "open", "late", "grün", "支払い", "refund", "void", "held", "shipped", "returned"]


def blocks(count: int, seed: int) -> Iterator[tuple[str, int, int, bytearray]]:
    """Yield (topic, queue, messages, block) for so many messages; bodies have 100 to 300 bytes, or none."""
    rng = random.Random(seed)
    noise = rng.randbytes(1 << 16)
    topics = [(topic, queue_id) for topic, queues in QUEUES.items() for queue_id in range(queues)]
    for first in range(0, count, BLOCK):
        topic, queue_id = topics[first // BLOCK % len(topics)]
        numbers = range(first, min(first + BLOCK, count))
        messages = [_message(topic, number, rng, noise) for number in numbers]
        born_ms = T0 + first * 7 + rng.randrange(1000)
        ids = [f"{seed:08X}{number:024X}" for number in numbers]
        yield (topic, queue_id, len(numbers), bytearray(encode_put_block(messages, topic, queue_id, born_ms, ids)))


def _message(topic: str, number: int, rng: random.Random, noise: bytes) -> Message:
    start = rng.randrange(len(noise) - 300)
    body = b"" if number % 1000 == 7 else noise[start : start + rng.randrange(100, 300)]
    properties = {"line": str(number)} if number % 3 else {}
    if number % 5 == 0:
        properties |= {"größe": rng.choice(_WORDS), "empty": " "}
    return Message(
        topic,
        body,
        tag=None if number % 4 == 3 else rng.choice(_WORDS),
        keys=[f"k{number}", rng.choice(_WORDS)][: number % 3],
        properties=properties,
        flag=number if number % 9 == 0 else 0,
    )


def fill(store: MessageStore, count: int, seed: int) -> None:
    """Put so many messages into an open store, and dispatch them."""
    for done, (topic, queue_id, size, block) in enumerate(blocks(count, seed)):
        result = store.put_one(Block(block, topic, queue_id, size, BORN_HOST))
        assert result.status is PutStatus.PUT_OK, result
        if done % 64 == 63:
            while store.reput_step():
                pass
    while store.reput_step():
        pass
