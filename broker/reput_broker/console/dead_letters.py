"""Dead letters: the groups that have some, those of one group, and sending them back to where they came from.

As `reput dlq replay` does it, each becomes a new message with the same body and properties; the progress of replaying
all is kept in the same place, so that both continue where the other stopped. The unique id of the new message follows
from the dead letter, so that a replay of all finds and leaves out what was sent before by a selection.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any, Final

import structlog
import trio

from reput_broker.console.messages import Stored, stored_in, summary_of
from reput_broker.console.source import NAMES_A_TURN, ROWS_MAX, InvalidQuery, Query, Source
from reput_protocol import properties as names
from reput_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.offset import UpdateConsumerOffsetHeader
from reput_protocol.commands.pull import FetchRecordsHeader, FetchRecordsResult
from reput_protocol.commands.query import QueryMessageHeader
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import error_from_response
from reput_protocol.names import DLQ_PREFIX, REPLAY_GROUP, check_group, check_send_topic, dlq_topic
from reput_protocol.record.dead_letter import dead_letter_origin, replayed_id
from reput_protocol.record.forwarding import forwarded_properties
from reput_protocol.record.hashing import index_hash
from reput_protocol.record.view import record_views
from reput_protocol.wire.header import Value

log = structlog.get_logger(__name__)

_LISTED_MAX: Final = 50
_LIST_BYTES: Final = 4 << 20
_REPLAYED_AT_ONCE: Final = 100
"""Dead letters of one request; a page that replays more makes several."""
_REPLAY_S: Final = 5.0
_TIME_MAX_MS: Final = (1 << 63) - 1
_FOUND_MAX: Final = 32
_PRODUCER_GROUP: Final = "reput-console"
_OFFSET: Final = re.compile(r"[0-9]{1,18}")


async def list_dead_letters(source: Source, query: Query) -> dict[str, Any]:
    """Return the groups with dead letters, those with the most first."""
    search = query.text("search").lower()
    found = []
    for position, topic in enumerate(source.topics.all()):
        if position % NAMES_A_TURN == 0:
            await trio.lowlevel.checkpoint()
        group = topic.removeprefix(DLQ_PREFIX)
        if topic.startswith(DLQ_PREFIX) and search in group.lower():
            bounds = _bounds(source, topic)
            if bounds["messages"]:
                found.append({"group": group, **bounds})
    found.sort(key=lambda row: (-row["messages"], row["group"]))
    return {"at_ms": source.figures.clock_ms(), "total": len(found), "groups": found[:ROWS_MAX]}


def _bounds(source: Source, topic: str) -> dict[str, Any]:
    low, high = source.store.min_offset_in_queue(topic, 0), source.store.max_offset_in_queue(topic, 0)
    done = source.offsets.query(REPLAY_GROUP, topic, 0) or 0
    replayed = max(low, min(high, done))
    return {
        "start": low,
        "end": high,
        "messages": max(0, high - low),
        "replayed_until": replayed,
        "left": max(0, high - replayed),
    }


async def show_dead_letters(source: Source, query: Query) -> dict[str, Any]:
    """Return dead letters of one group from offset `from` on, by default the newest ones."""
    topic = dlq_topic(check_group(query.needed("group")))
    bounds = _bounds(source, topic)
    newest = max(bounds["start"], bounds["end"] - _LISTED_MAX)
    start = max(bounds["start"], query.number("from", newest))
    is_there = source.topics.get(topic) is not None
    found = (await _read(source, topic, start, start + _LISTED_MAX))[0] if is_there else []
    return {
        "at_ms": source.figures.clock_ms(),
        **bounds,
        "from": start,
        "letters": [_letter(stored) for stored in found],
    }


def _letter(stored: Stored) -> dict[str, Any]:
    record = stored.record
    origin = dead_letter_origin(record.property_map(), record.offset_message_id)
    return {
        **summary_of(stored),
        "origin_topic": origin.topic,
        "origin_id": origin.message_id,
        "reason": origin.reason,
        "cause": origin.cause,
        "attempts": record.reconsume_times,
    }


async def _read(source: Source, topic: str, start: int, end: int) -> tuple[list[Stored], int]:
    """Return the dead letters at offsets `[start, end)`, as many as one answer holds, and the next offset."""
    header = FetchRecordsHeader(topic, 0, start, end, _LIST_BYTES)
    answer = await source.ask_any(RequestCode.FETCH_RECORDS, header)
    if answer.code not in (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_OFFSET_MOVED,
    ):
        raise error_from_response(answer.code, answer.remark, answer.ext)
    next_offset = FetchRecordsResult.from_ext(answer.ext).next_offset
    return [*stored_in(bytes(answer.body))], next_offset


async def replay(source: Source, query: Query) -> dict[str, Any]:
    """Send dead letters of `group` back: those at `offsets`, separated by commas, or the next of all.

    Without `offsets` it stops after a while, and `left` says how many remain. The progress is committed after what it
    stands for: a replay that is interrupted may send one again, and never omits one.
    """
    group = check_group(query.needed("group"))
    work = _Replay(source, dlq_topic(group))
    chosen = _offsets(query.text("offsets", size_max=20 * _REPLAYED_AT_ONCE))
    await (work.send_chosen(chosen) if chosen else work.send_next())
    log.info("console_replayed", group=group, count=sum(work.sent.values()), skipped=len(work.skipped))
    return {
        "sent": work.sent,
        "skipped": [{"offset": offset, "why": why} for offset, why in work.skipped.items()],
        "stopped": work.stopped,
        **_bounds(source, work.topic),
    }


def _offsets(text: str) -> list[int]:
    parts = [part for part in text.split(",") if part]
    if len(parts) > _REPLAYED_AT_ONCE or not all(_OFFSET.fullmatch(part) for part in parts):
        raise InvalidQuery(f"offsets are up to {_REPLAYED_AT_ONCE} numbers, separated by commas")
    return sorted({int(part) for part in parts})


class _Replay:
    """What one request replays.

    Attributes:
        sent: dead letters by the topic that they went to.
        skipped: why a dead letter is left where it is, by offset.
        stopped: why the replay of all cannot continue; None if it can.
    """

    def __init__(self, source: Source, topic: str) -> None:
        self.topic = topic
        self.sent: Counter[str] = Counter()
        self.skipped: dict[int, str] = {}
        self.stopped: str | None = None
        self._source = source

    async def send_chosen(self, offsets: list[int]) -> None:
        """Send those at these offsets; the progress stays."""
        for offset in offsets:
            found, _ = await _read(self._source, self.topic, offset, offset + 1)
            if not found:
                self.skipped[offset] = "it is not there any more"
            for stored in found:
                missing = await self._send(stored)
                if missing is not None:
                    self.skipped[offset] = missing

    async def send_next(self) -> None:
        """Send those that follow the progress, some at a time, and move it."""
        bounds, ends_at = _bounds(self._source, self.topic), time.monotonic() + _REPLAY_S
        offset = bounds["replayed_until"]
        end = min(bounds["end"], offset + _REPLAYED_AT_ONCE)
        while offset < end and time.monotonic() < ends_at:
            found, offset = await _read(self._source, self.topic, offset, end)
            for stored in found:
                self.stopped = await self._send(stored, sends_again=False)
                if self.stopped is not None:
                    return
                done = stored.record.queue_offset + 1
                header = UpdateConsumerOffsetHeader(REPLAY_GROUP, self.topic, 0, done)
                await self._source.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            if not found:
                return

    async def _send(self, stored: Stored, *, sends_again: bool = True) -> str | None:
        """Send one to the topic that it came from; return None, or why that topic takes none.

        Waits until the copy is as safe as the broker makes messages by default. Without `sends_again` one that was
        sent before is left out.
        """
        record, source = stored.record, self._source
        properties = record.property_map()
        origin = dead_letter_origin(properties, record.offset_message_id)
        if stored.fault is not None:
            self.skipped[record.queue_offset] = f"it is damaged: {stored.fault}"
            return None
        if origin.topic is None:
            self.skipped[record.queue_offset] = (
                "it does not say where it came from; reput dlq replay --to TOPIC"
            )
            return None
        config = source.topics.get(origin.topic)
        if config is None:
            return f"topic {origin.topic} does not exist any more; reput topic create {origin.topic}"
        unique_id = replayed_id(record.offset_message_id)
        if not sends_again and await self._was_sent(origin.topic, unique_id, record.body):
            self.skipped[record.queue_offset] = "it was replayed before"
            return None
        added = {names.DLQ_ORIGIN_MESSAGE_ID: origin.message_id}
        text = forwarded_properties(properties, unique_id, added)
        key = properties.get(names.SHARDING_KEY)
        header = SendMessageHeader(
            _PRODUCER_GROUP,
            check_send_topic(origin.topic),
            -1 if key is None else index_hash(key) % max(1, config.write_queue_nums),
            record.sys_flag & MessageSysFlag.PUT_MASK,
            source.figures.clock_ms(),
            record.flag,
            text.decode("utf-8", "replace"),
        )
        await source.ask(RequestCode.SEND_MESSAGE_V2, _ShortNames(header), record.body)
        self.sent[origin.topic] += 1
        return None

    async def _was_sent(self, topic: str, unique_id: str, body: bytes) -> bool:
        """Whether a replay has sent it before. Its id can be computed, so another message may have it."""
        header = QueryMessageHeader(topic, unique_id, _FOUND_MAX, 0, _TIME_MAX_MS)
        answer = await self._source.ask_any(RequestCode.QUERY_MESSAGE, header)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise error_from_response(answer.code, answer.remark, answer.ext)
        return any(found.body == body for found in record_views(answer.body, check_crc=False))


class _ShortNames:
    """A send's header in the form of request 310."""

    def __init__(self, header: SendMessageHeader) -> None:
        self._header = header

    def to_ext(self, header_type: int) -> dict[str, Value]:
        """Return the fields."""
        return self._header.to_ext_v2(header_type)
