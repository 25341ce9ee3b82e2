"""Many messages, each an object of its own, with many frames in flight: single messages, or blocks of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from reput_client.core import Call
from reput_client.frame_window import FrameWindow, Lane, Sent
from reput_client.receipts import SendReceipt
from reput_client.routing import Route
from reput_client.session import wall_clock_ms
from reput_client.unique_ids import ids_for
from reput_protocol.buffers import Buffer
from reput_protocol.counted import counted
from reput_protocol.errors import InvalidMessage
from reput_protocol.message import Message, encode_properties_text
from reput_protocol.put_block import BLOCK_BYTES_MAX, encode_block, encode_put_block

_new_tuple = tuple.__new__  # past the constructor of a named tuple, which is Python's


class PipelinedSend(FrameWindow):
    """One `send_pipelined` call."""

    async def run(self, messages: Iterable[Message], batch: int) -> list[SendReceipt]:
        """Send all in frames of up to `batch` messages and return their receipts in order; raises as `_run`."""
        send = self._send_singles(messages) if batch == 1 else self._send_blocks(messages, batch)
        return [receipt for receipts in await self._run(send) for receipt in receipts]

    async def _send_singles(self, messages: Iterable[Message]) -> None:
        route: Route | None = None
        topic = None
        window = self._window
        lanes = self._lanes
        ids = self._ids
        choose = self._selector.choose if self._queue_id is None and self._key is None else self._choose
        unflushed = 0
        for index, message in enumerate(messages):
            self._begun = index + 1
            if message.topic != topic:
                topic = message.topic
                route = await self._session.publish_route(topic, self._session.deadline(self._timeout_s))
            assert route is not None
            queue = choose(route)
            unique_id = message.unique_id
            has_own_id = unique_id is not None
            lane = lanes.get((queue, 1, has_own_id))
            if lane is None or not lane.connection.is_open:
                lane = await self._lane(queue, 1, has_own_ids=has_own_id)
            if unique_id is None and ids is not None:
                unique_id = ids.next()
            if message.delay is not None:
                call = self._start_single(lane, message, unique_id)
            else:
                text = encode_properties_text(message, unique_id)
                record, _ = encode_block(
                    (message.body,), (text,), topic, queue.queue_id, wall_clock_ms(), flags=(message.flag,)
                )
                call = lane.connection.start_template(lane.template, self._waiter, record)
            window.append(_new_tuple(Sent, (index, call, lane, (unique_id,), b"", None)))
            unflushed += 1
            if unflushed >= self._flush_every:
                # Early, so that the broker works on these while the next ones are encoded.
                lane.connection.flush_now()
                unflushed = 0
            if len(window) >= self._in_flight and not await self._make_room():
                return

    async def _send_blocks(self, messages: Iterable[Message], batch: int) -> None:
        iterator = iter(messages)
        window = self._window
        held: list[Message] = []
        while group := held or list(islice(iterator, batch)):
            topic = group[0].topic
            if group[0].is_delayed:
                end = 1
            else:
                strange = (i for i, m in enumerate(group) if m.topic != topic or m.delay is not None)
                end = next(strange, len(group))
            group, held = group[:end], group[end:]
            index = self._begun
            self._begun += len(group)
            route = await self._session.publish_route(topic, self._session.deadline(self._timeout_s))
            queue = self._choose(route)
            has_own_ids = any(message.unique_id is not None for message in group)
            lane = await self._lane(queue, len(group), has_own_ids=has_own_ids)
            unique_ids = ids_for(group, self._ids)
            block: Buffer = b""
            if group[0].is_delayed:
                call = self._start_single(lane, group[0], unique_ids[0])
            else:
                block = encode_put_block(group, topic, queue.queue_id, wall_clock_ms(), unique_ids)
                if len(block) > BLOCK_BYTES_MAX:
                    raise InvalidMessage(
                        f"a block of {counted(len(group), 'message')} has {len(block)} bytes, but at most "
                        f"{BLOCK_BYTES_MAX} travel at once; choose a smaller batch"
                    )
                call = lane.connection.start_template(lane.template, self._waiter, block)
            window.append(Sent(index, call, lane, unique_ids, block))
            lane.connection.flush_now()
            if len(window) >= self._in_flight and not await self._make_room():
                return

    def _start_single(self, lane: Lane, message: Message, unique_id: str | None) -> Call:
        has_own_id = message.unique_id is not None
        template = self._putter.single(lane.queue, message, unique_id, self._ack, may_be_stored=has_own_id)
        return lane.connection.start_template(template, self._waiter, message.body)
