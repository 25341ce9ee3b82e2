"""Check points of popped messages and their acknowledgements, as records (RocketMQ: PopCheckPoint, AckMsg).

A pop writes a check point for each queue from which it took messages, and each acknowledgement is a record of its own.
All are delayed messages (`delay`) of the topic `rmq_sys_REVIVE_LOG_CLUSTER`: the check point arrives there one second
before its messages become visible again, and its acknowledgements at that time. So whoever reads that topic up to then
has everything that decides about the check point: this broker after a restart, a slave that took over, or RocketMQ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from reput_protocol import properties as names
from reput_protocol.commands.base import encode_json
from reput_protocol.commands.pop import POP_MESSAGES_MAX
from reput_protocol.properties import encode_properties
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, RecordView

REVIVE_QUEUES: Final = 8
"""(RocketMQ: reviveQueueNum.)"""
LEAD_MS: Final = 1000
"""How long before its time a check point arrives (RocketMQ: ackTimeInterval)."""
CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"


class CheckPointKey(NamedTuple):
    """What identifies a check point; its acknowledgements have the same."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time: int
    broker_name: str


class CheckPoint(NamedTuple):
    """Messages of one queue that were popped together. Times are in ms."""

    key: CheckPointKey
    invisible_time: int
    offsets: tuple[int, ...]
    """The queue offsets of its messages."""
    is_suspended: bool = False
    """Whether their next delivery is no further attempt."""

    @property
    def revive_time(self) -> int:
        """When those that are not acknowledged become visible again."""
        return self.key.pop_time + self.invisible_time


class Ack(NamedTuple):
    """Messages of one check point that were acknowledged."""

    key: CheckPointKey
    offsets: tuple[int, ...]


class Passed(NamedTuple):
    """The queue offsets over which a pop has moved its group: messages that it took, or that do not fit its filter."""

    start: int
    """The end of the pop before, or the first offset of the group."""
    end: int


# -- records -----------------------------------------------------------------------------------------------------------


def check_point_record(
    point: CheckPoint, topic: str, revive_queue_id: int, now_ms: int, host: Host, *, passed: Passed | None
) -> Record:
    """Return the record of a check point for the revive topic, with the time at which it is to arrive.

    Args:
        passed: how its pop has moved the group; None if it was none, but a changed time.
    """
    key = point.key
    suspended = {"sp": True} if point.is_suspended else {}
    body = encode_json(
        {
            "bm": 0,
            "bn": key.broker_name,
            "c": key.group,
            "d": [offset - key.start_offset for offset in point.offsets],
            "it": point.invisible_time,
            "n": len(point.offsets),
            "pt": key.pop_time,
            "q": key.queue_id,
            "ro": 0,
            "so": key.start_offset,
            **suspended,
            "t": key.topic,
        }
    )
    more = None if passed is None else {names.POP_PASSED: f"{passed.start} {passed.end}"}
    deliver_ms = point.revive_time - LEAD_MS
    return _record(topic, revive_queue_id, body, CHECK_POINT_TAG, deliver_ms, now_ms, host, more)


def ack_record(
    ack: Ack, deliver_ms: int, topic: str, revive_queue_id: int, now_ms: int, host: Host, *, is_batch: bool
) -> Record:
    """Return the record of an acknowledgement for the revive topic.

    Args:
        deliver_ms: the time of the check point.
        is_batch: whether it may name several messages.
    """
    key = ack.key
    members: dict[str, Any] = {
        "ao": -1 if is_batch else ack.offsets[0],
        "bn": key.broker_name,
        "c": key.group,
        "pt": key.pop_time,
        "q": key.queue_id,
        "so": key.start_offset,
        "t": key.topic,
    }
    if is_batch:
        members["aol"] = list(ack.offsets)
    tag = BATCH_ACK_TAG if is_batch else ACK_TAG
    return _record(topic, revive_queue_id, encode_json(members), tag, deliver_ms, now_ms, host)


def _record(
    topic: str,
    queue_id: int,
    body: bytes,
    tag: str,
    deliver_ms: int,
    now_ms: int,
    host: Host,
    more: Mapping[str, str] | None = None,
) -> Record:
    # RocketMQ gives them a unique id too, which nothing reads; without it they stay out of the key index.
    properties = {names.TAGS: tag, names.TIMER_DELIVER_MS: str(deliver_ms), **(more or {})}
    return Record(
        topic, body, queue_id, born_timestamp_ms=now_ms, born_host=host, properties=encode_properties(properties)
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def read_entry(record: RecordView, broker_name: str) -> CheckPoint | Ack | None:
    """Return what a record of the revive topic says; None if it is neither, or not valid.

    Args:
        broker_name: of acknowledgements that name none.
    """
    tag = record.tag
    try:
        members = json.loads(record.body_view.tobytes())
        if tag == CHECK_POINT_TAG:
            return _read_check_point(members)
        if tag == ACK_TAG:
            return Ack(_ack_key(members, broker_name), (_whole(_of(members, "ao", "ackOffset")),))
        if tag == BATCH_ACK_TAG:
            offsets = _of(members, "aol", "ackOffsetList")
            return Ack(_ack_key(members, broker_name), tuple(map(_whole, offsets)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return None


def read_passed(properties: Mapping[str, str]) -> Passed | None:
    """Return how the pop of a check point has moved its group; None if its record does not say so, or is not valid."""
    start, _, end = properties.get(names.POP_PASSED, "").partition(" ")
    if not (start.isdecimal() and end.isdecimal()):
        return None
    return Passed(int(start), int(end))


def _read_check_point(members: dict[str, Any]) -> CheckPoint:
    start, count = _whole(members["so"]), _whole(members["n"])
    if not 0 <= count <= POP_MESSAGES_MAX:
        raise ValueError(f"{count} messages")
    # Before 5.0 there were no differences: the messages follow each other.
    steps = members.get("d") or range(count)
    key = CheckPointKey(
        _text(members["t"]),
        _text(members["c"]),
        _whole(members["q"]),
        start,
        _whole(members["pt"]),
        _text(members.get("bn") or ""),
    )
    acknowledged = _whole(members.get("bm", 0))
    offsets = [start + _whole(step) for step in steps[:count]]
    left = tuple(offset for bit, offset in enumerate(offsets) if not acknowledged >> bit & 1)
    return CheckPoint(key, _whole(members["it"]), left, members.get("sp") is True)


def _ack_key(members: dict[str, Any], broker_name: str) -> CheckPointKey:
    return CheckPointKey(
        _text(_of(members, "t", "topic")),
        _text(_of(members, "c", "consumerGroup")),
        _whole(_of(members, "q", "queueId")),
        _whole(_of(members, "so", "startOffset")),
        _whole(_of(members, "pt", "popTime")),
        _text(members.get("bn") or members.get("brokerName") or broker_name),
    )


def _of(members: dict[str, Any], name: str, long_name: str) -> Any:
    """Return a member under RocketMQ's short name, or the long one of earlier versions."""
    return members[name] if name in members else members[long_name]


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not text")
    return value
