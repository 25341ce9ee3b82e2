"""Puts of several tasks share frames: those that are unwritten at the same time leave together.

When frames are written, puts of one message each to the same queue at the same ack level are joined into one block; no
timer delays a put. Each put keeps its own call and is answered as if it had been sent alone.

The broker stores a block whole or not at all. If it rejects a message, the block's messages are sent again, one per
frame, so that only the faulty one fails. They then follow what was written meanwhile; otherwise puts into one queue
keep their order, also across ack levels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from itertools import accumulate, repeat
from typing import Final, NamedTuple, TypeAlias

from reput_client.transport.channel import ClientChannel, NoticedCall, Outgoing, ShareableCall, UnsignedHead
from reput_protocol.buffers import Buffer
from reput_protocol.codes import ResponseCode
from reput_protocol.commands.send import PutMessageResult
from reput_protocol.errors import HeaderFieldError, ReputError
from reput_protocol.wire.channel import Waiter
from reput_protocol.wire.header import Header, HeaderType

RECORD_BYTES_MAX: Final = 16 * 1024
"""Larger records are sent alone: sharing gains little, and a rejected block would repeat many bytes."""
BLOCK_RECORDS_MAX: Final = 128
_REFUSED: Final = int(ResponseCode.MESSAGE_ILLEGAL)


Again: TypeAlias = Callable[[Iterable[tuple[ShareableCall, Buffer]]], None]
"""Queues puts again, each in its own frame."""


class SharedCall(NoticedCall):
    """A block of records that were put one by one; each put gets the block's outcome.

    Args:
        opaque: of the block's frame.
        frames: the frames that it replaces, in order.
        again: queues some of these frames again.
    """

    __slots__ = ("_again", "frames", "has_begun")

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
        """Whether a part of the frame was written."""

    def on_sent(self) -> None:
        """See `NoticedCall`."""
        for call, _ in self.frames:
            call.sent = True

    def was_dropped(self) -> None:
        """See `Call`."""
        for call, _ in self.frames:
            call.was_dropped()

    @property
    def is_wanted(self) -> bool:
        """See `Call`."""
        return any(not call.is_abandoned for call, _ in self.frames)

    def finish(self, header: Header, body: memoryview) -> None:
        """Answer each put with its own place if the block is stored, else with the block's answer."""
        self.done = True
        if header.code == _REFUSED:
            self._again([(call, record) for call, record in self.frames if not call.is_abandoned])
            return
        places: Iterable[PutMessageResult | None] = repeat(None)
        if "queueOffset" in header.ext:  # stored, at the asked level or not
            # An unparsable answer goes to each put as it is, and each raises.
            with suppress(HeaderFieldError):
                places = self._places(PutMessageResult.from_ext(header.ext))
        for (call, _), own in zip(self.frames, places, strict=False):
            if own is not None:
                ext = own.to_ext(HeaderType.MSGPACK)
                header = Header(header.code, call.opaque, header.flag, header.remark, ext)
            call.finish(header, body)

    def fail(self, error: ReputError) -> None:
        """See `Call`."""
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


class Write(NamedTuple):
    """The frames of one write."""

    frames: list[Outgoing]
    taken: int
    """How many waiting frames these are."""
    size: int
    pieces: list[Buffer]


def next_write(
    out: deque[Outgoing],
    channel: ClientChannel,
    again: Again,
    *,
    begun: bool,
    bytes_max: int,
    pieces_max: int,
) -> Write:
    """Return the first frames of `out`, as many as are written together, joined into blocks where possible.

    `out` is not changed; a block that is not written has no effect.

    Args:
        begun: the first frame is partly written and must stay as it is.
        bytes_max, pieces_max: where to stop.
    """
    frames: list[Outgoing] = []
    groups: dict[Hashable, int] = {}  # by queue: the last frame, which may take more
    members_at: dict[int, list[tuple[ShareableCall, Buffer]]] = {}  # the puts of that frame
    size = taken = count = 0
    for frame in out:
        call, pieces = frame
        taken += 1
        size += sum(map(len, pieces))
        count += len(pieces)
        if not isinstance(call, ShareableCall) or call.travels_alone or (begun and taken == 1):
            groups.clear()  # nothing may overtake it
            frames.append(frame)
        elif len(record := pieces[1:][0]) > RECORD_BYTES_MAX:
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
            members.append((call, record))
        if size >= bytes_max or count >= pieces_max:
            break
    for at, members in members_at.items():
        if len(members) > 1:
            frames[at] = _block(members, channel, again)
    flat: list[Buffer] = []
    for at, (call, pieces) in enumerate(frames):
        head, body = pieces[0], pieces[1:]
        if isinstance(head, UnsignedHead):
            head = head.signed(body)
            frames[at] = (call, (head, *body))
        flat.append(head)
        flat += body
    return Write(frames, taken, size if taken == len(frames) else sum(map(len, flat)), flat)


def apart(frame: Outgoing, channel: ClientChannel) -> list[Outgoing]:
    """Return the original frames of an unwritten one on `channel`."""
    call, _ = frame
    if not isinstance(call, SharedCall):
        return [frame]
    return [
        (member, (channel.head(member.template, member.opaque, record), record))
        for member, record in call.frames
    ]


def _block(
    members: list[tuple[ShareableCall, Buffer]],
    channel: ClientChannel,
    again: Again,
) -> Outgoing:
    of_many = members[0][0].template.of_many
    assert of_many is not None, "only such templates make shareable calls"
    call = SharedCall(channel.next_opaque(), members, again)
    records = [record for _, record in members]
    head = channel.head(of_many(len(records)), call.opaque, *records)
    return call, (head, *records)
