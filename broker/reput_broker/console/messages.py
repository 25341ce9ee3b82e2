"""Messages: by id, by key, and through the queues of a topic from a place or a time on."""

from __future__ import annotations

import base64
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from reput_broker.console.source import InvalidQuery, Query, Source
from reput_client.errors import DamagedMessage
from reput_protocol import properties as names
from reput_protocol.codes import MessageSysFlag
from reput_protocol.errors import InvalidMessage, PermissionDenied, ReputError
from reput_protocol.printable import printable
from reput_protocol.record.compression import compression_method

if TYPE_CHECKING:
    from reput_client.received import ReceivedMessage

SHOWN_BYTES: Final = 64 * 1024
"""Of a body; the rest can be downloaded."""
_PREVIEW_CHARS: Final = 160
_PREVIEW_BYTES: Final = 640
_FOUND_MAX: Final = 64
_LISTED_MAX: Final = 100
_QUEUES_MAX: Final = 64
_GROUPS_MAX: Final = 256
_NEXT_CHARS_MAX: Final = 24 * _QUEUES_MAX
_LIST_BYTES_MAX: Final = 16 << 20
"""Bytes of messages that are read for one list."""
_TIME_MAX_MS: Final = (1 << 63) - 1


def summary_of(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message as a row of a list; of a damaged one without what may be wrong."""
    is_compressed = bool(message.sys_flag & MessageSysFlag.COMPRESSED)
    row: dict[str, Any] = {
        "id": message.offset_message_id,
        "unique_id": None,
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "stored_ms": message.store_timestamp_ms,
        "tag": None,
        "keys": [],
        "size_b": message.record_bytes,
        "preview": "",
        "is_compressed": is_compressed,
        "fault": None,
    }
    try:
        body = message.raw_body
    except DamagedMessage as damage:
        return {**row, "fault": damage.reason}
    return {
        **row,
        "unique_id": message.get_property(names.UNIQ_KEY),
        "tag": message.tag,
        "keys": list(message.keys),
        "size_b": len(body),
        "preview": "" if is_compressed else _preview(body[:_PREVIEW_BYTES]),
    }


def _preview(head: bytes) -> str:
    return printable(head.decode("utf-8", "replace")[:_PREVIEW_CHARS])


async def show_message(source: Source, query: Query) -> dict[str, Any]:
    """Return the message with an offset message id: all fields, the start of its body, and which groups have it."""
    message = await _view(source, query.needed("id"))
    body, is_whole, trouble = await trio.to_thread.run_sync(_shown_body, message)
    return {
        **summary_of(message),
        "at_ms": source.at_ms,
        "born_ms": message.born_timestamp_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "log_offset": message.physical_offset,
        "record_b": message.record_bytes,
        "attempts": message.reconsume_times,
        "flag": message.flag,
        "properties": message.properties,
        "compression": compression_method(message.sys_flag),
        "body_base64": base64.b64encode(body).decode(),
        "is_whole": is_whole,
        "trouble": trouble,
        "groups": await _groups_of(source, message),
    }


async def download_body(source: Source, query: Query) -> tuple[str, bytes]:
    """Return the whole body of a message, decompressed if that is possible, and a file name for it."""
    message_id = query.needed("id")
    message = await _view(source, message_id)

    def body() -> bytes:
        try:
            return message.body
        except ReputError:
            return message.raw_body

    return f"{message_id}.bin", await trio.to_thread.run_sync(body)


def _shown_body(message: ReceivedMessage) -> tuple[bytes, bool, str | None]:
    """Return the start of the body, whether it is all of it, and why it is not decompressed, if so."""
    stored, method = message.raw_body, compression_method(message.sys_flag)
    if method is None:
        return stored[:SHOWN_BYTES], len(stored) <= SHOWN_BYTES, None
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
    return stored[:SHOWN_BYTES], len(stored) <= SHOWN_BYTES, trouble


async def _view(source: Source, message_id: str) -> ReceivedMessage:
    try:
        return await source.admin.view_message(message_id)
    except InvalidMessage as error:
        raise InvalidQuery(f"{error}; a producer's message_id is found by topic and key") from error


async def _groups_of(source: Source, message: ReceivedMessage) -> list[dict[str, Any]]:
    """Return for each group with an offset in the message's queue whether it has committed the message.

    Groups that the user may not see are left out.
    """
    rows = []
    for group in (await source.admin.topic_groups(message.topic))[:_GROUPS_MAX]:
        with suppress(PermissionDenied):
            committed = await source.admin.committed_offset(group, message.topic, message.queue_id)
            if committed is not None:
                is_consumed = committed > message.queue_offset
                rows.append({"group": group, "committed": committed, "is_consumed": is_consumed})
    return rows


async def find_messages(source: Source, query: Query) -> dict[str, Any]:
    """Return the messages of `topic` with a key or unique id, newest first."""
    found = await source.admin.find_messages(
        query.needed("topic"),
        query.needed("key"),
        max_messages=query.number("count", 32, 1, _FOUND_MAX),
        begin=query.number("from_ms", 0),
        end=query.number("to_ms", _TIME_MAX_MS),
    )
    return {
        "messages": [summary_of(message) for message in found.messages],
        "is_complete": found.complete,
    }


async def browse_messages(source: Source, query: Query) -> dict[str, Any]:
    """Return messages of one queue of `topic` or of all, in the order in which they were stored.

    `start` is `newest`, `oldest`, `time` with `at_ms`, `offset` with `offset`, or `next` with the `next` of the answer
    before.
    """
    topic = query.needed("topic")
    queues_total = (await source.admin.topic_config(topic)).read_queue_nums
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
    start, admin = query.text("start") or "newest", source.admin
    if start == "next":
        return _given_starts(query.text("next", size_max=_NEXT_CHARS_MAX), queue_ids)
    starts = {}
    for queue_id in queue_ids:
        low, high = await admin.min_offset(topic, queue_id), await admin.max_offset(topic, queue_id)
        if start == "newest":
            starts[queue_id] = max(low, high - count // len(queue_ids))
        elif start == "oldest":
            starts[queue_id] = low
        elif start == "offset":
            starts[queue_id] = max(low, min(high, query.number("offset", 0)))
        elif start == "time":
            starts[queue_id] = await admin.offset_by_time(topic, queue_id, query.number("at_ms", 0))
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
            found = await self._source.admin.fetch_messages(
                self._topic, queue_id, offset, end, max_bytes=max(1, left)
            )
            self.bounds[queue_id] = found.max_offset
            if found.next_offset <= offset:
                return
            offset = found.next_offset
            rows += [summary_of(message) for message in found.messages]
            left -= found.messages.record_bytes
            if left <= 0 and len(rows) < self._count and offset < found.max_offset:
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
