"""Dead letters: the groups that have some, those of one group, and replaying them.

The broker sends each dead letter once and knows which it has sent: for the console as for `reput dlq replay`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from reput_broker.console.messages import summary_of
from reput_broker.console.source import ROWS_MAX, Bodies, InvalidQuery, Query, Source
from reput_client.errors import DamagedMessage
from reput_protocol.commands.dead_letters import Replay, ReplayedLetter, ReplayOutcome, Replays
from reput_protocol.errors import BrokerError, TopicNotFound
from reput_protocol.names import DLQ_PREFIX, check_group, dlq_topic
from reput_protocol.printable import counted
from reput_protocol.record.dead_letter import dead_letter_origin

if TYPE_CHECKING:
    from reput_client.admin import Admin
    from reput_client.preview import Preview
    from reput_client.received import ReceivedMessage

_LISTED_MAX: Final = 50
_REPLAYED_AT_ONCE: Final = 100
"""Dead letters of one request to the broker, and of one selection."""
_PREVIEW_S: Final = 3.0
_REPLAY_S: Final = 15.0
_NAMED_MAX: Final = 10
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_WHY: Final = {
    ReplayOutcome.GONE: "it does not exist any more",
    ReplayOutcome.DAMAGED: "its record is damaged; reput store verify",
    ReplayOutcome.UNPROVEN: "its origin is not proven, since the broker did not store it there; "
    "reput dlq replay --to TOPIC",
}


async def list_dead_letters(source: Source, query: Query) -> dict[str, Any]:
    """Return the groups with dead letters, those with the most that were not replayed first."""
    search = query.text("search").lower()
    found = []
    for topic in await source.admin.topic_summaries():
        group = topic.topic.removeprefix(DLQ_PREFIX)
        if topic.kind == "dlq" and topic.messages and search in group.lower():
            found.append({"group": group, **_bounds(topic.end_offsets - topic.messages, topic.end_offsets)})
    found.sort(key=lambda row: (-row["messages"], row["group"]))
    total = len(found)
    del found[ROWS_MAX:]
    for row in found:
        replays = await _replays(source, row["group"])
        row |= _bounds(row["start"], row["end"], None if replays is None else replays.replayed)
    found.sort(key=lambda row: (-(row["left"] or 0), row["group"]))
    return {"at_ms": source.at_ms, "total": total, "groups": found}


async def _replays(source: Source, group: str, begin: int = 0, end: int = 0) -> Replays | None:
    """Return which dead letters of a group were replayed; None if that is not known: a slave does not, for instance, or
    the user may not read them.
    """
    try:
        return await source.admin.replays(group, begin, end)
    except BrokerError:
        return None


def _bounds(low: int, high: int, replayed: int | None = None) -> dict[str, Any]:
    """Return the numbers of a group; `replayed` and `left` are None if that is not known."""
    messages = max(0, high - low)
    left = None if replayed is None else max(0, messages - replayed)
    return {"start": low, "end": high, "messages": messages, "replayed": replayed, "left": left}


async def bounds_of(source: Source, group: str) -> dict[str, Any]:
    """Return the numbers of a group's dead letters: the first and the next offset, how many are kept and replayed."""
    try:
        letters = await source.admin.dead_letters(group)
    except TopicNotFound:
        return _bounds(0, 0, 0)
    (span,) = letters.spans.values()
    replays = await _replays(source, group)
    return _bounds(*span, None if replays is None else replays.replayed)


async def show_dead_letters(source: Source, query: Query) -> dict[str, Any]:
    """Return dead letters of one group from offset `from` on, by default the newest ones."""
    group = check_group(query.needed("group"))
    bounds = await bounds_of(source, group)
    newest = max(bounds["start"], bounds["end"] - _LISTED_MAX)
    start = max(bounds["start"], query.number("from", newest))
    found: Sequence[ReceivedMessage] = ()
    replayed: dict[int, Replay] = {}
    if bounds["messages"]:
        found = (await source.admin.fetch_messages(dlq_topic(group), 0, start, start + _LISTED_MAX)).messages
        replays = await _replays(source, group, start, start + _LISTED_MAX)
        replayed = {} if replays is None else {replay.letter_offset: replay for replay in replays.replays}

    def letters() -> list[dict[str, Any]]:
        return [_letter(message, replayed.get(message.queue_offset), source.bodies) for message in found]

    return {"at_ms": source.at_ms, **bounds, "from": start, "letters": await trio.to_thread.run_sync(letters)}


