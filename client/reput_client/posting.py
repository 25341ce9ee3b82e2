"""Sends that return at once: messages gather in groups, leave as blocks (`group_sender.py`), are acknowledged later."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from reput_client.batching import Group, Posted
from reput_client.errors import PostsFailed, RequestTimeout
from reput_client.group_sender import GroupSender
from reput_client.many import id_text_bytes
from reput_client.puts import Putter, outcome_unknown, too_large
from reput_client.queue_selector import RoundRobin, queue_by_id, queue_by_key
from reput_client.receipts import SendReceipt
from reput_client.session import Session
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.message import (
    Message,
    MessageQueue,
    check_properties_size,
    checked_body,
    encode_properties_text,
)
from reput_protocol.message_id import UniqueIdGenerator
from reput_protocol.record import record_bytes
from reput_protocol.record_batch import BLOCK_BYTES_MAX

POST_LINGER_S: Final = 0.005
"""How long what is posted waits for more unless the producer has a `linger_s` of its own."""

POST_BLOCK_MESSAGES: Final = 1024
HELD_BYTES: Final = 32 << 20
_TEXTS_MAX: Final = 1024

Callback = Callable[[Posted], object]


class Posts(GroupSender):
    """What was posted, or lingers, with one producer, and the groups that it waits in."""

    def __init__(
        self,
        session: Session,
        putter: Putter,
        selector: RoundRobin,
        ids: UniqueIdGenerator | None,
        *,
        linger_s: float,
        block_bytes: int,
        held_bytes: int,
        retries: int,
    ) -> None:
        super().__init__(session, putter, ids, retries)
        self._selector = selector
        self._id_bytes = id_text_bytes(ids)
        self._linger_s = linger_s if linger_s > 0 else POST_LINGER_S
        self._block_bytes = block_bytes
        self._held_max = held_bytes
        self._serials = itertools.count()
        self._texts: dict[str | None, bytes] = {}
        """The properties texts of tags."""
        self._fixed: dict[str, int] = {}
        """How many bytes a record of each topic has besides body and properties."""

    # -- taking messages -----------------------------------------------------------------------------------------------

    def post_now(
        self,
        topic: str,
        body: Buffer,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        flag: int,
        ack: AckLevel,
        queue_id: int | None,
        key: str | None,
        callback: Callback | None,
    ) -> Posted | None:
        """Put a message into a group that is open; None if that takes more than a moment: see `post`."""
        if queue_id is None and key is None:
            group = self._sticky.get((topic, ack, flag))
        else:
            queue = self._queue(topic, queue_id, key)
            group = None if queue is None else self._open.get((queue, ack, flag))
        if group is None or not group.open:
            return None
        text = self._texts.get(tag) if not keys and not properties else None
        if text is None:
            text = self._text_of(topic, tag, keys, properties)
        if type(body) is not bytes:
            body = bytes(checked_body(body))  # its owner may change it when this has returned
        size = len(body) + len(text) + self._fixed[topic]
        if group.size + size > self._block_bytes or self._held + size > self._held_max:
            return None
        self._held += size
        posted = group.add(body, text, size, callback)
        if posted.number >= POST_BLOCK_MESSAGES - 1:
            self._leave(group)
        return posted

    async def post(
        self,
        topic: str,
        body: Buffer,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        flag: int,
        ack: AckLevel,
        queue_id: int | None,
        key: str | None,
        callback: Callback | None,
    ) -> Posted:
        """Put a message into a group once there is room; send the group that it does not fit, open one if need be.

        Raises:
            InvalidName, InvalidMessage: it cannot be sent.
            RequestTimeout: nothing that is held was answered in time.
            TopicNotFound, NoQueue, ConnectFailed, ClientClosed: not sent.
        """
        message = Message(topic, body, tag, keys, properties, flag)
        body = message.body if type(message.body) is bytes else bytes(message.body)
        text = self._text_of(topic, tag, keys, properties)
        deadline = self._session.deadline(None)
        route = await self._session.publish_route(topic, deadline)
        if queue_id is not None:
            queue = queue_by_id(route, queue_id)
        elif key is not None:
            queue = queue_by_key(route, key)
        else:
            group = self._sticky.get((topic, ack, flag))
            if group is not None and group.size + self._size(topic, body, text) > self._block_bytes:
                self._leave(group)
                group = None
            queue = self._selector.choose(route) if group is None else group.queue
            return await self._add(queue, ack, flag, body, text, callback, deadline, is_sticky=True)
        return await self._add(queue, ack, flag, body, text, callback, deadline)

    async def send(
        self,
        queue: MessageQueue,
        message: Message,
        ack: AckLevel,
        deadline: float,
        *,
        has_deadline: bool,
    ) -> SendReceipt:
        """Send `message` together with others that come soon; raises what `Producer.send` raises.

        Who is cancelled before the group has left takes the message back; later, only the wait ends.
        """
        body = message.body if type(message.body) is bytes else bytes(message.body)
        text = encode_properties_text(message, None)
        started_at = self._session.runtime.now()
        posted = await self._add(
            queue, ack, message.flag, body, text, None, deadline, has_own_id=message.unique_id is not None
        )
        posted.heeded = True
        try:
            await self._settled(posted, deadline if has_deadline else math.inf)
        finally:
            taken_back = not posted.done and self._withdraw(posted, self._size(queue.topic, body, text))
        if not posted.done:
            waited_s = deadline - started_at
            if taken_back:
                raise RequestTimeout(f"send to {queue.topic}/{queue.queue_id}", waited_s)
            unique_id = posted.group.unique_ids[posted.number]
            raise outcome_unknown(queue, [unique_id], f"no answer within {waited_s:.2g} s")
        return posted.receipt

    async def _add(
        self,
        queue: MessageQueue,
        ack: AckLevel,
        flag: int,
        body: bytes,
        text: bytes,
        callback: Callback | None,
        deadline: float,
        *,
        has_own_id: bool = False,
        is_sticky: bool = False,
    ) -> Posted:
        check_properties_size(len(text) + (0 if has_own_id else self._id_bytes))
        size = self._size(queue.topic, body, text)
        if size > BLOCK_BYTES_MAX:
            raise too_large(size)
        if self._held and self._held + size > self._held_max:
            await self._room_for(size, deadline)
        self._check_open()
        where = (queue, ack, flag)
        group = self._open.get(where)
        if group is not None and group.size + size > self._block_bytes:
            self._leave(group)
            group = None
        if group is None:
            now = self._session.runtime.now()
            group = self._open[where] = Group(next(self._serials), queue, ack, flag, now + self._linger_s)
            self._unfinished[group] = None
            self._see_to(group.due_at)
            if is_sticky:
                self._sticky[queue.topic, ack, flag] = group
        self._held += size
        posted = group.add(body, text, size, callback)
        group.has_own_ids |= has_own_id
        if group.size >= self._block_bytes or len(group.entries) >= POST_BLOCK_MESSAGES:
            self._leave(group)
        return posted

    def _queue(self, topic: str, queue_id: int | None, key: str | None) -> MessageQueue | None:
        """Return the queue that was asked for, None if the topic's route is not known."""
        route = self._session.routes.get(topic)
        if route is None:
            return None
        return queue_by_id(route, queue_id) if queue_id is not None else queue_by_key(route, key or "")

    def _text_of(
        self, topic: str, tag: str | None, keys: Sequence[str], properties: Mapping[str, str] | None
    ) -> bytes:
        text = encode_properties_text(Message(topic, b"", tag, keys, properties), None)
        check_properties_size(len(text) + self._id_bytes)
        if not keys and not properties:
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            self._texts[tag] = text
        return text

    def _size(self, topic: str, body: bytes, text: bytes) -> int:
        fixed = self._fixed.get(topic)
        if fixed is None:
            if len(self._fixed) >= _TEXTS_MAX:
                self._fixed = {
                    group.queue.topic: self._fixed[group.queue.topic] for group in self._unfinished
                }
            fixed = self._fixed[topic] = record_bytes(0, topic, self._id_bytes)
        return fixed + len(body) + len(text)

    async def _room_for(self, size: int, deadline: float) -> None:
        """Wait until `size` more bytes may be held; what gathers leaves at once."""
        for group in list(self._open.values()):
            self._leave(group)
        started_at = self._session.runtime.now()
        if not await self._until(lambda: not self._held or self._held + size <= self._held_max, deadline):
            raise RequestTimeout(
                f"room for {size} bytes beside the {self._held} that wait for an answer",
                deadline - started_at,
            )

    def _withdraw(self, posted: Posted, size: int) -> bool:
        group = posted.group
        if not group.withdraw(posted, size):
            return False
        self._held -= size
        if not group.entries:
            self._forget_open(group)
            group.open = False
            group.done = True
            self._unfinished.pop(group, None)
        self._notify(self._watchers)
        return True

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def result(self, posted: Posted) -> SendReceipt:
        """Wait until a posted message is done; return its receipt or raise its error."""
        posted.heeded = True
        await self._settled(posted, math.inf)
        return posted.receipt

    async def flush(self) -> None:
        """Send what has gathered and wait until all that was posted before is done, callbacks included.

        Raises:
            PostsFailed: messages failed, and nobody was told of it yet.
        """
        for group in list(self._open.values()):
            self._leave(group)
        last = max((group.serial for group in self._unfinished), default=-1)
        await self._until(lambda: all(group.serial > last for group in self._unfinished), math.inf)
        await self._call_back()
        self._raise_failures()

    def _raise_failures(self) -> None:
        failed, self._failed = self._failed, []
        count, self._failures = self._failures, 0
        more = count - len(failed)
        unheeded = [posted for posted in failed if not posted.heeded]
        if unheeded:
            for posted in unheeded:
                posted.heeded = True
            raise PostsFailed(unheeded, len(unheeded) + more)
