"""Staging of a sink: store records, then publish or drop them all at once. The requests are Reput's.

A staging is blocks of records as in PutMessage, each after a head (docs/protocol.md, Batches), on the wire as in the
broker's file. Its checksum is the CRC-32 of all heads with their topics, in order, which includes the checksums of the
blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import field

from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Content, Kind, RequestType, Sender
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import crc32
from reput_protocol.names import TopicName

# -- staged blocks -----------------------------------------------------------------------------------------------------

_HEAD: Final = struct.Struct(">4sIiIIH")
_MAGIC: Final = b"RBLK"
HEAD_BYTES: Final = _HEAD.size
TOPIC_BYTES_MAX: Final = 127
HEAD_BYTES_MAX: Final = HEAD_BYTES + TOPIC_BYTES_MAX


class StagedBlock(NamedTuple):
    """The head of one block of a staging, and the block's position."""

    topic: TopicName
    queue_id: int
    messages: int
    crc: int
    start: int
    """Where the block begins, after its head."""
    size: int

    @property
    def end(self) -> int:
        """Where the next head begins."""
        return self.start + self.size


def encode_staged_head(topic: str, queue_id: int, count: int, block: Buffer) -> bytes:
    """Return the head for a block of `count` records of one queue."""
    name = topic.encode()
    return _HEAD.pack(_MAGIC, len(block), queue_id, count, crc32(block), len(name)) + name


def staged_head(data: Buffer, position: int, index: int = 0) -> StagedBlock | None:
    """Return the block whose head is at `position` of `data`, or None if the head is incomplete; checks only the head.

    Raises:
        RecordMalformed: there is no head; has `index`.
    """
    if position + HEAD_BYTES > len(data):
        return None
    magic, size, queue_id, count, crc, topic_size = _HEAD.unpack_from(data, position)
    if magic != _MAGIC:
        raise RecordMalformed(index, position, f"the head of a staged block begins with {magic!r}, not {_MAGIC!r}")
    if not 0 < topic_size <= TOPIC_BYTES_MAX:
        raise RecordMalformed(index, position, f"a topic of {topic_size} bytes; it has 1 to {TOPIC_BYTES_MAX}")
    start = position + HEAD_BYTES + topic_size
    if start > len(data):
        return None
    try:
        topic = str(memoryview(data)[position + HEAD_BYTES : start], "utf-8")
    except UnicodeDecodeError:
        raise RecordMalformed(index, position, "the topic of a staged block is not UTF-8") from None
    return StagedBlock(topic, queue_id, count, crc, start, size)


def staged_blocks(data: Buffer) -> Iterator[StagedBlock]:
    """Yield the blocks of `data`, which must be whole; their checksums are verified.

    Raises:
        RecordMalformed: a block is incomplete or does not match its head; has the block's number and position.
    """
    view = memoryview(data)
    position = index = 0
    while position < len(data):
        found = staged_head(data, position, index)
        if found is None or found.end > len(data):
            raise RecordMalformed(index, position, "the staged block is truncated")
        if crc32(view[found.start : found.end]) != found.crc:
            raise RecordMalformed(index, position, f"the block's checksum is not {found.crc:#010x}, as its head says")
        yield found
        position = found.end
        index += 1


def add_to_checksum(checksum: int, data: Buffer, block: StagedBlock) -> int:
    """Return the checksum of a staging after `block`, which is in `data`."""
    head_at = block.start - HEAD_BYTES - len(block.topic.encode())
    return crc32(memoryview(data)[head_at : block.start], checksum)


# -- staging -----------------------------------------------------------------------------------------------------------


class StageRecordsHeader(CommandHeader):
    """Header of STAGE_RECORDS: the body is the next blocks of a staging.

    `staging_id` is new for every attempt; `position` is the number of bytes sent before.
    """

    query_id: str
    batch_id: I64
    partition_id: I32
    staging_id: str
    position: I64


class EndStagingHeader(CommandHeader):
    """Header of END_STAGING: the staging is complete; answered when it is on disk."""

    query_id: str
    batch_id: I64
    staging_id: str
    position: I64
    messages: I64
    checksum: I64


class StageRecordsResult(CommandHeader):
    """Answer to STAGE_RECORDS and END_STAGING: the size of the staging in bytes."""

    position: I64
    kept: bool = True
    """False if the batch is committed already, so nothing staged for it is kept."""


# -- batches -----------------------------------------------------------------------------------------------------------


class CommitStagedHeader(CommandHeader):
    """Header of COMMIT_STAGED: publish the stagings in the body as one batch of a query."""

    query_id: str
    batch_id: I64


class StagedPart(NamedTuple):
    """One staging as its sender describes it."""

    staging_id: str
    messages: I64
    checksum: I64


class CommitStagedBody(Body):
    """Body of COMMIT_STAGED: the stagings of one batch."""

    parts: list[StagedPart] = field(name="staged")


class CommitStagedResult(CommandHeader):
    """Answer to COMMIT_STAGED: everything is published and on disk."""

    last_batch_id: I64
    messages: I64
    repeated: bool
    """Whether this or a later batch of the query was committed before, so nothing was published now."""


class AbortStagedHeader(CommandHeader):
    """Header of ABORT_STAGED: drop what is staged for one batch of a query."""

    query_id: str
    batch_id: I64


class QueryStagedHeader(CommandHeader):
    """Header of QUERY_STAGED: the state of one query, or the total of what is staged."""

    query_id: str | None = None


class QueryStagedResult(CommandHeader):
    """Answer to ABORT_STAGED and QUERY_STAGED: the stagings, of the query if one was given."""

    stagings: I32
    staged_bytes: I64
    last_batch_id: I64 = -1
    """The query's last committed batch; -1 if there is none or the broker has forgotten it."""
    new_topic_queues: I32 = 1
    """How many queues a topic gets that the commit of a batch creates."""
    body_bytes_max: I32 = 0
    """The size of the largest body that the broker accepts; 0 if it does not say."""


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.STAGE_RECORDS, StageRecordsHeader, sender=Sender.PRODUCER,
        handler_checks="write on each topic in the body", content=Content.MESSAGES, kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.END_STAGING, EndStagingHeader, sender=Sender.PRODUCER, writes_something=True,
        kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.COMMIT_STAGED, CommitStagedHeader, CommitStagedBody, sender=Sender.PRODUCER,
        writes_something=True, kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.ABORT_STAGED, AbortStagedHeader, sender=Sender.PRODUCER, writes_something=True,
        kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.QUERY_STAGED, QueryStagedHeader, sender=Sender.PRODUCER, writes_something=True,
        kind=Kind.MASTER_ONLY, completes_first=True, newest_only=True,
    ),
)  # fmt: skip
"""A batch is known by the id of its query, which only the query's own tasks know."""
