"""Popped messages: how the answer to a pop becomes messages, and their acknowledgement.

They are acknowledged, and their invisible times are changed, at the broker from which each came. (RocketMQ:
MQClientAPIImpl.processPopResponse, ackMessage, batchAckMessage, changePopInvisibleTime.)
"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from reput_client.consume.pull import read_records
from reput_client.consume.send_back import DEAD_LETTER, send_back
from reput_client.errors import InvalidHandle, PartlyAcknowledged
from reput_client.received import PulledRecords, ReceivedMessage, V
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pop import (
    AckMessageHeader,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResult,
    PopHandle,
    PopMessageResult,
    marked_topic,
    retry_mark,
)
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.properties import POP_CK, decode_properties
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.scan import PROPERTIES, QUEUE_ID, QUEUE_OFFSET, WIDTH
from reput_protocol.wire.channel import Call

_NOT_IN_HAND = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE)
"""How brokers refuse a handle."""


class Delivered(Protocol):
    """What settling needs of a message: a popped one, or no more than its handle, which another process may have got.

    Attributes:
        is_acknowledged, is_given_back: as of `Popped`.
    """

    _handle: PopHandle
    _invisible_until: float
    is_acknowledged: bool
    is_given_back: bool

    @property
    def topic(self) -> str:
        """The consumed topic."""

    @property
    def broker_name(self) -> str:
        """The broker that holds it."""

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was popped from, of the topic or of a retry topic."""


class Popped(ReceivedMessage[V]):
    """A message that the group does not receive again before its invisible time ends.

    `ack`, `nack` and `reject`, which its classes for the async and the synchronous API have, ask the broker about this
    message. Those of a message of a `Consumer` are about the progress of its queue; see `PoppedMessage`.

    Attributes:
        is_acknowledged: whether the group is done with it.
        is_given_back: whether its invisible time was ended, or changed, by `nack`.
    """

    __slots__ = ("_handle", "_invisible_until", "_popped_before", "_settling", "is_acknowledged", "is_given_back")

    def __init__(
        self,
        records: PulledRecords,
        at: int,
        settling: Settling,
        handle: PopHandle,
        invisible_until: float,
        popped_before: int | None,
    ) -> None:
        """Create the message for the row that starts at `at` in the table.

        Args:
            handle: identifies this delivery at its broker; another invisible time gives another handle.
            invisible_until: when the invisible time ends, on the clock of the client's runtime.
            popped_before: how often, of a message that was popped in order; of any other, its record has it.
        """
        super().__init__(records, at)
        self._settling = settling
        self._handle = handle
        self._invisible_until = invisible_until
        self._popped_before = popped_before
        self.is_acknowledged = False
        self.is_given_back = False

    @property
    def reconsume_times(self) -> int:
        """How often the message was delivered to the group before."""
        return super().reconsume_times if self._popped_before is None else self._popped_before

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was popped from; of a redelivered message, a queue of the group's retry topic."""
        topic = marked_topic(self.topic, self._settling.group, self._handle.mark)
        return MessageQueue(topic, self.broker_name, self._handle.queue_id)


