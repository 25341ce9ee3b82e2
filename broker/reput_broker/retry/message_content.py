"""What a record says of the message that was sent alone: for which queue, with which content, to be delivered when.

The broker makes another record of such a message if it is for later, and one more when it delivers it. All of them are
the same message to its sender.
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
"""Where messages wait for their time."""
_ADDED: Final = tuple(
    name.encode() + b"\x01" for name in (*BROKER_PROPERTIES, names.MSG_REGION, names.TRACE_ON, names.CLUSTER)
)
"""Properties that a broker may add, take away or change."""
_TIMES: Final = tuple(
    name.encode() for name in (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
)
_DELAY: Final = names.DELAY.encode()


class Content(NamedTuple):
    """What tells messages with one unique id apart."""

    body_crc: int
    properties_crc: int
    """Of what the sender gave it."""
    delay: bytes | None
    """The level or the time that it asked for, empty for none; None in a delivered copy, which does not say."""

    def is_like(self, other: Content) -> bool:
        """Whether these may be of one message."""
        return self[:2] == other[:2] and (
            self.delay is None or other.delay is None or self.delay == other.delay
        )


class SingleMessage(NamedTuple):
    """A record, and what it says."""

    record: RecordView
    topic: str
    """For which topic and queue the message is."""
    queue_id: int
    content: Content


def single_message_of(data: bytes) -> SingleMessage | None:
    """Return what a record says; None if it is no message, but cancels one."""
    record = RecordView(data, 0)
    if record.topic not in DELAY_TOPICS:
        is_copy = record.prepared_transaction_offset != 0
        content = content_of(record.body, record.properties, is_copy=is_copy)
        return SingleMessage(record, record.topic, record.queue_id, content)
    parked = decode_delayed(data)
    if parked is None or parked.cancels is not None:
        return None
    content = content_of(record.body, record.properties)
    return SingleMessage(record, parked.topic, parked.queue_id, content)


def content_of(body: Buffer, properties: bytes, *, is_copy: bool = False) -> Content:
    """Return the content of a record with this body and properties text, parked or not.

    `is_copy`: it was delivered after its time, or committed, and the text lacks what it asked for.
    """
    units = properties.split(b"\x02")
    kept = b"\x02".join(unit for unit in units if unit and not unit.startswith(_ADDED))
    return Content(crc32(body), crc32(kept), None if is_copy else _delay_of(units))


def _delay_of(units: Iterable[bytes]) -> bytes:
    """Return what a message asked for, in the order in which the broker looks for it (`delay_hook.py`)."""
    found = dict(unit.split(b"\x01", 1) for unit in units if b"\x01" in unit)
    if (number_of(found.get(_DELAY)) or 0) > 0:
        return b"%s %s" % (_DELAY, found[_DELAY])
    for name in _TIMES:
        if name in found:
            return b"%s %s" % (name, found[name])
    return b""
