"""Sends that wait in a group and leave as one block; each still gets its own receipt or its own error."""

from __future__ import annotations

from copy import copy

from reput_client.batching import Batcher, Entry, Group
from reput_client.errors import ClientClosed
from reput_client.puts import Putter, block_receipts, check_ack, outcome_unknown, result_of
from reput_client.receipts import SendReceipt
from reput_client.session import Session, wall_clock_ms
from reput_protocol.codes import AckLevel
from reput_protocol.errors import InvalidMessage
from reput_protocol.message import Message, MessageQueue, encode_properties_text
from reput_protocol.put_block import BLOCK_BYTES_MAX, encode_put_block
from reput_protocol.record import record_bytes


class LingeringSends:
    """The groups of one producer.

    No task of its own watches the clock: every member waits until its group is due, and the first to notice sends
    the block for all. A member that is cancelled before that is taken out of the group; later, the block is on
    its way and only the member's own wait ends.
    """

    def __init__(self, session: Session, putter: Putter, batcher: Batcher) -> None:
        self._session = session
        self._putter = putter
        self._batcher = batcher

    async def send(
        self, queue: MessageQueue, message: Message, unique_id: str | None, ack: AckLevel, deadline: float
    ) -> SendReceipt:
        """Send `message` together with others that come soon; raises what `Producer.send` raises."""
        session = self._session
        size = record_bytes(len(message.body), queue.topic, len(encode_properties_text(message, unique_id)))
        if size > BLOCK_BYTES_MAX:
            raise InvalidMessage(
                f"a message of {size} bytes in all, but at most {BLOCK_BYTES_MAX} travel at once"
            )
        started_at = session.runtime.now()
        entry = Entry(message, unique_id, size)
        group = self._batcher.add(queue, ack, entry, started_at)
        try:
            while group.open and session.runtime.now() < min(group.due_at, deadline):
                session.check_open()
                await session.pump.wait(entry.waiter, min(group.due_at, deadline))
            if group.open:
                connection = await self._putter.connection(queue, deadline)
                if group.open:  # another member may have been quicker while this one connected
                    self._batcher.close(group)
                    template = self._putter.template(queue, len(group.entries), ack)
                    group.block = _encode(group)
                    group.call = connection.start_template(template, group.fan_out, group.block)
            try:
                answered = await session.pump.wait(entry.waiter, deadline)
            except ClientClosed as closed:  # by an interrupt
                raise outcome_unknown(queue, [unique_id], str(closed)) from closed
        finally:
            self._batcher.withdraw(group, entry)
        assert group.call is not None, "a group that is closed has a call"
        waited_s = deadline - started_at
        if not answered:
            # Even if it has not left yet: other members may still wait for it, so it is not taken back.
            raise outcome_unknown(queue, [unique_id], f"no answer within {waited_s:.2g} s")
        return _receipt(group, entry)


def _encode(group: Group) -> bytearray:
    for entry in group.entries:
        group.fan_out.members.append(entry.waiter)
    return encode_put_block(
        [entry.message for entry in group.entries],
        group.queue.topic,
        group.queue.queue_id,
        wall_clock_ms(),
        [entry.unique_id for entry in group.entries],
    )


def _receipt(group: Group, entry: Entry) -> SendReceipt:
    """Return the entry's own receipt or raise an error of its own: members must not share an exception."""
    call = group.call
    assert call is not None
    if call.error is not None:
        if call.sent:
            raise outcome_unknown(group.queue, [entry.unique_id], str(call.error)) from call.error
        raise copy(call.error)
    result = result_of(call)
    if group.receipts is None:
        unique_ids = [member.unique_id for member in group.entries]
        group.receipts = block_receipts(group.queue.topic, group.block, result, unique_ids)
    receipt = group.receipts[group.entries.index(entry)]
    check_ack(call, group.ack, [receipt])
    return receipt
