"""Messages of a `PopConsumer`, and how the answer to a pop becomes messages.

(RocketMQ: MQClientAPIImpl.processPopResponse.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from reput_client.consume.pull import read_records
from reput_client.pop.settling import Popped, Settling
from reput_client.received import PulledRecords, V
from reput_protocol.commands.pop import PopHandle, PopMessageResult, retry_mark
from reput_protocol.properties import POP_CK, decode_properties
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.scan import PROPERTIES, QUEUE_ID, QUEUE_OFFSET, WIDTH
from reput_protocol.wire.channel import Call

M = TypeVar("M", bound="Popped")

SPAN_MAX: Final = 1 << 20
"""How many offsets a pop goes over at most, most of them of messages that do not fit its filter."""

log = logging.getLogger("reput_client")


class PoppedMessage(Popped[V]):
    """A message of a `PopConsumer`, which has to be acknowledged before its invisible time ends.

    Its methods differ from those of a message of a `Consumer`:

    - `ack` asks the broker: await it. That of a `Consumer` notes something, and the progress of its queue is committed
      later.
    - `nack` ends the invisible time: the message itself is redelivered, at once without `delay_s`, after any other time
      exactly, and it can be without an attempt; it has no `reason`. A `Consumer` sends a copy to the group's retry
      topic, after 10 s and more without `delay_s`, which is rounded up to a delay level.
    - `extend` keeps the message. A `Consumer` has its queue for as long as it is a member.

    They raise `InvalidHandle` once that has ended. Requests go to the broker from which the message came; while
    that cannot be reached they raise `ConnectFailed` or `RequestTimeout` and can be repeated.
    """

    __slots__ = ()

    async def ack(self) -> None:  # type: ignore[override]  # it asks the broker
        """Acknowledge the message: the group is done with it. Acknowledging it again has no effect.

        On return the acknowledgement is as safe as a message that is sent with the broker's default level.

        Raises:
            InvalidHandle: its invisible time has ended; it is redelivered.
            BrokerError, RequestTimeout, ConnectFailed: not acknowledged, or unknown; repeating is safe.
        """
        await self._settling.ack_one(self)

    async def nack(  # type: ignore[override]  # without a reason
        self, delay_s: float | None = None, *, counts: bool = True
    ) -> None:
        """Give the message back: the group receives it again after `delay_s` seconds, or at once.

        Args:
            counts: whether this was an attempt. False for a message that was not tried: a worker stops, or is the wrong
                one. RocketMQ's brokers count it all the same.

        Raises:
            InvalidHandle: its invisible time has ended already, or it is acknowledged.
            BrokerError, RequestTimeout, ConnectFailed: not given back, or unknown.
        """
        await self._settling.nack(self, delay_s or 0.0, counts=counts)

    async def extend(self, invisible_s: float) -> None:
        """Keep the message for `invisible_s` seconds from now.

        Raises:
            InvalidHandle: its invisible time has ended already, or it is acknowledged.
            BrokerError, RequestTimeout, ConnectFailed: not extended, or unknown.
        """
        await self._settling.change(self, invisible_s)

    async def reject(self, *, reason: str | None = None) -> None:
        """Make the message a dead letter of the group, and acknowledge it. `reason` is stored with it, for people.

        If this raises, the message may be a dead letter and is redelivered too.

        Raises:
            InvalidHandle: its invisible time has ended already, or it is acknowledged.
            BrokerError, RequestTimeout, ConnectFailed: not rejected, or unknown.
        """
        await self._settling.reject(self, reason)


def popped_messages(
    kind: type[M],
    settling: Settling,
    source: MessageQueue,
    call: Call,
    invisible_until: float,
    deserializer: Callable[[bytes], Any] | None,
) -> list[M]:
    """Return the messages of an answered pop. A message that fails its checksum raises when its content is accessed.

    Raises:
        RecordMalformed: the answer does not consist of records.
    """
    result = PopMessageResult.from_ext(call.answer.ext)
    starts = _parsed(result.start_offset_info)
    counts = _parsed(result.order_count_info)
    data = bytes(call.body)
    records = PulledRecords(source.topic, source.broker_name, data, read_records(data))
    records.deserializer = deserializer
    mark = retry_mark(source.topic)
    found: list[M] = []
    for at in range(0, len(records.table), WIDTH):
        queue_id, queue_offset = records.table[at + QUEUE_ID], records.table[at + QUEUE_OFFSET]
        start, size = records.table[at + PROPERTIES : at + PROPERTIES + 2]
        # Only redelivered messages have their handle.
        text = decode_properties(data[start : start + size]).get(POP_CK)
        try:
            if text is not None:
                handle = PopHandle.parse(text)
                handle = handle._replace(queue_offset=queue_offset)
            else:
                handle = PopHandle(
                    int(starts[mark, str(queue_id)]), result.pop_time, result.invisible_time, result.revive_qid, mark,
                    source.broker_name, queue_id, queue_offset,
                )  # fmt: skip
            if not 0 <= queue_offset - handle.start_offset < SPAN_MAX:
                raise ValueError(f"offset {queue_offset} of a pop from {handle.start_offset}")
            count = counts.get((mark, f"qo{queue_id}%{queue_offset}"), counts.get((mark, str(queue_id)), "0"))
            popped_before = int(count) if handle.is_ordered else None
        except (ValueError, KeyError) as error:
            log.warning(
                "popped message %s/%d at offset %d is damaged, and is redelivered: %s",
                source.topic, queue_id, queue_offset, error,
            )  # fmt: skip
            continue
        found.append(kind(records, at, settling, handle, invisible_until, popped_before))
    return found


def _parsed(text: str | None) -> dict[tuple[str, str], str]:
    """Read one of the texts of an answer: by topic's mark and queue, see `reput_protocol.commands.pop`."""
    parts = [part.split(" ") for part in (text or "").split(";")]
    return {(part[0], part[1]): part[2] for part in parts if len(part) == 3}
