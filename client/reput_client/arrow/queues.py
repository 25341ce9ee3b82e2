"""Queues, their bounds, and ranges of messages: what readers of brokers and of directories have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias


class QueueKey(NamedTuple):
    """A queue; `broker` is empty for a store directory and in options without it."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}" if self.broker else f"{self.topic}/{self.queue_id}"


TopicKey: TypeAlias = tuple[str, str]
"""Names of a topic and its broker."""

Generations: TypeAlias = Mapping[TopicKey, str]
"""The generations of topics; one changes when its topic is deleted and created again.

Empty for a topic that the broker did not create; missing if the broker or checkpoint is older than generations.
"""


def is_remade(queue: QueueKey, before: Generations, now: Generations) -> bool:
    """Return whether a queue's topic has certainly been deleted and created again."""
    was, there = before.get((queue.topic, queue.broker)), now.get((queue.topic, queue.broker))
    return was is not None and bool(there) and was != there


class Bounds(NamedTuple):
    """The ends of a queue."""

    low: int
    """Offset of the first message."""
    high: int
    """Offset of the next message; only flushed messages count."""


class QueueRange(NamedTuple):
    """The messages `[start, end)` of a queue."""

    queue: QueueKey
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of messages."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.queue} [{self.start}, {self.end})"


class Unreadable(Protocol):
    """Decides about messages that cannot be returned: raises, or notes them, and the reader continues without them."""

    def lost(self, queue: object, reason: str) -> None:
        """Messages of a queue were deleted, or never existed."""
        ...

    def damaged(self, place: str, offset: int, reason: str) -> None:
        """A record, or a queue unit that points to it, is damaged.

        `place` and `offset` are a file and a byte position, or a queue and a message's offset.
        """
        ...
