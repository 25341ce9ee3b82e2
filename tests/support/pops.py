"""What a client makes of the answer to a pop, and a client that pops over a socket."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pop import PopHandle, PopMessageResult, marked_topic, retry_mark
from reput_protocol.record.record import Record, decode_record, record_views
from reput_protocol.wire.header import Value
from support.raw_client import RawClient


class Popped(NamedTuple):
    """A message as a client has it."""

    record: Record
    handle: PopHandle

    def ack_fields(self, group: str, topic: str) -> dict[str, str]:
        """Return the fields of an acknowledgement by a group that has popped from a topic."""
        return {
            "consumerGroup": group,
            "topic": marked_topic(topic, group, self.handle.mark),
            "queueId": str(self.handle.queue_id),
            "extraInfo": str(self.handle),
            "offset": str(self.handle.queue_offset),
        }

    def changed(self, ext: Mapping[str, Value]) -> Popped:
        """Return it with the handle that the answer to a change of its time makes."""
        found = {name: int(str(value)) for name, value in ext.items()}
        handle = self.handle._replace(
            start_offset=self.handle.queue_offset,
            pop_time=found["popTime"],
            invisible_time=found["invisibleTime"],
            revive_queue_id=found["reviveQid"],
        )
        return self._replace(handle=handle)


def popped_messages(ext: Mapping[str, Value], body: bytes, broker_name: str = "broker-a") -> list[Popped]:
    """Return the messages with handles made as RocketMQ's client does (MQClientAPIImpl.processPopResponse)."""
    result = PopMessageResult.from_ext(ext)
    starts = _parsed(result.start_offset_info)
    listed = {place: text.split(",") for place, text in _parsed(result.msg_offset_info).items()}
    found = []
    for view in record_views(body):
        record = decode_record(body[view.position : view.position + view.size])
        text = record.property_map().get("POP_CK")
        if text is None:
            place = retry_mark(record.topic), str(record.queue_id)
            assert str(record.queue_offset) in listed[place]
            text = (
                f"{starts[place]} {result.pop_time} {result.invisible_time} {result.revive_qid} {place[0]} "
                f"{broker_name} {record.queue_id} {record.queue_offset}"
            )
        found.append(Popped(record, PopHandle.parse(text)))
    return found


def _parsed(text: str | None) -> dict[tuple[str, str], str]:
    parts = [part.split(" ") for part in (text or "").split(";") if part]
    assert len({(mark, queue) for mark, queue, _ in parts}) == len(parts), "RocketMQ's client refuses duplicates"
    return {(mark, queue): rest for mark, queue, rest in parts}


def pop_fields(group: str, topic: str, **fields: Value) -> dict[str, Value]:
    """Pop up to 32 messages of any queue, invisible for 10 s, without waiting; the fields replace that."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "pollTime": "0",
        "invisibleTime": "10000", "bornTime": str(time.time_ns() // 1_000_000), "initMode": "0", "order": "false",
        **fields,
    }  # fmt: skip


def pop(client: RawClient, group: str, topic: str, **fields: Value) -> list[Popped]:
    """Pop; see `pop_fields`. A new master that is busy with taking over has nothing yet."""
    header, body = client.request(RequestCode.POP_MESSAGE, pop_fields(group, topic, **fields))
    if header.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.SYSTEM_BUSY):
        return []
    assert header.code == 0, header.remark
    return popped_messages(header.ext, body)


def acknowledge(client: RawClient, group: str, topic: str, one: Popped) -> None:
    """Acknowledge a message; returns when the broker has confirmed that."""
    header, _ = client.request(RequestCode.ACK_MESSAGE, {**one.ack_fields(group, topic)})
    assert header.code == 0, header.remark
