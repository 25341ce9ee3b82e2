"""The content of a message that was sent alone, by which deduplication compares attempts.

If the message is delayed, the broker makes another record of it, and one more when it delivers it.
To the sender, all of them are the same message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

from reput_broker.delay.delayed_record import BROKER_PROPERTIES, decode_delayed, number_of
from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from reput_protocol.record.view import RecordView

DELAY_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Where delayed messages wait."""
_ADDED: Final = tuple(
    name.encode() + b"\x01" for name in (*BROKER_PROPERTIES, names.MSG_REGION, names.TRACE_ON, names.CLUSTER)
)
"""Properties that a broker may add, remove or change."""
_TIMES: Final = tuple(
    name.encode() for name in (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
)
_DELAY: Final = names.DELAY.encode()


class Content(NamedTuple):
    """Distinguishes messages with the same unique id."""

    body_crc: int
    properties_crc: int
    """Of the sender's properties."""
    delay: bytes | None
    """The requested level or time, empty for none; None in a delivered copy, which does not hold it."""

    def is_like(self, other: Content) -> bool:
        """Whether both may be the same message."""
        return self[:2] == other[:2] and (
            self.delay is None or other.delay is None or self.delay == other.delay
        )


class SingleMessage(NamedTuple):
    """A record and the message that it stands for."""

    record: RecordView
    topic: str
    """The destination."""
    queue_id: int
    content: Content


def single_message_of(data: bytes) -> SingleMessage | None:
    """Decode a record; None if it is a delete message."""
    record = RecordView(data, 0)
    if record.topic not in DELAY_TOPICS:
        is_copy = record.prepared_transaction_offset != 0
        content = content_of(record.body, record.properties, is_copy=is_copy)
        return SingleMessage(record, record.topic, record.queue_id, content)
    delayed = decode_delayed(data)
    if delayed is None or delayed.cancels is not None:
        return None
    content = content_of(record.body, record.properties)
    return SingleMessage(record, delayed.topic, delayed.queue_id, content)


def content_of(body: Buffer, properties: bytes, *, is_copy: bool = False) -> Content:
    """Return the content of a record with this body and properties text, delayed or not.

    `is_copy`: it is a delivered or committed copy, and its text lacks the requested delay.
    """
    units = properties.split(b"\x02")
    kept = b"\x02".join(unit for unit in units if unit and not unit.startswith(_ADDED))
    return Content(crc32(body), crc32(kept), None if is_copy else _delay_of(units))


def _delay_of(units: Iterable[bytes]) -> bytes:
    """Return the requested delay, in the broker's order of precedence (`delay_redirects.py`)."""
    found = dict(unit.split(b"\x01", 1) for unit in units if b"\x01" in unit)
    if (number_of(found.get(_DELAY)) or 0) > 0:
        return b"%s %s" % (_DELAY, found[_DELAY])
    for name in _TIMES:
        if name in found:
            return b"%s %s" % (name, found[name])
    return b""
