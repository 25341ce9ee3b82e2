"""The delayed messages of one broker: parts, recovery and saved progress.

The saved progress means: messages up to these offsets are finished, and copies of later messages that are already
finished are in the log from `replay_from` on. It is saved only after the log is flushed up to its end when the progress
was taken. A start reads the log from `replay_from`, so that no message is delivered twice or left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from reput_broker.config.model import BrokerConfig
from reput_broker.delay.delayed_record import DeliveredRecords, OffsetSet, decode_delayed
from reput_broker.delay.levels import DelayOffsetFile, Level, LevelCancellations, LevelProgress, Levels
from reput_broker.delay.timer_checkpoint import TimerProgress
from reput_broker.delay.timer_message_store import FinishedTimers, TimerMessageStore
from reput_broker.delay.timer_wheel import SLOTS
from reput_broker.observe.counters import UNKNOWN_TOPIC, DelayStats
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import ConfigFile
from reput_protocol.kernel.tables import java_hash
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from reput_protocol.record.record import RecordView

log = structlog.get_logger(__name__)

_REPLAY_BYTES_MAX = 64 << 20
_READ_TIME_STEP_MS = 60_000
_ROLL_WINDOW_S = 2 * 86_400
"""(RocketMQ: timerRollWindowSlot.)"""
_ROLL_WINDOW_MIN_S = 60
_ANSWER_HEAD = struct.Struct(">qqq")
_ANSWER_HEAD_BYTES = 56
_ANSWER_OURS = struct.Struct(">qqqq")


class Progress(NamedTuple):
    """What can be saved once the log has been flushed up to `log_end`."""

    timers: TimerProgress
    levels: LevelProgress
    log_end: int
    delivered: int
    """Messages delivered or rescheduled in this run."""


class DelayState:
    """Everything that waits in one store. One owner; `open`, `save` and `finish` block.

    Args:
        data_dir: the store directory.
        store: open.
        timer_log_file_size: bytes of one file of the timer log.
        roll_window_ms: messages further ahead are rescheduled on the way.
        clock_ms: wall clock.
        wheel_slots: seconds in one turn of the wheel; RocketMQ's number if RocketMQ is to open the directory.
    """

    def __init__(
        self,
        data_dir: Path,
        store: MessageStore,
        *,
        timer_log_file_size: int,
        roll_window_ms: Callable[[], int],
        clock_ms: Callable[[], int],
        wheel_slots: int = SLOTS,
    ) -> None:
        self.cancelled: set[int] = set()
        """Log offsets of delayed records that must not be delivered and that no other state excludes."""
        self.consumed = OffsetSet()
        """Log offsets of records in the timer's queue that an earlier run finished."""
        self.stats = DelayStats()
        self.topic_names: dict[int, str] = {}
        """Topics by their hashes in the units of the timer log."""
        self.timers = TimerMessageStore(
            data_dir, log_file_size=timer_log_file_size, roll_window_ms=roll_window_ms, slots=wheel_slots
        )
        self.levels = Levels(store, self.cancelled, self._lost)
        self.on_lost: Callable[[Level], None] = _nothing
        self.cancellations = LevelCancellations(store, self.levels, self.cancelled)
        self._offsets = DelayOffsetFile(data_dir / "config" / "delayOffset.json")
        self._finished_by_master = ConfigFile(data_dir / "config" / "masterTimer.json")
        self._store = store
        self._clock_ms = clock_ms
        self._saved: Progress | None = None
        self._queues_from = 0

    # -- beginning -----------------------------------------------------------------------------------------

    def open(self, topics: Iterable[str]) -> None:
        """Recover what an earlier run, of this broker or of RocketMQ, left. Blocks.

        Args:
            topics: names whose hashes identify the topics of messages in the wheel.

        Raises:
            ForeignFile, StoreDamaged, ConfigFileDamaged: a file has unexpected content; the error
                names the remedy.
            DiskFull, FlushFailed, OSError: a file could not be made, read or truncated.
        """
        store, now_ms = self._store, self._clock_ms()
        low, high = store.min_offset_in_queue(TIMER_TOPIC, 0), store.max_offset_in_queue(TIMER_TOPIC, 0)
        saved = self._offsets.load()
        finished = load_finished(self._finished_by_master)
        from_timers = self.timers.open(low, high, now_ms, self._queue_offset_at, finished)
        if self.timers.is_rebuilt:
            log.warning(
                "timer_rebuilt",
                messages=high - low,
                hint="timerlog/ or config/timercheck was missing or damaged and is rebuilt from the log",
            )
        from_levels = self.levels.open(saved)
        delivered = DeliveredRecords(store)
        replay_from = min((place for place in (from_timers, from_levels) if place is not None), default=None)
        if replay_from is not None:
            self._replay(replay_from, delivered)
        self.consumed.fill(delivered.timed)
        self.levels.recover(delivered.levelled, replay_from or 0)
        self.cancellations.recover(0 if saved is None else saved.cancel_offset)
        self._count(self.timers.recover(now_ms, self.consumed, delivered.timed_ms), topics)
        if self.timers.wheel_refusal is not None:
            log.warning(
                "timer_files_not_made",
                detail=self.timers.wheel_refusal,
                hint="free disk space or memory; the broker retries, and messages with a deliver time "
                "wait until it succeeds",
            )

    def _replay(self, replay_from: int, delivered: DeliveredRecords) -> None:
        try:
            records = self._store.replay(replay_from, delivered)
        except StoreDamaged as damage:
            log.error(
                "delivered_messages_uncertain",
                detail=str(damage),
                hint="delayed messages that were delivered shortly before the last stop may be delivered again",
            )
            return
        if delivered.timed or delivered.levelled:
            log.info(
                "delayed_messages_were_delivered",
                count=len(delivered.timed) + len(delivered.levelled),
                records_read=records,
                from_offset=replay_from,
            )

    def _queue_offset_at(self, physical_offset: int) -> int | None:
        data = self._store.record_at(physical_offset)
        if data is None:
            return None
        record = RecordView(data, 0)
        return record.queue_offset if record.topic == TIMER_TOPIC else None

    def _count(self, waiting: dict[int, int], topics: Iterable[str]) -> None:
        self.topic_names.update({java_hash(topic): topic for topic in topics})
        for topic_hash, number in waiting.items():
            self.stats.waiting[self.topic_names.get(topic_hash, UNKNOWN_TOPIC)] += number

    def _lost(self, level: Level, count: int) -> None:
        self.stats.dropped["lost"] += count
        self.on_lost(level)
        if count:
            log.warning(
                "delayed_message_dropped",
                reason="lost",
                delay_level=level.number,
                count=count,
                hint="their files of the log were deleted before they were due: give the disk more space",
            )

    # -- looking -------------------------------------------------------------------------------------------

    def offset_members(self) -> dict[str, Any]:
        """Return the levels' progress as the members of `config/delayOffset.json`."""
        return self._offsets.members(self._level_progress())

    def _level_progress(self) -> LevelProgress:
        return self.levels.progress(self._store.wrote_offset, self.cancellations.first_offset())

    def offsets_version(self) -> str:
        """Return a text that differs when `offset_members` does.

        While only the log grows, it differs once a start would be spared much work by that.
        """
        offsets, replay_from, cancel_offset = self._level_progress()
        return f"{offsets}-{(replay_from or 0) // _REPLAY_BYTES_MAX}-{cancel_offset}"

    def timer_checkpoint(self) -> bytes:
        """Return RocketMQ's part of `config/timercheck`, as of now."""
        progress = self.timers.progress(self._store.wrote_offset)
        return self.timers.checkpoint.head(progress, self._clock_ms())

    def finished_timers(self) -> bytes:
        """Return what only slaves of Reput take over; nothing while a slot is being loaded."""
        finished = self.timers.finished(self._store.wrote_offset)
        return b"" if finished is None else encode_finished(finished)

    def timers_behind(self) -> int:
        """Return how many messages with a deliver time are not in the wheel yet."""
        return max(0, self._store.max_offset_in_queue(TIMER_TOPIC, 0) - self.timers.queue_offset)

    def timer_totals(self) -> tuple[int, int]:
        """Return the messages with a deliver time accepted in this run, and the delayed messages delivered."""
        stats = self.stats
        return sum(ahead.count for ahead in stats.ahead_seconds.values()), sum(stats.delivered.values())

    def figures(self) -> dict[str, object]:
        """Return the figures that RocketMQ's tools show, under its names (RocketMQ:
        ScheduleMessageService.buildRunningStats)."""
        timers = self.timers
        late_ms = max(0, self._clock_ms() - timers.read_ms) if timers.wheel.exists else 0
        figures: dict[str, object] = {
            "timerReadBehind": late_ms // 1000,
            "timerOffsetBehind": self.timers_behind(),
            "timerCongestNum": sum(self.stats.waiting.values()),
        }
        for level, end in self.levels.waiting():
            figures[f"scheduleMessageOffset_{level.number}"] = f"{level.next_offset},{end}"
        return figures

    # -- retention -----------------------------------------------------------------------------------------

    def note_queues(self) -> None:
        """Store the log offset of the first message that waits in a queue, for `waiting_from`."""
        store = self._store
        places = [(SCHEDULE_TOPIC, level.queue_id, level.next_offset) for level, _ in self.levels.waiting()]
        places.append((TIMER_TOPIC, 0, self.timers.queue_offset))
        first = store.max_physical_offset
        for place in places:
            units = store.queue_units(*place, 1)
            if units:
                first = min(first, units[0].physical_offset)
        self._queues_from = first

    def waiting_from(self) -> int:
        """Return a log offset before which no message waits, as of the last `note_queues`. Blocks;
        thread-safe."""
        return 0 if self.timers.lacks_wheel else self.timers.first_waiting(self._queues_from)

    # -- saving --------------------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether a delayed message has ever been stored here."""
        return self.timers.is_used or any(level.next_offset or level.head for level in self.levels.levels)

    def progress(self) -> Progress | None:
        """Return what is to be saved; None if it hardly differs from the last save."""
        if not self.is_used or self.timers.lacks_wheel:
            return None
        if self.timers.outlives_recovery():
            self.consumed.clear()
        progress = self._progress(self._store.wrote_offset)
        saved = self._saved
        if saved is not None and _is_alike(progress, saved):
            return None
        return progress

    def _progress(self, log_end: int) -> Progress:
        return Progress(
            self.timers.progress(log_end),
            self.levels.progress(log_end, self.cancellations.first_offset()),
            log_end,
            self.stats.error_seconds.count + self.stats.rolled,
        )

    def save(self, progress: Progress) -> None:
        """Flush everything that `progress` relies on except the log, then save it. Blocks.

        Raises:
            DiskFull, FlushFailed, OSError: the previous save remains valid.
        """
        now_ms = self._clock_ms()
        self._offsets.save(progress.levels, now_ms)
        if self.timers.is_used:
            self.timers.flush()
            self.timers.checkpoint.save(progress.timers, now_ms)
        self._saved = progress

    def finish(self) -> None:
        """Leave the directory so that this broker or RocketMQ continues without duplicates; close the files. Blocks.

        Raises:
            DiskFull, FlushFailed, OSError: the previous save remains valid; the next start reads more of the log.
        """
        try:
            if self.is_used and not self.timers.lacks_wheel:
                with suppress(StoreDamaged):
                    self._leave_for_rocketmq()
                self._store.flush_commit_log()
                self.save(self._progress(self._store.flushed_offset))
        finally:
            self.timers.close()

    def _leave_for_rocketmq(self) -> None:
        """Move what partly delivered slots still hold to the next second: RocketMQ knows no such slot."""
        timers, now_ms = self.timers, self._clock_ms()
        for due, deletes in timers.take_active(now_ms):
            data = self._store.record_at(due.physical_offset)
            delayed = None if data is None else decode_delayed(data)
            if (
                delayed is not None
                and not any(delete in deletes for delete in delayed.cancelled_by)
                and due.physical_offset not in self.cancelled
            ):
                timers.move(due, delayed.topic_hash, now_ms)
        last = self._store.queue_units(TIMER_TOPIC, 0, timers.queue_offset - 1, 1)
        if last:
            physical_offset, size, _ = last[0]
            timers.end_with(physical_offset, size, now_ms)


