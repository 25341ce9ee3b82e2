"""Messages: by id, by key, and through the queues of a topic from a place or a time on."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import trio

from reput_broker.console.source import InvalidQuery, Query, Source
from reput_protocol.codes import BoundaryType, MessageSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.offset import OffsetResult, SearchOffsetHeader
from reput_protocol.commands.pull import FetchRecordsHeader, FetchRecordsResult
from reput_protocol.commands.query import QueryMessageHeader, QueryMessageResult, ViewMessageHeader
from reput_protocol.commands.topic import GetTopicConfigHeader, TopicConfig
from reput_protocol.errors import InvalidMessage, error_from_response
from reput_protocol.kernel.records import checksum_faults, scan_records
from reput_protocol.printable import printable
from reput_protocol.record import row as number
from reput_protocol.record.compression import compression_method, inflate
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.view import RecordView

SHOWN_BYTES: Final = 64 * 1024
"""Of a body; the rest can be downloaded."""
_PREVIEW_CHARS: Final = 160
_PREVIEW_BYTES: Final = 640
_FOUND_MAX: Final = 64
_LISTED_MAX: Final = 100
_QUEUES_MAX: Final = 64
_NEXT_CHARS_MAX: Final = 24 * _QUEUES_MAX
_LIST_BYTES_MAX: Final = 16 << 20
"""Bytes of messages that are read for one list."""
_TIME_MAX_MS: Final = (1 << 63) - 1


class Stored(NamedTuple):
    """A record, and its checksum errors."""

    record: RecordView
    fault: str | None


def stored_in(data: bytes) -> Iterator[Stored]:
    """Yield the records of an answer."""
    table, _, _, _, _ = scan_records(data, 0, len(data))
    faults = dict(checksum_faults(data, table))
    for row, at in enumerate(range(0, len(table), number.WIDTH)):
        yield Stored(RecordView(data, 0, table, at), faults.get(row))


def summary_of(stored: Stored) -> dict[str, Any]:
    """Return a message as a row of a list."""
    record = stored.record
    compressed = bool(record.sys_flag & MessageSysFlag.COMPRESSED)
    return {
        "id": record.offset_message_id,
        "unique_id": record.unique_key,
        "topic": record.topic,
        "queue": record.queue_id,
        "offset": record.queue_offset,
        "stored_ms": record.store_timestamp_ms,
        "tag": record.tag,
        "keys": list(record.keys),
        "size_b": len(record.body_view),
        "preview": "" if compressed else _preview(bytes(record.body_view[:_PREVIEW_BYTES])),
        "is_compressed": compressed,
        "fault": stored.fault,
    }


def _preview(head: bytes) -> str:
    return printable(head.decode("utf-8", "replace")[:_PREVIEW_CHARS])


async def show_message(source: Source, query: Query) -> dict[str, Any]:
    """Return the message with an offset message id: all fields, the start of its body, and which groups have it."""
    stored = await _view(source, query.needed("id"))
    record = stored.record
    body, is_whole, trouble = await trio.to_thread.run_sync(_shown_body, record)
    return {
        **summary_of(stored),
        "at_ms": source.figures.clock_ms(),
        "born_ms": record.born_timestamp_ms,
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "log_offset": record.physical_offset,
        "record_b": record.size,
        "attempts": record.reconsume_times,
        "flag": record.flag,
        "properties": record.property_map(),
        "compression": compression_method(record.sys_flag),
        "body_base64": base64.b64encode(body).decode(),
        "is_whole": is_whole,
        "trouble": trouble,
        "groups": _groups_of(source, record),
    }


async def download_body(source: Source, query: Query) -> tuple[str, bytes]:
    """Return the whole body of a message, decompressed if that is possible, and a file name for it."""
    message_id = query.needed("id")
    record = (await _view(source, message_id)).record

    def body() -> bytes:
        stored = record.body
        try:
            return inflate(stored) if compression_method(record.sys_flag) == "zlib" else stored
        except ValueError:
            return stored

    return f"{message_id}.bin", await trio.to_thread.run_sync(body)


def _shown_body(record: RecordView) -> tuple[bytes, bool, str | None]:
    """Return the start of the body, whether it is all of it, and why it is not decompressed, if so."""
    stored, method = record.body_view, compression_method(record.sys_flag)
    if method is None:
        return bytes(stored[:SHOWN_BYTES]), len(stored) <= SHOWN_BYTES, None
    trouble = f"compressed with {method}, which the console cannot decompress: these are the stored bytes"
    if method == "zlib":
        inflater = zlib.decompressobj()
        try:
            head = inflater.decompress(stored, SHOWN_BYTES)
            return head, inflater.eof, None
        except zlib.error as error:
            trouble = (
                f"marked as compressed, but cannot be decompressed ({error}): these are the stored bytes"
            )
    return bytes(stored[:SHOWN_BYTES]), len(stored) <= SHOWN_BYTES, trouble


async def _view(source: Source, message_id: str) -> Stored:
    try:
        _, physical_offset = decode_offset_message_id(message_id)
    except InvalidMessage as error:
        raise InvalidQuery(
            f"{message_id[:80]!r} is not an offset message id of 32 or 56 hexadecimal digits; a producer's message_id "
            "is found by topic and key"
        ) from error
    answer = await source.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(physical_offset))
    (stored,) = stored_in(bytes(answer.body))
    return stored


def _groups_of(source: Source, record: RecordView) -> list[dict[str, Any]]:
    """Return for each group with an offset in the message's queue whether it has committed the message."""
    topic, queue_id = record.topic, record.queue_id
    rows = []
    for group, queues in sorted(source.offsets.for_topic(topic).items()):
        committed = queues.get(queue_id)
        if committed is not None:
            is_consumed = committed > record.queue_offset
            rows.append({"group": group, "committed": committed, "is_consumed": is_consumed})
    return rows


