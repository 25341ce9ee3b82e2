"""Popped messages; acknowledging them, and changing their invisible times, at the broker from which each came.

(RocketMQ: ackMessage, batchAckMessage, changePopInvisibleTime.)
"""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

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
    marked_topic,
)
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import HeaderType

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

    __slots__ = (
        "_handle",
        "_invisible_until",
        "_popped_before",
        "_settling",
        "is_acknowledged",
        "is_given_back",
    )

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


class Settling:
    """Settles the messages of one consumer, one request for a message at a time."""

    def __init__(self, session: Session, group: str) -> None:
        self.session = session
        self.group = group
        self._busy: dict[Delivered, Event] = {}

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

    async def _ack_at(
        self, messages: Sequence[Delivered], indices: list[int], errors: dict[int, ReputError]
    ) -> None:
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
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                header,
                message,
                f"changing the invisible time of {message!r}",
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
            self.session,
            message,
            group=self.group,
            queue=_asked_for(message),
            delay_level=DEAD_LETTER,
            reason=reason,
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
        ext = {} if header is None else header.to_ext(HeaderType.MSGPACK)
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
