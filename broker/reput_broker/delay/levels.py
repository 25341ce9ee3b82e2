"""The 18 delay levels: a queue each in `SCHEDULE_TOPIC_XXXX`, whose entries hold the deliver times.

(RocketMQ: ScheduleMessageService.) All messages of a level wait equally long, so its queue is in the order of delivery
and its progress is one offset. Messages finished ahead of that are remembered until it reaches them; their copies are
behind a known log offset.

When the clock is set back, messages stored before wait longer, but never longer than the level's delay from when the
change was noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from reput_broker.delay.delayed_record import Due, origin_of
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import ConfigFile, DataVersion, encode
from reput_protocol.names import DELAY_CANCEL_TOPIC, SCHEDULE_TOPIC
from reput_protocol.properties import find_property
from reput_protocol.record.delays import DELAY_LEVELS_MS, deliver_time
from reput_protocol.record.record import RecordView, decode_record
from reput_protocol.store.unit import is_address

_UNITS_A_READ = 128


class Level:
    """One delay level."""

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.queue_id = number - 1
        self.delay_ms = delay_ms
        self.next_offset = 0
        """Queue offset of the first unfinished message."""
        self.done_ahead: set[int] = set()
        """Queue offsets of later messages that are finished."""
        self.ahead_from: int | None = None
        """The copies of those are in the log from here on."""
        self.head: tuple[int, int] | None = None
        """Queue offset and deliver time of the first message, once looked up."""
        self._held_back: tuple[int, int] | None = None
        """After the clock was set back: messages up to this queue offset wait at most until this time."""

    def due_ms(self, queue_offset: int, deliver_ms: int, now_ms: int) -> int:
        """Return when a message is due by the present clock."""
        if deliver_ms <= now_ms + self.delay_ms:
            return deliver_ms
        if self._held_back is None or self._held_back[0] < queue_offset:
            self._held_back = (queue_offset, now_ms + self.delay_ms)
        return self._held_back[1]

    def done(self, queue_offset: int, delivered_from: int | None) -> None:
        """Record that a message is finished."""
        if queue_offset > self.next_offset:
            self.done_ahead.add(queue_offset)
            if delivered_from is not None and self.ahead_from is None:
                self.ahead_from = delivered_from
            return
        self.next_offset = max(self.next_offset, queue_offset + 1)
        self.advance()

    def advance(self) -> None:
        """Move `next_offset` past finished messages."""
        while self.next_offset in self.done_ahead:
            self.done_ahead.discard(self.next_offset)
            self.next_offset += 1
        if not self.done_ahead:
            self.ahead_from = None


class Levels:
    """All levels of one store. One owner.

    Args:
        store: holds the queues.
        cancelled: log offsets of delayed records that must not be delivered.
        on_lost: called with a level and the number of its messages that left the log undelivered.
    """

    def __init__(self, store: MessageStore, cancelled: set[int], on_lost: Callable[[Level, int], None]) -> None:
        self._store = store
        self._cancelled = cancelled
        self.levels = [Level(number, delay_ms) for number, delay_ms in enumerate(DELAY_LEVELS_MS, 1)]
        self._on_lost = on_lost
        self._turn = 0

    def of(self, number: int) -> Level:
        """Return a level by its number, from 1."""
        return self.levels[number - 1]

    def open(self, progress: LevelProgress | None) -> int | None:
        """Continue from saved progress.

        Offsets outside of their queue move to its nearer end (RocketMQ: correctDelayOffset).

        Returns:
            The log offset behind which copies of later messages may be; None if there can be none.
        """
        has_messages = False
        for level in self.levels:
            low, high = self._begin(level), self._end(level)
            offset = 0 if progress is None else progress.offsets.get(level.number, 0)
            level.next_offset = min(max(offset, low), high)
            has_messages |= level.next_offset < high
        if not has_messages:
            return None
        return 0 if progress is None else progress.replay_from

    def recover(self, consumed: Collection[tuple[int, int]], replayed_from: int) -> None:
        """Mark messages that were delivered after the progress was saved.

        Args:
            consumed: level and queue offset of each.
            replayed_from: their copies are in the log from here on.
        """
        for number, queue_offset in consumed:
            level = self.of(number)
            if queue_offset >= level.next_offset:
                level.done_ahead.add(queue_offset)
                level.ahead_from = replayed_from
        for level in self.levels:
            level.advance()

    def next_ms(self, now_ms: int) -> int | None:
        """When the next message of any level is due; None if none waits."""
        times = [due for level in self.levels if (due := self._head_ms(level, now_ms)) is not None]
        return min(times, default=None)

    def _head_ms(self, level: Level, now_ms: int) -> int | None:
        if level.head is None or level.head[0] != level.next_offset:
            level.head = None
            if level.next_offset < self._end(level):
                self._skip_lost(level)
                units = self._store.queue_units(SCHEDULE_TOPIC, level.queue_id, level.next_offset, 1)
                if units:
                    physical_offset, _, code = units[0]
                    level.head = (level.next_offset, self.deliver_ms(physical_offset, code))
        return None if level.head is None else level.due_ms(*level.head, now_ms)

    def take(self, now_ms: int, count: int) -> list[Due]:
        """Return up to `count` due messages, in order within a level; each call starts with another
        level.

        They are returned again until they are `done`.
        """
        taken: list[Due] = []
        self._turn += 1
        for number in range(len(self.levels)):
            level = self.levels[(self._turn + number) % len(self.levels)]
            head_ms = self._head_ms(level, now_ms)
            if head_ms is not None and head_ms <= now_ms:
                taken += self._take_of(level, now_ms, count - len(taken))
            if len(taken) >= count:
                break
        return taken

    def _take_of(self, level: Level, now_ms: int, count: int) -> list[Due]:
        taken: list[Due] = []
        self._skip_lost(level)
        offset, end = level.next_offset, self._end(level)
        while offset < end and len(taken) < count:
            units = self._store.queue_units(SCHEDULE_TOPIC, level.queue_id, offset, _UNITS_A_READ)
            if not units:
                break
            for physical_offset, size, code in units:
                due_ms = level.due_ms(offset, self.deliver_ms(physical_offset, code), now_ms)
                if due_ms > now_ms or len(taken) >= count:
                    return taken
                if offset < level.next_offset or offset in level.done_ahead:
                    pass  # a cancelled message before it has moved the level past it
                elif physical_offset in self._cancelled:
                    self._cancelled.discard(physical_offset)
                    level.done(offset, None)
                else:
                    taken.append(Due(due_ms, physical_offset, size, level.number, offset))
                offset += 1
        return taken

    def done(self, due: Due, *, delivered_from: int | None = None) -> None:
        """Record that a message was delivered, with the log ending at `delivered_from` before, or
        dropped."""
        self.of(due.level).done(due.place, delivered_from)

    def progress(self, log_end: int, cancel_offset: int) -> LevelProgress:
        """Return what may be saved once the log has been flushed up to `log_end`."""
        replay_from = min((level.ahead_from for level in self.levels if level.ahead_from is not None), default=log_end)
        offsets = {level.number: level.next_offset for level in self.levels if self._end(level)}
        return LevelProgress(offsets, min(replay_from, log_end), cancel_offset)

    def waiting(self) -> Iterable[tuple[Level, int]]:
        """Yield each level in which a message waits, with the end of its queue."""
        for level in self.levels:
            end = self._end(level)
            if level.next_offset < end:
                yield level, end

    def _skip_lost(self, level: Level) -> None:
        low = self._begin(level)
        if level.next_offset < low:
            level.head = None
            gone = low - level.next_offset - sum(offset < low for offset in level.done_ahead)
            level.next_offset = low
            level.done_ahead = {offset for offset in level.done_ahead if offset >= low}
            level.advance()
            self._on_lost(level, gone)

    def deliver_ms(self, physical_offset: int, code: int) -> int:
        """Return the deliver time that a queue entry, or its record, holds."""
        if not is_address(code):
            return code
        data = self._store.record_at(physical_offset)
        if data is None:
            return 0
        record = decode_record(data, check_crc=False)
        due = deliver_time(find_property(record.properties, b"DELAY"), record.store_timestamp_ms, DELAY_LEVELS_MS)
        return 0 if due is None else due

    def _begin(self, level: Level) -> int:
        return self._store.min_offset_in_queue(SCHEDULE_TOPIC, level.queue_id)

    def _end(self, level: Level) -> int:
        return self._store.max_offset_in_queue(SCHEDULE_TOPIC, level.queue_id)


_RECORDS_A_READ = 1024


class _Cancellation(NamedTuple):
    cancel_offset: int
    level: int
    queue_offset: int


@dataclass(eq=False, repr=False)
class LevelCancellations:
    """Cancelled messages of delay levels that are not due yet; each has a record in a topic of our own.

    A start reads the records and adds their targets to `cancelled`. Messages with a deliver time need none: a delete
    message in their slot cancels them. One owner.
    """

    _store: MessageStore
    _levels: Levels
    _cancelled: set[int]
    _waiting: deque[_Cancellation] = field(default_factory=deque, init=False)

    def recover(self, cancel_offset: int) -> None:
        """Read the records from a queue offset on. Blocks."""
        store = self._store
        offset = max(cancel_offset, store.min_offset_in_queue(DELAY_CANCEL_TOPIC, 0))
        while units := store.queue_units(DELAY_CANCEL_TOPIC, 0, offset, _RECORDS_A_READ):
            for unit in units:
                self._recover_one(offset, unit.physical_offset)
                offset += 1

    def _recover_one(self, cancel_offset: int, physical_offset: int) -> None:
        data = self._store.record_at(physical_offset)
        target = None if data is None else origin_of(RecordView(data, 0))
        delayed = None if target is None else self._store.record_at(target)
        if target is None or delayed is None:
            return
        record = RecordView(delayed, 0)
        if record.topic == SCHEDULE_TOPIC and record.queue_offset >= self._levels.of(record.queue_id + 1).next_offset:
            self._cancelled.add(target)
            self.add(cancel_offset, record.queue_id + 1, record.queue_offset)

    def add(self, cancel_offset: int, level: int, queue_offset: int) -> None:
        """Remember which message the record at a queue offset cancels."""
        self._waiting.append(_Cancellation(cancel_offset, level, queue_offset))

    def first_offset(self) -> int:
        """Return the queue offset of the first record still needed."""
        waiting = self._waiting
        while waiting and waiting[0].queue_offset < self._levels.of(waiting[0].level).next_offset:
            waiting.popleft()
        return waiting[0].cancel_offset if waiting else self._store.max_offset_in_queue(DELAY_CANCEL_TOPIC, 0)


_OURS = "reput"


class LevelProgress(NamedTuple):
    """The content of the file."""

    offsets: Mapping[int, int]
    """Next queue offset by level; a missing level begins at 0."""
    replay_from: int | None
    """Copies of later messages are in the log from here on; None if RocketMQ wrote the file."""
    cancel_offset: int = 0
    """The first relevant record in the queue of cancelled messages."""


class DelayOffsetFile:
    """The saved progress of the delay levels, `config/delayOffset.json` (RocketMQ: ScheduleMessageService).

    `offsetTable` is RocketMQ's: for each level the next queue offset in its queue of `SCHEDULE_TOPIC_XXXX`. The member
    `reput` is ours: `replayFrom`, behind which the log holds every copy of messages at or beyond those offsets, and
    `cancelOffset`, the first relevant record of our topic of cancelled messages. A RocketMQ broker drops the member
    when it writes the file; a start then uses `offsetTable` alone.

    `save` may run in a worker thread, one call at a time.
    """

    def __init__(self, path: Path) -> None:
        self.file = ConfigFile(path)
        self._version = DataVersion()
        self._written: LevelProgress | None = None

    def load(self) -> LevelProgress | None:
        """Read the file; None if it does not exist.

        Raises:
            ConfigFileDamaged: neither the file nor its backup is usable; nothing was changed.
            OSError: a file cannot be read.
        """
        loaded = self.file.load()
        if loaded.path is None:
            return None
        self._version = DataVersion.from_json(loaded.members.get("dataVersion"))
        table = loaded.members.get("offsetTable")
        offsets = {int(level): offset for level, offset in _numbers(table).items() if level.isdecimal()}
        ours = _numbers(loaded.members.get(_OURS))
        return LevelProgress(offsets, ours.get("replayFrom"), ours.get("cancelOffset", 0))

    def save(self, progress: LevelProgress, now_ms: int) -> None:
        """Replace the file durably unless its content is the same. Blocks.

        Raises:
            OSError: it could not be written; the old file remains.
        """
        if progress == self._written:
            return
        self._version = self._version.next(now_ms)
        self.file.save(encode(self.members(progress)))
        self._written = progress

    def members(self, progress: LevelProgress) -> dict[str, Any]:
        """Return the file's members, RocketMQ's in its order."""
        return {
            "dataVersion": self._version.to_json(),
            "offsetTable": {str(level): offset for level, offset in sorted(progress.offsets.items())},
            _OURS: {"cancelOffset": progress.cancel_offset, "replayFrom": progress.replay_from},
        }


def _numbers(members: object) -> dict[str, int]:
    if not isinstance(members, Mapping):
        return {}
    return {str(name): value for name, value in members.items() if type(value) is int and value >= 0}
