"""What the load has recorded: messages sent, answers received, offsets committed.

The ledger lives in the process that is never killed. Bodies name their producer and sequence number, so that every
message found in the broker can be traced back to the send that made it.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from dataclasses import dataclass, field

QueueKey = tuple[str, int]
MessageKey = tuple[str, int]


def make_body(producer: str, sequence: int, rng: random.Random) -> bytes:
    """Return a body that names its origin and is different from every other, 40 to 1,500 bytes long."""
    head = f"{producer}/{sequence}/".encode()
    return head + rng.randbytes(rng.randrange(32, 300) if rng.random() < 0.9 else rng.randrange(300, 1_400))


def message_key(body: bytes) -> MessageKey | None:
    """Return (producer, sequence) that a body names, or None if it names none."""
    parts = body.split(b"/", 2)
    if len(parts) != 3 or not parts[1].isdigit():
        return None
    return parts[0].decode(errors="replace"), int(parts[1])


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One acknowledged send: its place and ack level in the receipt."""

    key: MessageKey
    body: bytes
    queue: QueueKey
    queue_offset: int
    ack: str


@dataclass(slots=True)
class Ledger:
    """Everything sent, acknowledged and committed. Its methods may be called from several threads."""

    sent: dict[MessageKey, bytes] = field(default_factory=dict)
    acknowledged: dict[QueueKey, dict[int, Acknowledged]] = field(default_factory=lambda: defaultdict(dict))
    committed: dict[QueueKey, int] = field(default_factory=dict)
    consumed: dict[QueueKey, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    acknowledged_count: int = 0
    flushed_count: int = 0
    collisions: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sending(self, key: MessageKey, body: bytes) -> None:
        """Note that a body is about to leave: from now on it may be found in the broker."""
        with self._lock:
            self.sent[key] = body

    def answered(self, entry: Acknowledged) -> None:
        """Note an acknowledgement; two for one place are a fault in themselves."""
        with self._lock:
            place = self.acknowledged[entry.queue]
            other = place.get(entry.queue_offset)
            if other is not None:
                self.collisions.append(
                    f"{entry.queue} offset {entry.queue_offset} acknowledged for {other.key} and for {entry.key}"
                )
            place[entry.queue_offset] = entry
            self.acknowledged_count += 1
            self.flushed_count += entry.ack == "flushed"

    def commit_answered(self, queue: QueueKey, queue_offset: int) -> None:
        """Note an acknowledged offset commit."""
        with self._lock:
            self.committed[queue] = queue_offset

    def was_consumed(self, queue: QueueKey, queue_offset: int, body: bytes) -> None:
        """Note what a consumer was given at an offset; a second, different body there is a fault."""
        with self._lock:
            seen = self.consumed[queue].setdefault(queue_offset, body)
            if seen != body:
                self.collisions.append(f"{queue} offset {queue_offset} was served with two different bodies")

    def forget_unflushed(self, queue: QueueKey, end_offset: int) -> list[Acknowledged]:
        """After a power cut: drop what is at or beyond a queue's end and return it.

        The caller decides which of it was allowed to be lost.
        """
        with self._lock:
            place = self.acknowledged[queue]
            return [place.pop(offset) for offset in sorted(place) if offset >= end_offset]