def _nothing(_: Level) -> None:
    """Ignore lost messages until `LevelCounts` is connected."""


def _is_alike(progress: Progress, saved: Progress) -> bool:
    """Whether saving `progress` would spare a recovery little work."""
    old, new = saved.timers, progress.timers
    return (
        progress.delivered == saved.delivered
        and (new.log_position, new.queue_offset) == (old.log_position, old.queue_offset)
        and new.read_ms - old.read_ms < _READ_TIME_STEP_MS
        and progress.levels.offsets == saved.levels.offsets
        and progress.levels.cancel_offset == saved.levels.cancel_offset
        and progress.log_end - saved.log_end < _REPLAY_BYTES_MAX
    )


def open_delay_state(
    config: BrokerConfig,
    store: MessageStore,
    topics: Iterable[str],
    clock_ms: Callable[[], int],
    *,
    wheel_slots: int = SLOTS,
) -> DelayState:
    """Return the delayed messages as an earlier run left them. Blocks. Raises as `DelayState.open`."""

    def roll_window_ms() -> int:
        """How far ahead a message may wait in one place: well within the time that its record is kept."""
        reserved_s = int(config.store.file_reserved_time) // 2
        return 1000 * max(_ROLL_WINDOW_MIN_S, min(_ROLL_WINDOW_S, reserved_s))

    state = DelayState(
        store.options.data_dir,
        store,
        timer_log_file_size=config.delay.timer_log_file_size,
        roll_window_ms=roll_window_ms,
        clock_ms=clock_ms,
        wheel_slots=wheel_slots,
    )
    state.open(topics)
    return state


