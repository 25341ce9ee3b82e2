"""Message properties in their encoded form: `name 0x01 value 0x02`, repeated, in UTF-8.

Readers are tolerant, because other clients omit the last 0x02 or write empty values (RocketMQ: MessageDecoder). Writers
are strict: Reput's client sends, and the broker accepts in a put block, only *canonical* text: empty, or complete units
with non-empty name and value and no further 0x01. Every reader understands that the same way, so the broker stores it
without decoding it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
UNIQ_KEY: Final = "UNIQ_KEY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
RECONSUME_TIME: Final = "RECONSUME_TIME"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
CLUSTER: Final = "CLUSTER"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
POP_ORIGIN: Final = "POP_ORIGIN"
"""Of a popped message that became visible again: the log offset of the popped record, and the time of that pop; Reput's
alone."""
POP_PASSED: Final = "POP_PASSED"
"""Of a check point: from which queue offset to which its pop has moved its group; Reput's alone."""
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MSG_TYPE: Final = "MSG_TYPE"
MSG_TYPE_REPLY: Final = "reply"
"""The value of `MSG_TYPE` that marks a reply."""
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
INSTANCE_ID: Final = "INSTANCE_ID"
RETRY_REASON: Final = "RETRY_REASON"
SEND_BACK_ID: Final = "SEND_BACK_ID"
ORIGIN_UNPROVEN: Final = "REPUT_ORIGIN_UNPROVEN"
"""Of a message in a retry topic: its client says where it is from, in RETRY_TOPIC, and the broker has found no proof;
Reput's alone."""
REPLAY_OF: Final = "REPUT_REPLAY_OF"
"""Of a message as which the broker has replayed a dead letter: which one (`record.dead_letter.ReplayOf`); Reput's
alone."""
SCHEDULE: Final = "__SCHEDULE"
"""Of a message that a schedule has sent: the name of the schedule; Reput's alone."""
SCHEDULE_TIME: Final = "__SCHEDULE_TIME"
"""The time for which a schedule has sent it, in ms since 1970; not of one that was run by hand."""
DLQ_REASON: Final = "DLQ_REASON"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""0 or more; the highest is popped first (RocketMQ 5.4: MessageConst.PROPERTY_PRIORITY)."""
EXPIRES_AFTER: Final = "EXPIRES_AFTER_MS"
"""The time to live of a message, from when it is stored in its queue; Reput's alone."""
EXPIRES_AT: Final = "EXPIRES_AT_MS"
"""When a message expires, in ms since 1970; Reput's alone."""
CRC32: Final = "__CRC32#"

PROPERTIES_BYTES_MAX: Final = 32_767
"""The limit of the record's signed 16-bit length."""

BROKER_ROOM: Final = 1024
"""Bytes of properties that a broker adds to a message at most, while it delays, redelivers or gives up on it."""
SENT_PROPERTIES_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - BROKER_ROOM
"""What a client may send, which leaves that room."""

CRC_PROPERTY_BYTES: Final = 20
"""`__CRC32#`, 0x01, ten decimal digits, 0x02: always a record's last bytes."""

_NAME_END: Final = b"\x01"
_VALUE_END: Final = b"\x02"
_SEPARATORS: Final = re.compile("[\x01\x02]")


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the encoded form of `properties`, in order, each with its trailing 0x02; unchecked."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()


def decode_properties(text: Buffer) -> dict[str, str]:
    """Return the properties of `text`, tolerantly (RocketMQ: MessageDecoder.string2messageProperties).

    The last 0x02 may be missing, units with an empty name or value are dropped, a value may contain 0x01, and the last
    duplicate wins. Invalid UTF-8 becomes U+FFFD, so that one bad producer cannot make a queue unreadable.
    """
    properties: dict[str, str] = {}
    for unit in str(text, "utf-8", "replace").split("\x02"):
        name, _, value = unit.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def split_keys(value: str | None) -> tuple[str, ...]:
    """Return the keys in the value of `KEYS`, separated by spaces only (RocketMQ: KEY_SEPARATOR)."""
    return tuple(key for key in value.split(" ") if key) if value else ()


def find_property(text: bytes, name: bytes) -> bytes | None:
    """Return the value of property `name`, like `decode_properties` but without decoding the others."""
    return find_property_in(text, name, 0, len(text))


def find_property_in(buffer: bytes | bytearray, name: bytes, start: int, end: int) -> bytes | None:
    """Return the value of property `name` in the properties at `[start, end)` of `buffer`, or None.

    A value cannot contain 0x02, so `0x02 name 0x01` always begins a unit; only the first unit has no 0x02 before it.
    The last one with a value counts.
    """
    needle = name + _NAME_END
    stop = end
    while (found := buffer.rfind(needle, start, stop)) >= 0:
        if found == start or buffer[found - 1] == 2:
            value_start = found + len(needle)
            value_end = buffer.find(2, value_start, end)
            value = buffer[value_start : value_end if value_end >= 0 else end]
            if value:
                return value if type(value) is bytes else bytes(value)
        stop = found + len(needle) - 1  # the next candidate may overlap all but this one's 0x01
    return None


def ends_with_crc_property(text: bytes) -> bool:
    """Return whether `text` ends with a whole-record checksum unit, even with damaged digits."""
    tail = text[-CRC_PROPERTY_BYTES:]
    return tail.startswith(b"__CRC32#\x01") and tail.endswith(_VALUE_END) and _starts_unit(text)


def check_properties_size(size: int, size_max: int = SENT_PROPERTIES_BYTES_MAX) -> None:
    """Raise `InvalidMessage` if encoded properties of this size may not be sent, or exceed `size_max`."""
    if size > size_max:
        raise InvalidMessage(
            f"tag, keys and properties take {size} bytes, but at most {size_max} fit; move the rest into the body"
        )


def check_text(what: str, text: str) -> None:
    """Check that `text` can be a property's name or value.

    Raises:
        InvalidMessage: not a str, empty, or contains 0x01 or 0x02; the message names it by `what`.
    """
    if not isinstance(text, str):
        raise InvalidMessage(f"{what} must be str, not {type(text).__name__}")
    if not text:
        raise InvalidMessage(f"{what} is empty; leave it out instead")
    if _SEPARATORS.search(text):
        raise InvalidMessage(f"{what} holds 0x01 or 0x02, which separate properties; remove them: {text[:80]!r}")


def check_tag(tag: str) -> None:
    """Check a message's tag, which a subscription must be able to name.

    Raises:
        InvalidMessage: as `check_text`; or it contains `||`, which separates tags, or begins or ends with a blank,
            which a subscription strips.
    """
    check_text("tag", tag)
    if "||" in tag:
        raise InvalidMessage(
            f"tag {tag[:80]!r} holds ||, which joins tags in a subscription: no consumer could name it; a message has "
            "one tag"
        )
    if tag != tag.strip():
        raise InvalidMessage(
            f"tag {tag[:80]!r} begins or ends with a blank, which a subscription drops: no consumer could name it; "
            "remove the blank"
        )


def check_key(key: str, what: str = "key") -> None:
    """Check a message's key or unique id, named by `what`.

    Raises:
        InvalidMessage: as `check_text`; or it contains a space, which would make it two keys.
    """
    check_text(what, key)
    if " " in key:
        raise InvalidMessage(f"{what} {key[:80]!r} holds a space, which separates keys; pass two keys or replace it")


def _starts_unit(text: bytes) -> bool:
    """Return whether the last `CRC_PROPERTY_BYTES` of `text` start a unit."""
    before = len(text) - CRC_PROPERTY_BYTES
    return before == 0 or (before > 0 and text[before - 1] == 2)
