"""Compare what a broker holds with what the ledger knows. Pure: readings in, violations out.

The promises checked:

- every acknowledged message is at the offset of its receipt, byte for byte;
- no message is there twice, and none that was never sent;
- messages of one producer in one queue are in the order they were sent;
- queue offsets are contiguous and the ConsumeQueue names exactly the log's records;
- an acknowledged consumer offset never went back;
- what a consumer was given stays where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crash.ledger import Acknowledged, Ledger, QueueKey, message_key
from crash.store_reader import StoreReading


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which one, and the facts."""

    promise: str
    detail: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}"


def check_queue(ledger: Ledger, queue: QueueKey, bodies: Mapping[int, bytes], start: int, end: int) -> list[Violation]:
    """Check the messages served for offsets [start, end) of a queue, `end` being the queue's maximum offset."""
    found: list[Violation] = []
    missing = [offset for offset in range(start, end) if offset not in bodies]
    if missing:
        found.append(Violation("contiguous", f"{queue}: no message at offsets {missing[:5]} (of {len(missing)})"))
    for offset, entry in ledger.acknowledged[queue].items():
        if offset < start:
            continue
        body = bodies.get(offset)
        if body is None:
            found.append(Violation("acknowledged", f"{entry.key} ({entry.ack}) is missing at {queue} offset {offset}"))
        elif body != entry.body:
            found.append(Violation("byte-equal", f"{queue} offset {offset} holds other bytes than {entry.key} sent"))
    for offset, body in ledger.consumed[queue].items():
        if start <= offset and bodies.get(offset) != body:
            found.append(Violation("consumed", f"{queue} offset {offset} no longer holds what a consumer was given"))
    found.extend(_check_origin(ledger, queue, bodies))
    return found


def _check_origin(ledger: Ledger, queue: QueueKey, bodies: Mapping[int, bytes]) -> list[Violation]:
    found: list[Violation] = []
    last_sequence: dict[str, int] = {}
    for offset in sorted(bodies):
        body = bodies[offset]
        key = message_key(body)
        if key is None or ledger.sent.get(key) != body:
            found.append(Violation("byte-equal", f"{queue} offset {offset} holds bytes that nobody sent"))
            continue
        producer, sequence = key
        if sequence <= last_sequence.get(producer, -1):
            what = "twice" if sequence == last_sequence[producer] else "out of order"
            found.append(Violation("once, in order", f"{queue} offset {offset}: {key} appears {what}"))
        last_sequence[producer] = sequence
    return found


def check_once(queues: Mapping[QueueKey, Mapping[int, bytes]]) -> list[Violation]:
    """Check that no message is in two places, over all queues."""
    seen: dict[bytes, tuple[QueueKey, int]] = {}
    found: list[Violation] = []
    for queue, bodies in queues.items():
        for offset, body in bodies.items():
            other = seen.setdefault(body, (queue, offset))
            if other != (queue, offset):
                found.append(Violation("once", f"{message_key(body)} is at {other} and at {(queue, offset)}"))
    return found


def check_offsets(ledger: Ledger, answers: Mapping[QueueKey, int | None]) -> list[Violation]:
    """Check that no acknowledged consumer offset went back."""
    return [
        Violation("offsets", f"{queue}: committed {committed}, the broker now says {answers.get(queue)}")
        for queue, committed in ledger.committed.items()
        if (answers.get(queue) if answers.get(queue) is not None else -1) < committed  # type: ignore[operator]
    ]


def check_directory(reading: StoreReading) -> list[Violation]:
    """Check that every ConsumeQueue unit on disk names a record of the log, in order and without gaps."""
    found: list[Violation] = []
    records = {record.physical_offset: record for record in reading.records}
    for queue, units in reading.units.items():
        for queue_offset, unit in units:
            record = records.get(unit.physical_offset)
            if record is None:
                found.append(Violation("queue agrees", f"{queue} unit {queue_offset} points at no record"))
            elif (record.topic, record.queue_id) != queue or record.queue_offset != queue_offset:
                where = f"{record.topic}-{record.queue_id}#{record.queue_offset}"
                found.append(Violation("queue agrees", f"{queue} unit {queue_offset} points at {where}"))
            elif record.size != unit.size:
                found.append(Violation("queue agrees", f"{queue} unit {queue_offset} gives size {unit.size}"))
    found.extend(_check_log_order(reading))
    return found


def _check_log_order(reading: StoreReading) -> list[Violation]:
    found: list[Violation] = []
    next_offset: dict[QueueKey, int] = {}
    for record in reading.records:
        queue = (record.topic, record.queue_id)
        expected = next_offset.get(queue, record.queue_offset)
        if record.queue_offset != expected:
            found.append(Violation("log order", f"{queue}: offset {record.queue_offset} follows {expected - 1}"))
        next_offset[queue] = record.queue_offset + 1
    return found


def check_complete(reading: StoreReading) -> list[Violation]:
    """Check that every record of the log has its unit: true once a broker has caught up and stopped."""
    indexed = {unit.physical_offset for units in reading.units.values() for _, unit in units}
    lost = [record for record in reading.records if record.physical_offset not in indexed]
    return [
        Violation("queue complete", f"{r.topic}-{r.queue_id}#{r.queue_offset} at {r.physical_offset} has no unit")
        for r in lost[:20]
    ]


def check_power_loss(lost: Iterable[Acknowledged]) -> list[Violation]:
    """Check that a power cut took only what was not acknowledged as flushed."""
    return [
        Violation("flushed", f"{entry.key} was acknowledged as flushed at {entry.queue} offset {entry.queue_offset}")
        for entry in lost
        if entry.ack == "flushed"
    ]


def summary(violations: Sequence[Violation], limit: int = 10) -> str:
    """Return the first violations, one a line, and how many there are in all."""
    lines = [f"  {violation}" for violation in violations[:limit]]
    if len(violations) > limit:
        lines.append(f"  ... and {len(violations) - limit} more")
    return "\n".join(lines)
