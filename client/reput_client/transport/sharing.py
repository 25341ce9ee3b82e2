"""Puts that wait to be written at the same time leave as one: what many tasks send at once shares frames.

Frames queue up at a connection while others are written or their tasks run. Puts of one message each, to one queue and
at one ack level, then become one block, when they are written and not before: nobody waits for company. Each keeps
its own call, and is answered as if it had travelled alone.

A block is stored whole or not at all. If the broker finds fault with what is in one, its messages are sent again, alone
this time, so that the faulty one fails and no other. They come behind what has been written meanwhile; otherwise puts
into one queue keep their order, also at different ack levels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from itertools import accumulate, repeat
from typing import ClassVar, Final, NamedTuple, TypeAlias

from reput_client.transport.core import ChannelCore, NoticedCall, Outgoing, ShareableCall, Waiter
from reput_protocol.buffers import Buffer
from reput_protocol.codes import ResponseCode
from reput_protocol.commands.send import PutMessageResult
from reput_protocol.errors import HeaderFieldError, ReputError
from reput_protocol.wire.header import Header, HeaderType

RECORD_BYTES_MAX: Final = 16 * 1024
"""Larger records travel alone: there is little to gain, and much to send again."""
BLOCK_RECORDS_MAX: Final = 128
_REFUSED: Final = int(ResponseCode.MESSAGE_ILLEGAL)


Again: TypeAlias = Callable[[Iterable[tuple[ShareableCall, Buffer]]], None]
"""Sends puts once more, alone."""


class SharedCall(NoticedCall):
    """A block of records that were put one by one; what becomes of it becomes of each of them.

    Args:
        opaque: of the block's frame.
        frames: the frames that it takes the place of, in their order.
        again: queues some of these frames anew.
    """

    __slots__ = ("_again", "frames", "has_begun")

    is_shared: ClassVar[bool] = True

    def __init__(
        self,
        opaque: int,
        frames: list[tuple[ShareableCall, Buffer]],
        again: Again,
    ) -> None:
        super().__init__(opaque, Waiter())
        self.frames = frames
        self._again = again
        self.has_begun = False
        """Whether a part of its frame has been written."""

    def on_sent(self) -> None:
        """All of them have left."""
        for call, _ in self.frames:
            call.sent = True

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for one of them."""
        return any(not call.is_abandoned for call, _ in self.frames)

    def finish(self, header: Header, body: memoryview) -> None:
        """The answer is here: each gets its own place, if they are stored."""
        self.done = True
        if header.code == _REFUSED:
            self._again([(call, record) for call, record in self.frames if not call.is_abandoned])
            return
        places: Iterable[PutMessageResult | None] = repeat(None)
        if "queueOffset" in header.ext:  # stored, as was asked for or not
            # An answer that makes no sense makes none to any of them, and each says so.
            with suppress(HeaderFieldError):
                places = self._places(PutMessageResult.from_ext(header.ext))
        for (call, _), own in zip(self.frames, places, strict=False):
            if own is not None:
                ext = own.to_ext(HeaderType.MSGPACK)
                header = Header(header.code, call.opaque, header.flag, header.remark, ext)
            call.finish(header, body)

    def fail(self, error: ReputError) -> None:
        """No answer will come."""
        self.done = True
        for call, _ in self.frames:
            call.fail(error)

    def _places(self, result: PutMessageResult) -> Iterable[PutMessageResult]:
        queue_id, offset, place, time_ms, host, ack = (
            result.queue_id,
            result.queue_offset,
            result.physical_offset,
            result.store_timestamp,
            result.store_host,
            result.ack,
        )
        places = accumulate((len(record) for _, record in self.frames[:-1]), initial=place)
        return [
            PutMessageResult(queue_id, queue_offset, physical_offset, time_ms, host, ack)
            for queue_offset, physical_offset in enumerate(places, offset)
        ]


class Batch(NamedTuple):
    """What is written together."""

    frames: list[Outgoing]
    taken: int
    """How many of the frames that wait these are."""
    size: int
    pieces: list[Buffer]


def next_batch(
    out: deque[Outgoing],
    core: ChannelCore,
    again: Again,
    *,
    begun: bool,
    bytes_max: int,
    pieces_max: int,
) -> Batch:
    """Return the first frames of `out`, as many as are written together, with those joined that may be.

    `out` is not changed, and a block that is not written after all counts for nothing.

    Args:
        begun: the first frame is partly written, and stays as it is.
        bytes_max, pieces_max: where to stop.
    """
    frames: list[Outgoing] = []
    groups: dict[Hashable, int] = {}  # by queue: the frame that takes more, its last one
    members_at: dict[int, list[tuple[ShareableCall, Buffer]]] = {}  # what goes into that frame
    size = taken = count = 0
    for frame in out:
        call, pieces = frame
        taken += 1
        size += sum(map(len, pieces))
        count += len(pieces)
        if not isinstance(call, ShareableCall) or call.travels_alone or (begun and taken == 1):
            groups.clear()  # nothing overtakes it
            frames.append(frame)
        elif len(pieces[1]) > RECORD_BYTES_MAX:
            groups.pop(call.template.queue, None)
            frames.append(frame)
        else:
            at = groups.get(call.template.queue, -1)
            members = members_at.get(at)
            if (
                members is None
                or members[0][0].template is not call.template
                or len(members) == BLOCK_RECORDS_MAX
            ):
                groups[call.template.queue] = at = len(frames)
                members = members_at[at] = []
                frames.append(frame)
            members.append((call, pieces[1]))
        if size >= bytes_max or count >= pieces_max:
            break
    for at, members in members_at.items():
        if len(members) > 1:
            frames[at] = _block(members, core, again)
    flat: list[Buffer] = []
    for _, pieces in frames:
        flat += pieces
    return Batch(frames, taken, size if taken == len(frames) else sum(map(len, flat)), flat)


def apart(frame: Outgoing) -> list[Outgoing]:
    """Return the frames that one is made of, as they were: nothing of it has been written."""
    call, _ = frame
    if not isinstance(call, SharedCall):
        return [frame]
    return [
        (member, (member.template.encode(member.opaque, len(record)), record))
        for member, record in call.frames
    ]


def _block(
    members: list[tuple[ShareableCall, Buffer]],
    core: ChannelCore,
    again: Again,
) -> Outgoing:
    of_many = members[0][0].template.of_many
    assert of_many is not None, "only such templates make shareable calls"
    call = SharedCall(core.next_opaque(), members, again)
    records = [record for _, record in members]
    head = of_many(len(records)).encode(call.opaque, sum(map(len, records)))
    return call, (head, *records)