def _letter(message: ReceivedMessage, replay: Replay | None, bodies: Bodies) -> dict[str, Any]:
    try:
        properties = message.properties
    except DamagedMessage:
        properties = {}
    origin = dead_letter_origin(properties, message.offset_message_id)
    return {
        **summary_of(message, bodies),
        "origin_topic": origin.topic,
        "origin_id": origin.message_id,
        "reason": origin.reason,
        "cause": origin.cause,
        "attempts": message.reconsume_times,
        "replayed": None if replay is None else _replayed(replay),
    }


def _replayed(replay: Replay) -> dict[str, Any]:
    return {"at_ms": replay.replay_timestamp, "topic": replay.topic, "id": replay.offset_message_id}


async def preview_replay(admin: Admin, group: str, offsets: str | None) -> Preview:
    """Return what `replay` would do; of many dead letters it looks at the first ones only."""
    from reput_client.preview import Preview

    work = await _replayed_by(admin, group, offsets, dry_run=True)
    notes = work.notes()
    if work.sent:
        notes.append("each becomes a new message; the dead letters stay where they are")
    if not work.is_whole:
        notes.append("so far; there are more dead letters, which are checked when they are replayed")
    return Preview(work.text("is", "are"), notes, is_change=bool(work.sent) or not work.is_whole)


async def replay(admin: Admin, group: str, offsets: str | None) -> str:
    """Replay dead letters of a group, and say what became of them.

    Those that were replayed before are left out, so that it may be repeated.

    Args:
        offsets: of those to replay, separated by commas; None: all, as many as there is time for.
    """
    work = await _replayed_by(admin, group, offsets, dry_run=False)
    more = () if work.is_whole else ("there are more dead letters: replay again",)
    return "; ".join((work.text("was", "were"), *work.notes(), *more))


async def _replayed_by(admin: Admin, group: str, offsets: str | None, *, dry_run: bool) -> _Replay:
    work = _Replay(admin, check_group(group), dry_run=dry_run)
    if offsets:
        await work.send(_offsets(offsets))
    else:
        await work.send_all(_PREVIEW_S if dry_run else _REPLAY_S)
    return work


def _offsets(text: str) -> list[int]:
    parts = [part for part in text.replace(" ", "").split(",") if part]
    if len(parts) > _REPLAYED_AT_ONCE or not all(_OFFSET.fullmatch(part) for part in parts):
        raise InvalidQuery(f"offsets are up to {_REPLAYED_AT_ONCE} numbers, separated by commas")
    return sorted({int(part) for part in parts})


class _Replay:
    """What one request replays, or in a dry run would replay.

    Attributes:
        sent: dead letters by the topic that they go to.
        is_whole: whether all were looked at.
    """

    def __init__(self, admin: Admin, group: str, *, dry_run: bool) -> None:
        self._admin = admin
        self._group = group
        self._dry_run = dry_run
        self._before = 0
        self._skipped: list[str] = []
        self.sent: Counter[str] = Counter()
        self.is_whole = True

    async def send(self, offsets: Sequence[int]) -> None:
        """Replay those at these offsets."""
        for letter in await self._admin.replay_dead_letters(self._group, offsets, dry_run=self._dry_run):
            self._note(letter)

    async def send_all(self, limit_s: float) -> None:
        """Replay all, for so many seconds."""
        try:
            ((offset, end),) = (await self._admin.dead_letters(self._group)).spans.values()
        except TopicNotFound:
            return
        ends_at = time.monotonic() + limit_s
        while offset < end:
            if time.monotonic() >= ends_at:
                self.is_whole = False
                return
            stop = min(end, offset + _REPLAYED_AT_ONCE)
            await self.send(range(offset, stop))
            offset = stop

    def _note(self, letter: ReplayedLetter) -> None:
        offset, topic = letter.queue_offset, letter.topic or ""
        if letter.outcome is ReplayOutcome.SENT:
            self.sent[topic] += 1
        elif letter.outcome is ReplayOutcome.SENT_BEFORE:
            self._before += 1
        else:
            self._skipped.append(f"offset {offset} stays: {letter.reason or _WHY[letter.outcome]}")

    def text(self, one: str, many: str) -> str:
        """Return what is sent, with the verb for one and for many."""
        total = self.sent.total()
        if not total:
            return f"no dead letter of {self._group} {one} sent"
        where = ", ".join(f"{count} to {topic}" for topic, count in self.sent.items())
        return f"{counted(total, 'dead letter')} {one if total == 1 else many} sent: {where}"

    def notes(self) -> list[str]:
        """Return what is not sent, and why."""
        found = self._skipped[:_NAMED_MAX]
        if self._before:
            were = "was" if self._before == 1 else "were"
            found.insert(0, f"{self._before} {were} replayed before")
        if len(self._skipped) > _NAMED_MAX:
            found.append(f"{len(self._skipped) - _NAMED_MAX} more stay")
        return found