@dataclass(eq=False, repr=False)
class Settling:
    """Settles the messages of one consumer, one request for a message at a time."""

    session: Session
    group: str
    _busy: dict[Delivered, Event] = field(default_factory=dict, init=False)

    async def ack_one(self, message: Delivered) -> None:
        """Acknowledge a message; raises like `PoppedMessage.ack`."""
        for error in (await self.ack([message])).values():
            raise error

    async def ack_all(self, messages: Iterable[Delivered]) -> None:
        """Acknowledge messages; raises `PartlyAcknowledged` unless all are."""
        messages = list(messages)
        errors = await self.ack(messages)
        if errors:
            raise PartlyAcknowledged(len(messages), errors)

    async def ack(self, messages: Sequence[Delivered]) -> dict[int, ReputError]:
        """Acknowledge messages with one request for each broker; return the errors by index."""
        errors: dict[int, ReputError] = {}
        async with self._only(messages):
            by_broker: dict[str, list[int]] = {}
            for index, message in enumerate(messages):
                if message.is_acknowledged:
                    continue
                try:
                    self._check(message)
                except InvalidHandle as error:
                    errors[index] = error
                else:
                    by_broker.setdefault(message.broker_name, []).append(index)
            for indices in by_broker.values():
                await self._ack_at(messages, indices, errors)
        return errors

    async def _ack_at(self, messages: Sequence[Delivered], indices: list[int], errors: dict[int, ReputError]) -> None:
        """Acknowledge messages of one broker."""
        if len(indices) > 1:
            wanted = [messages[index] for index in indices]
            try:
                await self._ask(
                    RequestCode.BATCH_ACK_MESSAGE,
                    None,
                    wanted[0],
                    f"acknowledging {len(wanted)} messages",
                    BatchAckBody(wanted[0]._handle.broker_name, _batch_acks(self.group, wanted)).to_json(),
                )
            except BrokerError as error:
                if error.retryable:
                    errors.update(dict.fromkeys(indices, error))
                    return
                # Which of them is the reason? Or the broker knows no batches.
            except ReputError as error:
                errors.update(dict.fromkeys(indices, error))
                return
            else:
                for message in wanted:
                    message.is_acknowledged = True
                return
        for number, index in enumerate(indices):
            message = messages[index]
            try:
                await self._ask(
                    RequestCode.ACK_MESSAGE,
                    AckMessageHeader(
                        self.group,
                        message.queue.topic,
                        message._handle.queue_id,
                        str(message._handle),
                        message._handle.queue_offset,
                    ),
                    message,
                    f"acknowledging {message!r}",
                )
            except (BrokerError, InvalidHandle) as error:
                errors[index] = error
            except ReputError as error:
                self.session.check_open()
                errors.update(dict.fromkeys(indices[number:], error))  # of the others it would be the same
                return
            else:
                message.is_acknowledged = True

    async def change(self, message: Delivered, invisible_s: float, *, counts: bool = True) -> None:
        """Set another invisible time from now; raises like `PoppedMessage.extend`.

        Args:
            counts: whether the delivery after that is one more attempt.
        """
        if not 0 <= invisible_s < math.inf:
            raise ValueError(f"a message can be invisible for 0 seconds or more, not {invisible_s}")
        async with self._only([message]):
            self._check(message)
            handle = message._handle
            header = ChangeInvisibleTimeHeader(
                self.group,
                message.queue.topic,
                handle.queue_id,
                str(handle),
                handle.queue_offset,
                round(invisible_s * 1000),
                not counts,
            )
            call = await self._ask(
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, message, f"changing the invisible time of {message!r}"
            )
            result = ChangeInvisibleTimeResult.from_ext(call.answer.ext)
            if not result.pop_time:
                raise _invalid(message, "the group has acknowledged it")
            message._handle = handle._replace(
                start_offset=handle.queue_offset,
                pop_time=result.pop_time,
                invisible_time=result.invisible_time,
                revive_queue_id=result.revive_qid,
            )
            message._invisible_until = self.session.runtime.now() + invisible_s

    async def nack(self, message: Delivered, delay_s: float, *, counts: bool = True) -> None:
        """Give a message back; raises like `PoppedMessage.nack`."""
        await self.change(message, delay_s, counts=counts)
        message.is_given_back = True

    async def reject(self, message: Popped, reason: str | None) -> None:
        """Make a message a dead letter; raises like `PoppedMessage.reject`."""
        self._check(message)
        # First: what follows may fail, and the message would be lost.
        await send_back(
            self.session, message, group=self.group, queue=_asked_for(message), delay_level=DEAD_LETTER, reason=reason
        )
        await self.ack_one(message)

    # -- common ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _only(self, messages: Sequence[Delivered]) -> AsyncGenerator[None]:
        """Wait until no other request for one of the messages is under way: each may change the handle."""
        while busy := next((self._busy[message] for message in messages if message in self._busy), None):
            await busy.wait(math.inf)
        done = self.session.runtime.event()
        self._busy.update(dict.fromkeys(messages, done))
        try:
            yield
        finally:
            for message in messages:
                self._busy.pop(message, None)
            done.set()

    def _check(self, message: Delivered) -> None:
        if message.is_acknowledged:
            raise _invalid(message, "it is acknowledged")
        late_s = self.session.runtime.now() - message._invisible_until
        if late_s >= 0:
            raise _invalid(message, f"its invisible time ended {late_s:.3g} s ago")

    async def _ask(
        self,
        code: RequestCode,
        header: AckMessageHeader | ChangeInvisibleTimeHeader | None,
        message: Delivered,
        what: str,
        body: bytes = b"",
    ) -> Call:
        """Send a request to the master of a message's broker."""
        ext = {} if header is None else header.to_ext()
        try:
            return await self.session.ask_ok(code, ext, what=what, queue=_asked_for(message), body=body)
        except BrokerError as error:
            if error.response_code in _NOT_IN_HAND and header is not None:
                raise _invalid(message, f"the broker rejects it: {error}") from error
            raise


def _asked_for(message: Delivered) -> MessageQueue:
    """Return the message's queue under the consumed topic, whose route is known."""
    return MessageQueue(message.topic, message.broker_name, message._handle.queue_id)


def _invalid(message: Delivered, reason: str) -> InvalidHandle:
    topic, _, queue_id = message.queue
    return InvalidHandle(topic, queue_id, message._handle.queue_offset, reason)


def _batch_acks(group: str, messages: Sequence[Delivered]) -> list[BatchAck]:
    """Return the acknowledgements of messages of one broker, one for each check point."""
    bits: dict[tuple[str, PopHandle], int] = {}
    for message in messages:
        handle = message._handle
        point = message.topic, handle._replace(queue_offset=0)
        bits[point] = bits.get(point, 0) | 1 << (handle.queue_offset - handle.start_offset)
    return [
        BatchAck(
            consumer_group=group,
            topic=topic,
            mark=handle.mark,
            start_offset=handle.start_offset,
            queue_id=handle.queue_id,
            revive_queue_id=handle.revive_queue_id,
            pop_time=handle.pop_time,
            invisible_time=handle.invisible_time,
            bits=base64.b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode(),
        )
        for (topic, handle), number in bits.items()
    ]


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