async def find_messages(source: Source, query: Query) -> dict[str, Any]:
    """Return the messages of `topic` with a key or unique id, newest first."""
    header = QueryMessageHeader(
        query.needed("topic"),
        query.needed("key"),
        query.number("count", 32, 1, _FOUND_MAX),
        query.number("from_ms", 0),
        query.number("to_ms", _TIME_MAX_MS),
    )
    answer = await source.ask_any(RequestCode.QUERY_MESSAGE, header)
    if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
        raise error_from_response(answer.code, answer.remark, answer.ext)
    is_complete = QueryMessageResult.from_ext(answer.ext).index_complete is not False
    return {
        "messages": [summary_of(stored) for stored in stored_in(bytes(answer.body))],
        "is_complete": is_complete,
    }


async def browse_messages(source: Source, query: Query) -> dict[str, Any]:
    """Return messages of one queue of `topic` or of all, in the order in which they were stored.

    `start` is `newest`, `oldest`, `time` with `at_ms`, `offset` with `offset`, or `next` with the `next` of the answer
    before.
    """
    topic = query.needed("topic")
    answer = await source.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigHeader(topic))
    queues_total = TopicConfig.from_json(answer.body).read_queue_nums
    count = query.number("count", 50, 1, _LISTED_MAX)
    queue_id = query.number("queue", -1, -1, max(0, queues_total - 1))
    if queue_id < 0 and queues_total > _QUEUES_MAX:
        raise InvalidQuery(
            f"{topic} has {queues_total} queues, and at most {_QUEUES_MAX} can be shown together; choose a queue"
        )
    queue_ids = [*range(queues_total)] if queue_id < 0 else [queue_id]
    count = max(count, len(queue_ids))
    starts = await _starts(source, query, topic, queue_ids, count)
    reading = _Reading(source, topic, count, starts)
    for each in queue_ids:
        await reading.read(each, len(queue_ids))
    rows, ends = reading.merged()
    return {
        "topic": topic,
        "queues_total": queues_total,
        "messages": rows,
        "next": ",".join(f"{each}:{offset}" for each, offset in sorted(ends.items())),
        "has_more": any(ends[each] < reading.bounds[each] for each in ends),
        "is_cut": reading.is_cut,
    }


