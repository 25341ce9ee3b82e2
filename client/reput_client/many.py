"""Many bodies of one topic, sent in blocks with several of them in flight, without an object for each message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice, takewhile

from reput_client.frame_window import FrameWindow, Sent
from reput_client.puts import too_large
from reput_client.receipts import ChainedReceipts, SendReceipt
from reput_client.session import wall_clock_ms
from reput_protocol.buffers import Buffer
from reput_protocol.counted import counted
from reput_protocol.errors import InvalidMessage
from reput_protocol.message import (
    Message,
    checked_body,
    encode_keys_texts,
    encode_properties_text,
)
from reput_protocol.message_id import UniqueIdGenerator
from reput_protocol.properties import UNIQ_KEY, check_properties_size
from reput_protocol.put_block import BLOCK_BYTES_MAX, encode_block
from reput_protocol.record import record_bytes


class ManySend(FrameWindow):
    """One `send_many` call."""

    async def run(
        self,
        topic: str,
        bodies: Iterable[Buffer],
        texts: Sequence[bytes],
        flag: int,
        *,
        batch: int,
        block_bytes: int,
    ) -> Sequence[SendReceipt]:
        """Send all and return their receipts in order; raises as `_run`.

        Args:
            texts: the encoded properties of each body but for its unique id; a single one is that of all.
            flag: of all.
            batch: how many messages a block has at most.
            block_bytes: how many bytes, unless one message alone has more.
        """
        work = self._send_blocks(topic, iter(bodies), texts, flag, batch, block_bytes)
        return ChainedReceipts(await self._run(work))

    async def _send_blocks(
        self,
        topic: str,
        bodies: Iterable[Buffer],
        texts: Sequence[bytes],
        flag: int,
        batch: int,
        block_bytes: int,
    ) -> None:
        iterator = iter(bodies)
        window, session = self._window, self._session
        fixed_bytes = record_bytes(0, topic, id_text_bytes(self._ids))
        held: list[Buffer] = []
        while group := held or self._checked(list(islice(iterator, batch))):
            index = self._begun
            own_texts = texts if len(texts) == 1 else texts[index : index + len(group)]
            end = self._end_of_block(group, own_texts, fixed_bytes, block_bytes)
            group, held = group[:end], group[end:]
            self._begun += end
            route = await session.publish_route(topic, session.deadline(self._timeout_s))
            queue = self._choose(route)
            lane = await self._lane(queue, end, has_own_ids=False)
            ids = None if self._ids is None else self._ids.next_run(end)
            block, positions = encode_block(
                group, own_texts[:end], topic, queue.queue_id, wall_clock_ms(), ids=ids, flags=(flag,)
            )
            call = lane.connection.start_template(lane.template, self._waiter, block)
            window.append(Sent(index, call, lane, ids or (None,) * end, b"", positions))
            lane.connection.flush_now()
            if len(window) >= self._in_flight and not await self._make_room():
                return

    def _checked(self, group: list[Buffer]) -> list[Buffer]:
        """Return the bodies as bytes that can be sent; the first that cannot is the message that fails."""
        if set(map(type, group)) <= {bytes}:
            return group
        for number, body in enumerate(group):
            try:
                group[number] = checked_body(body)
            except InvalidMessage:
                self._begun += number + 1
                raise
        return group

    def _end_of_block(
        self, group: list[Buffer], texts: Sequence[bytes], fixed_bytes: int, block_bytes: int
    ) -> int:
        """Return how many bodies of the group go into one block."""
        own_bytes = 0
        if len(texts) == 1:
            fixed_bytes += len(texts[0])
        else:
            own_bytes = sum(map(len, texts))
        if sum(map(len, group)) + own_bytes + len(group) * fixed_bytes <= block_bytes:
            return len(group)
        sizes = list(map(len, group))
        if own_bytes:
            sizes = [size + len(text) for size, text in zip(sizes, texts, strict=True)]
        if sizes[0] + fixed_bytes > BLOCK_BYTES_MAX:
            self._begun += 1
            raise too_large(sizes[0] + fixed_bytes)
        ends = accumulate(size + fixed_bytes for size in sizes)
        return max(1, sum(1 for _ in takewhile(lambda end: end <= block_bytes, ends)))


def id_text_bytes(generator: UniqueIdGenerator | None) -> int:
    """Return how many bytes of each properties text the ids of a generator take."""
    return 0 if generator is None else len(UNIQ_KEY) + generator.id_size + 2


def texts_of(
    topic: str,
    count: int,
    id_bytes: int,
    tag: str | None,
    tags: Sequence[str | None] | None,
    keys: Sequence[Sequence[str]] | None,
    properties: Mapping[str, str] | None,
    flag: int,
) -> list[bytes]:
    """Return the properties texts of `count` messages, unique ids apart; one text if it is the same for all.

    `id_bytes` are what the unique id takes besides, so that a text which is too long is refused here.

    Raises:
        InvalidName, InvalidMessage: what cannot be sent; the text names it.
    """
    common = Message(topic, b"", tag, properties=properties, flag=flag)
    if tags is None and keys is None:
        text = encode_properties_text(common, None)
        check_properties_size(len(text) + id_bytes)
        return [text]
    if tags is not None and tag is not None:
        raise InvalidMessage("tag= and tags= are both given; tags= has one for each body")
    for name, given in (("tags", tags), ("keys", keys)):
        if given is not None and len(given) != count:
            raise InvalidMessage(
                f"{name} has {counted(len(given), 'entry', 'entries')} for {counted(count, 'body', 'bodies')}; "
                "give one for each"
            )
    ends = encode_properties_text(Message(topic, b"", properties=properties), None)
    own_tags = [tag] * count if tags is None else tags
    starts: dict[str | None, bytes] = {
        own: encode_properties_text(Message(topic, b"", own), None) for own in dict.fromkeys(own_tags)
    }
    if keys is None:
        whole = {own: start + ends for own, start in starts.items()}
        texts = [whole[own] for own in own_tags]
    else:
        texts = [
            starts[own] + key_text + ends
            for own, key_text in zip(own_tags, encode_keys_texts(keys), strict=True)
        ]
    check_properties_size(max(map(len, texts), default=0) + id_bytes)
    return texts