def encode_finished(finished: FinishedTimers) -> bytes:
    """Return what follows RocketMQ's 56 bytes in the answer to 60."""
    assert finished.replay_from is not None
    return _ANSWER_OURS.pack(finished.read_ms, finished.queue_offset, finished.late_from, finished.replay_from)


def read_answer(body: bytes) -> dict[str, Any]:
    """Return the members of the file from an answer to 60, of Reput or RocketMQ.

    Raises:
        ValueError: it is too short.
    """
    if len(body) >= _ANSWER_HEAD_BYTES + _ANSWER_OURS.size:
        read_ms, queue_offset, late_from, replay_from = _ANSWER_OURS.unpack_from(body, _ANSWER_HEAD_BYTES)
        return {"readMs": read_ms, "queueOffset": queue_offset, "lateFrom": late_from, "replayFrom": replay_from}
    if len(body) < _ANSWER_HEAD_BYTES:
        raise ValueError(f"{len(body)} bytes are no timer checkpoint, which has {_ANSWER_HEAD_BYTES}")
    read_ms, _, queue_offset = _ANSWER_HEAD.unpack_from(body)
    return {"readMs": read_ms, "queueOffset": queue_offset, "lateFrom": None, "replayFrom": None}


def load_finished(file: ConfigFile) -> FinishedTimers | None:
    """Read `config/masterTimer.json`: what a master's timer had finished, as its slave received it. None if there is no
    file. Blocks.

    A slave has no wheel. When it becomes the master, it reads the timer's queue again, and would have to read the whole
    log to find what was delivered. With this file it passes over what the old master had finished, and reads the log
    only from `replayFrom` on.

    Raises:
        ConfigFileDamaged, OSError: it cannot be read.
    """
    members = file.load().members
    if not members:
        return None
    late_from = members.get("lateFrom")
    return FinishedTimers(
        int(members["readMs"]),
        int(members["queueOffset"]),
        1 << 62 if late_from is None else int(late_from),
        members.get("replayFrom"),
    )