async def _starts(
    source: Source, query: Query, topic: str, queue_ids: list[int], count: int
) -> dict[int, int]:
    """Return the first offset to read of each queue."""
    start, store = query.text("start") or "newest", source.store
    if start == "next":
        return _given_starts(query.text("next", size_max=_NEXT_CHARS_MAX), queue_ids)
    starts = {}
    for queue_id in queue_ids:
        low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
        if start == "newest":
            starts[queue_id] = max(low, high - count // len(queue_ids))
        elif start == "oldest":
            starts[queue_id] = low
        elif start == "offset":
            starts[queue_id] = max(low, min(high, query.number("offset", 0)))
        elif start == "time":
            header = SearchOffsetHeader(topic, queue_id, query.number("at_ms", 0), BoundaryType.LOWER)
            answer = await source.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            starts[queue_id] = OffsetResult.from_ext(answer.ext).offset
        else:
            raise InvalidQuery(f"start is {start[:40]!r}, and must be newest, oldest, offset, time or next")
    return starts


def _given_starts(text: str, queue_ids: list[int]) -> dict[int, int]:
    try:
        starts = {int(queue): int(offset) for queue, offset in (part.split(":") for part in text.split(","))}
    except ValueError:
        raise InvalidQuery("next is not what an answer said; start again") from None
    if set(starts) != set(queue_ids) or min(starts.values()) < 0:
        raise InvalidQuery("next belongs to another list; start again")
    return starts


class _Reading:
    """Reads the queues of a list one after the other, and keeps rows only.

    Attributes:
        bounds: the end of each queue.
        is_cut: whether messages are missing because they are large.
    """

    def __init__(self, source: Source, topic: str, count: int, starts: dict[int, int]) -> None:
        self._source = source
        self._topic = topic
        self._count = count
        self._starts = starts
        self._left = _LIST_BYTES_MAX
        self._rows: dict[int, list[dict[str, Any]]] = {}
        self.bounds: dict[int, int] = {}
        self.is_cut = False

    async def read(self, queue_id: int, queues: int) -> None:
        """Read up to `count` messages of a queue; of `queues`, each gets its share of the bytes."""
        rows = self._rows[queue_id] = []
        offset, left = self._starts[queue_id], self._left // queues
        self.bounds[queue_id] = offset
        while len(rows) < self._count:
            end = offset + self._count - len(rows)
            header = FetchRecordsHeader(self._topic, queue_id, offset, end, max(1, left))
            answer = await self._source.ask_any(RequestCode.FETCH_RECORDS, header)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return
            if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED):
                raise error_from_response(answer.code, answer.remark, answer.ext)
            result = FetchRecordsResult.from_ext(answer.ext)
            self.bounds[queue_id] = result.max_offset
            if result.next_offset <= offset:
                return
            offset = result.next_offset
            rows += [summary_of(stored) for stored in stored_in(bytes(answer.body))]
            left -= len(answer.body)
            if left <= 0 and len(rows) < self._count and offset < result.max_offset:
                self.is_cut = True
                return

    def merged(self) -> tuple[list[dict[str, Any]], dict[int, int]]:
        """Return the rows in the order in which they were stored, and the next offset of each queue.

        Where more of a queue follows than was read, nothing newer than its last row is returned: it could be in
        between.
        """
        last = [
            rows[-1]["stored_ms"]
            for queue_id, rows in self._rows.items()
            if rows and rows[-1]["offset"] + 1 < self.bounds[queue_id]
        ]
        newest_ms = min(last, default=_TIME_MAX_MS)
        rows = [row for rows in self._rows.values() for row in rows if row["stored_ms"] <= newest_ms]
        rows.sort(key=lambda row: (row["stored_ms"], row["queue"], row["offset"]))
        del rows[self._count :]
        ends = dict(self._starts)
        for row in rows:
            ends[row["queue"]] = max(ends[row["queue"]], row["offset"] + 1)
        return rows, ends
