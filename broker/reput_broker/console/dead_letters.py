"""Dead letters: the groups that have some, those of one group, and sending them back to where they came from.

The client replays them, as for `reput dlq replay`, and the progress of replaying all is kept in the same place, so that
both continue where the other stopped.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from reput_broker.console.messages import summary_of
from reput_broker.console.source import ROWS_MAX, InvalidQuery, Query, Source
from reput_client.errors import DamagedMessage
from reput_protocol.errors import GroupNotFound, TopicNotFound
from reput_protocol.names import DLQ_PREFIX, REPLAY_GROUP, check_group, dlq_topic
from reput_protocol.record.dead_letter import dead_letter_origin

if TYPE_CHECKING:
    from reput_client.received import ReceivedMessage

log = structlog.get_logger(__name__)

_LISTED_MAX: Final = 50
_REPLAYED_AT_ONCE: Final = 100
"""Dead letters of one request; a page that replays more makes several."""
_REPLAY_S: Final = 5.0
_OFFSET: Final = re.compile(r"[0-9]{1,18}")


async def list_dead_letters(source: Source, query: Query) -> dict[str, Any]:
    """Return the groups with dead letters, those with the most first."""
    search = query.text("search").lower()
    letters = [
        topic
        for topic in await source.admin.topic_summaries()
        if topic.kind == "dlq" and topic.messages and search in topic.topic.removeprefix(DLQ_PREFIX).lower()
    ]
    done: dict[str, int] = {}
    try:
        for queue in (await source.admin.describe_group(REPLAY_GROUP)).queues if letters else ():
            done[queue.topic] = queue.committed_offset
    except GroupNotFound:
        pass  # nothing has been replayed yet
    found = []
    for topic in letters:
        bounds = _bounds(topic.end_offsets - topic.messages, topic.end_offsets, done.get(topic.topic, 0))
        found.append({"group": topic.topic.removeprefix(DLQ_PREFIX), **bounds})
    found.sort(key=lambda row: (-row["messages"], row["group"]))
    return {"at_ms": source.at_ms, "total": len(found), "groups": found[:ROWS_MAX]}


def _bounds(low: int, high: int, done: int) -> dict[str, Any]:
    replayed = max(low, min(high, done))
    return {
        "start": low,
        "end": high,
        "messages": max(0, high - low),
        "replayed_until": replayed,
        "left": max(0, high - replayed),
    }


async def _bounds_of(source: Source, group: str) -> dict[str, Any]:
    try:
        letters = await source.admin.dead_letters(group)
    except TopicNotFound:
        return _bounds(0, 0, 0)
    (span,), (done,) = letters.spans.values(), (await source.admin.replay_progress(letters)).values()
    return _bounds(*span, done)


async def show_dead_letters(source: Source, query: Query) -> dict[str, Any]:
    """Return dead letters of one group from offset `from` on, by default the newest ones."""
    group = check_group(query.needed("group"))
    bounds = await _bounds_of(source, group)
    newest = max(bounds["start"], bounds["end"] - _LISTED_MAX)
    start = max(bounds["start"], query.number("from", newest))
    found: Sequence[ReceivedMessage] = ()
    if bounds["messages"]:
        found = (await source.admin.fetch_messages(dlq_topic(group), 0, start, start + _LISTED_MAX)).messages
    return {
        "at_ms": source.at_ms,
        **bounds,
        "from": start,
        "letters": [_letter(message) for message in found],
    }


def _letter(message: ReceivedMessage) -> dict[str, Any]:
    try:
        properties = message.properties
    except DamagedMessage:
        properties = {}
    origin = dead_letter_origin(properties, message.offset_message_id)
    return {
        **summary_of(message),
        "origin_topic": origin.topic,
        "origin_id": origin.message_id,
        "reason": origin.reason,
        "cause": origin.cause,
        "attempts": message.reconsume_times,
    }


async def replay(source: Source, query: Query) -> dict[str, Any]:
    """Send dead letters of `group` back: those at `offsets`, separated by commas, or the next of all.

    Without `offsets` it stops after a while, and `left` says how many remain. The progress is committed after what it
    stands for: a replay that is interrupted may send one again, and never omits one.
    """
    group = check_group(query.needed("group"))
    work = _Replay(source, dlq_topic(group))
    chosen = _offsets(query.text("offsets", size_max=20 * _REPLAYED_AT_ONCE))
    await (work.send_chosen(chosen) if chosen else work.send_next(await _bounds_of(source, group)))
    log.info("console_replayed", group=group, count=sum(work.sent.values()), skipped=len(work.skipped))
    return {
        "sent": work.sent,
        "skipped": [{"offset": offset, "why": why} for offset, why in work.skipped.items()],
        "stopped": work.stopped,
        **await _bounds_of(source, group),
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
        self._admin = source.admin
        self._topic = topic
        self.sent: Counter[str] = Counter()
        self.skipped: dict[int, str] = {}
        self.stopped: str | None = None

    async def send_chosen(self, offsets: list[int]) -> None:
        """Send those at these offsets, also if they were sent before; the progress stays."""
        for offset in offsets:
            found = await self._admin.fetch_messages(self._topic, 0, offset, offset + 1)
            if not found.messages:
                self.skipped[offset] = "it is not there any more"
            for message in found.messages:
                missing = await self._send(message, sends_again=True)
                if missing is not None:
                    self.skipped[offset] = missing

    async def send_next(self, bounds: dict[str, Any]) -> None:
        """Send those that follow the progress, some at a time, and move it."""
        ends_at = time.monotonic() + _REPLAY_S
        offset = bounds["replayed_until"]
        end = min(bounds["end"], offset + _REPLAYED_AT_ONCE)
        while offset < end and time.monotonic() < ends_at:
            found = await self._admin.fetch_messages(self._topic, 0, offset, end)
            for message in found.messages:
                self.stopped = await self._send(message, sends_again=False)
                if self.stopped is not None:
                    return
                done = message.queue_offset + 1
                await self._admin.commit_offset(REPLAY_GROUP, self._topic, 0, done)
            if found.next_offset <= offset:
                return
            offset = found.next_offset

    async def _send(self, message: ReceivedMessage, *, sends_again: bool) -> str | None:
        """Send one to the topic that it came from; return None, or why that topic takes none."""
        from reput_client.admin_dead_letters import DeadLetter, Replayed

        try:
            letter = DeadLetter(message)
            outcome, topic = await self._admin.replay_dead_letter(letter, sends_again=sends_again)
        except DamagedMessage as damage:
            self.skipped[message.queue_offset] = f"it is damaged: {damage.reason}"
        except TopicNotFound:
            topic = letter.origin.topic or ""
            return f"topic {topic} does not exist any more; reput topic create {topic}"
        else:
            if outcome is Replayed.SENT:
                self.sent[topic] += 1
            else:
                remedy = "" if outcome is Replayed.SENT_BEFORE else "; reput dlq replay --to TOPIC"
                self.skipped[message.queue_offset] = outcome.value + remedy
        return None
