"""Messages with a deliver time of their own: where they wait and which are due (RocketMQ: TimerMessageStore).

The queue of the topic `rmq_sys_wheel_timer` holds the delayed records as they were stored. Each gets a unit in the
timer log, chained into the slot of its second in the wheel. Shortly before that second the chain is loaded into memory
(`ActiveSlots`), where every message becomes due at its own millisecond. RocketMQ delivers a whole slot at its end, from
the same files.

Slots finish one after the other: `read_ms` is the first unfinished one, and a unit whose second has passed goes into
it. After a crash everything is rebuilt from the queue and the flushed part of the timer log; the copies in the log tell
which messages of unfinished slots had been delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, KeysView, Sequence
from pathlib import Path
from typing import NamedTuple

from reput_broker.delay.active_slots import ActiveSlots
from reput_broker.delay.delayed_record import DeleteId, Due, OffsetSet
from reput_broker.delay.timer_checkpoint import FILES_MAX, TimerCheckDamaged, TimerCheckpoint, TimerProgress
from reput_broker.delay.timer_log import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NO_POSITION,
    UNIT_BYTES,
    TimerLog,
    TimerUnit,
)
from reput_broker.delay.timer_wheel import EMPTY, PRECISION_MS, SLOT_BYTES, SLOTS, Slot, TimerWheel, slot_of
from reput_protocol.errors import ReputError
from reput_protocol.kernel.timer import chain_timer_units, timer_units_ahead


class WheelImage:
    """The slots of a wheel, and the topics of the messages in them."""

    def __init__(self, slots: int) -> None:
        self.slots = bytearray(slots * SLOT_BYTES)
        """Their bytes as in the file."""
        self.waiting: dict[int, int] = {}
        """Number of waiting messages by topic hash."""
        self.first_ms: int | None = None
        """The time of the first slot with a waiting message; None if there is none."""
        self.consumed_ms: int | None = None
        """The time of the last unfinished slot that holds a finished message; None if there is none."""


def image_of(log: TimerLog, slots: int, read_ms: int, consumed: OffsetSet) -> WheelImage:
    """Return the wheel that a timer log describes. Memory does not grow with the log. Blocks.

    Args:
        log, slots: of the wheel.
        read_ms: slots before this time are finished.
        consumed: log offsets of finished records; their units stay in their chains, not counted.
    """
    image = WheelImage(slots)
    for position, units in log.pieces():
        first_ms, consumed_ms = chain_timer_units(
            image.slots, units, position, max(read_ms, 0), consumed.ascending, image.waiting
        )
        if first_ms >= 0:
            image.first_ms = first_ms if image.first_ms is None else min(image.first_ms, first_ms)
        if consumed_ms >= 0:
            image.consumed_ms = max(consumed_ms, image.consumed_ms or 0)
    return image


LEAD_MS = 3000
"""A slot is loaded this long before its time, and earlier the more messages it has."""
_LOADED_A_MS = 30
_LOOK_AHEAD_MS = 60_000
_ACTIVATED_AT_ONCE = 1000
_SEARCHED_AT_ONCE_MS = 65_536_000
_DELAY_MAX_MS = 1_000_000_000


class Chain(NamedTuple):
    """A slot to be loaded: its time, and its last unit when it was activated."""

    slot_ms: int
    last: int


class Timed(NamedTuple):
    """What a record of the timer's queue means to the wheel."""

    physical_offset: int
    size: int
    stored_ms: int
    out_ms: int
    """The slot that it asks for (TIMER_OUT_MS)."""
    due_ms: int
    topic_hash: int
    cancels: bool
    """Whether it is a delete message."""
    stays: bool = False
    """Whether it cancels a message of exactly that slot."""
    is_done: bool = False
    """Whether it is finished. It still gets a unit, because RocketMQ takes the last unit of the log for the last
    message that it has handled."""


class FinishedTimers(NamedTuple):
    """What a master said was finished: messages of its timer's queue before `queue_offset`, in slots before `read_ms`.

    Except those that got a later slot because they were late; they are at `late_from` of the log or later.
    """

    read_ms: int
    queue_offset: int
    late_from: int
    replay_from: int | None
    """Copies of messages in other slots are in the log from here on; None if RocketMQ delivered them."""


class _Placed(NamedTuple):
    slot_ms: int
    rolls: bool
    before: Slot
    after: Slot
    unit: bytes


class TimerMessageStore:
    """The timer of one directory. One owner; `log.chain`, `make_files` and `flush` may run in worker threads.

    Args:
        data_dir: the store directory, with `timerwheel`, `timerlog/` and `config/timercheck`.
        log_file_size: bytes of one file of the timer log.
        roll_window_ms: messages further ahead are rescheduled on the way (RocketMQ: timerRollWindowSlot).
        slots: of the wheel.
    """

    def __init__(
        self, data_dir: Path, *, log_file_size: int, roll_window_ms: Callable[[], int], slots: int = SLOTS
    ) -> None:
        self.log = TimerLog(data_dir / "timerlog", log_file_size)
        self.wheel = TimerWheel(data_dir / "timerwheel", slots)
        self.checkpoint = TimerCheckpoint(data_dir / "config" / "timercheck")
        self.active = ActiveSlots()
        self.read_ms = 0
        """The first unfinished slot."""
        self.queue_offset = 0
        """The next message of the timer's queue that needs a unit."""
        self.chains: deque[Chain] = deque()
        """Active slots to be loaded, in order."""
        self._roll_window_ms = roll_window_ms
        self.active_until = 0
        """Every non-empty slot before this time has been activated."""
        self._replay_from: int | None = None
        self._replay_until_ms = -1
        self._replay_until_offset = 0
        self._consumed = OffsetSet()
        self.wheel_refusal: str | None = None
        """Why the wheel could not be made at the start; None once it is."""
        self._finished: FinishedTimers | None = None
        self.is_rebuilt = False
        """Whether the start found messages but no usable files with their progress."""

    # -- opening -------------------------------------------------------------------------------------------

    def open(
        self,
        first_offset: int,
        end_offset: int,
        now_ms: int,
        queue_offset_at: Callable[[int], int | None],
        finished: FinishedTimers | None = None,
    ) -> int | None:
        """Read the files and truncate what is not known to be flushed. Blocks; `recover` must follow.

        Args:
            first_offset, end_offset: bounds of the timer's queue.
            queue_offset_at: returns the queue offset of the timer's record at a log offset, or None.
            finished: what an earlier master had finished, if this broker was its slave.

        Returns:
            The log offset behind which copies of unfinished messages may be; None if there can be none.

        Raises:
            ForeignFile: a file has unexpected content.
            DiskFull, FlushFailed: the remains of an earlier run could not be removed.
        """
        self._replay_until_offset = end_offset
        self._finished = finished
        self.log.load()
        try:
            progress = self.checkpoint.load()
        except TimerCheckDamaged:
            return self._start_over(first_offset, end_offset, now_ms)
        if (
            progress is None
            or not self.log.holds(progress.log_position, progress.digests)
            or _is_newer(finished, progress)
        ):
            return self._start_over(first_offset, end_offset, now_ms)
        if progress.replay_from is None:
            self.log.cut(self.log.end)
            self._continue_after_rocketmq(progress, first_offset, end_offset, queue_offset_at)
            return None
        self.log.cut(progress.log_position)
        self.read_ms = progress.read_ms
        self.queue_offset = min(max(progress.queue_offset, first_offset), end_offset)
        self._replay_from = progress.replay_from
        return progress.replay_from

    def _start_over(self, first_offset: int, end_offset: int, now_ms: int) -> int | None:
        """Read the whole queue and log again: the files are new, lost or damaged."""
        self.log.cut(0)
        self.read_ms = slot_of(now_ms)
        self.queue_offset = first_offset
        if end_offset > first_offset:
            self.is_rebuilt = self._finished is None
            self._replay_from = 0 if self._finished is None else self._finished.replay_from
        return self._replay_from

    def was_finished(self, queue_offset: int, timed: Timed) -> bool:
        """Tell whether an earlier master had finished a message of the timer's queue."""
        finished = self._finished
        return (
            finished is not None
            and queue_offset < finished.queue_offset
            and timed.physical_offset < finished.late_from
            and self._slot_from(timed, slot_of(timed.stored_ms))[0] < finished.read_ms
        )

    def finished(self, log_end: int) -> FinishedTimers | None:
        """Return what this timer has finished; None while it does not know that yet.

        Late messages may be in a slot that is loaded, and in the first one until it is. What an earlier master had
        finished is known as its answer until the whole queue has been read and every slot of that answer is over: the
        copies of those messages may be before `replay_from`.

        Args:
            log_end: end of the log now.
        """
        if (
            self.lacks_wheel
            or self.active.is_loading
            or self.active_until <= self.read_ms
            or self.queue_offset < self._replay_until_offset
            or (self._finished is not None and self.read_ms < self._finished.read_ms)
        ):
            return None
        progress = self.progress(log_end)
        late_from = self.active.first_late(self.read_ms, log_end)
        # Messages from `late_from` on are finished too. Each copy is behind its message.
        replay_from = min(progress.replay_from or 0, late_from)
        return FinishedTimers(progress.read_ms, progress.queue_offset, late_from, replay_from)

    def _continue_after_rocketmq(
        self, progress: TimerProgress, first_offset: int, end_offset: int, queue_offset_at: Callable[[int], int | None]
    ) -> None:
        """Continue where RocketMQ stopped; it trusts the last unit more than its checkpoint."""
        self.read_ms = progress.read_ms
        last = self.log.last_unit()
        logged = None if last is None else queue_offset_at(last.physical_offset)
        offset = progress.queue_offset if logged is None else max(progress.queue_offset, logged + 1)
        self.queue_offset = min(max(offset, first_offset), end_offset)

    def recover(self, now_ms: int, consumed: OffsetSet, consumed_ms: int = 0) -> dict[int, int]:
        """Rebuild the wheel from the timer log. Blocks.

        Args:
            consumed: log offsets of finished records.
            consumed_ms: when the last of them was finished, by the clock of that run; no slot of theirs is later.

        Returns:
            The number of waiting messages by topic hash.
        """
        self._consumed = consumed
        image = image_of(self.log, self.wheel.slots, self.read_ms, consumed)
        begin = slot_of(now_ms) if image.first_ms is None else min(image.first_ms, slot_of(now_ms))
        self.read_ms = self.active_until = max(self.read_ms, begin)
        if len(consumed):
            self._replay_until_ms = max(slot_of(consumed_ms), image.consumed_ms or 0)
        if self.log.end:
            try:
                self._make_wheel(image)
            except (ReputError, OSError, MemoryError) as error:
                self.wheel_refusal = str(error) or "out of memory"
        return image.waiting

    def _make_wheel(self, image: WheelImage | None = None) -> None:
        """Make the wheel with all chains, or not at all. Blocks."""
        if image is None and self.log.end:
            image = image_of(self.log, self.wheel.slots, self.read_ms, self._consumed)
        self.wheel.create()
        if image is not None:
            self.wheel.fill(image.slots)
        self.wheel_refusal = None

    @property
    def lacks_wheel(self) -> bool:
        """Whether the timer log has units but there was no disk space or memory for the wheel.

        Slots must not be used until `make_files` has made it.
        """
        return self.wheel_refusal is not None

    @property
    def is_used(self) -> bool:
        """Whether a message with a deliver time of its own has ever been stored here."""
        return self.wheel.exists or self.queue_offset > 0

    # -- putting messages into slots -----------------------------------------------------------------------

    def needs_files(self) -> bool:
        """Whether `make_files` must be called before the next `add`."""
        return self.lacks_wheel or not self.wheel.exists or self.log.needs_file()

    def make_files(self) -> None:
        """Make the files that the next `add` needs. Blocks.

        Raises:
            DiskFull, FlushFailed, OSError: a file could not be made; the call may be repeated.
        """
        if self.lacks_wheel or not self.wheel.exists:
            self._make_wheel()
        if self.log.needs_file() or self.log.should_prepare_file():
            self.log.make_file()

    def add(self, entries: Sequence[Timed], now_ms: int) -> list[int]:
        """Give the next messages of the timer's queue their units; keep those of active slots in memory.

        Returns:
            Their slots. Only the first messages are added if a file of the log ends in between, or a message of another
                turn of the wheel holds the next slot.

        Raises:
            DiskFull: nothing has changed; the call may be repeated.
        """
        position = self.log.begin_append()
        placed = self._place(entries[: self.log.room], position, now_ms)
        self.log.append(b"".join([one.unit for one in placed]))
        for one in placed:
            self.wheel.put(one.slot_ms, one.after)
        for timed, one in zip(entries, placed, strict=False):
            if not timed.is_done and (
                one.slot_ms < self.active_until or one.slot_ms in self.active.slots or one.slot_ms == self.read_ms
            ):
                self._keep_in_memory(timed, one)
        self.queue_offset += len(placed)
        return [one.slot_ms for one in placed]

    def _place(self, entries: Sequence[Timed], position: int, now_ms: int) -> list[_Placed]:
        changed: dict[int, Slot] = {}
        placed: list[_Placed] = []
        for timed in entries:
            slot_ms, rolls = self._slot_for(timed, now_ms)
            before = changed.get(slot_ms)
            if before is None:
                held_ms = self.wheel.held_by(slot_ms)
                if held_ms != slot_ms and held_ms >= self.read_ms:
                    break
                before = self.wheel.slot(slot_ms)
            flags = (MAGIC_ROLL if rolls else 0) | (MAGIC_DELETE if timed.cancels else 0)
            unit = self._unit(before, slot_ms, timed.physical_offset, timed.size, timed.topic_hash, flags, now_ms)
            first = position if before.first == NO_POSITION else before.first
            after = Slot(first, position, before.number + (-1 if timed.cancels else 1))
            changed[slot_ms] = after
            placed.append(_Placed(slot_ms, rolls, before, after, unit))
            position += UNIT_BYTES
        return placed

    def _unit(
        self, before: Slot, slot_ms: int, physical_offset: int, size: int, topic_hash: int, flags: int, now_ms: int
    ) -> bytes:
        written_ms = min(max(slot_of(now_ms), slot_ms - _DELAY_MAX_MS), slot_ms + _DELAY_MAX_MS)
        return TimerUnit(
            before.last, MAGIC_DEFAULT | flags, written_ms, slot_ms - written_ms, physical_offset, size, topic_hash
        ).pack()

    def _keep_in_memory(self, timed: Timed, one: _Placed) -> None:
        slot_ms = one.slot_ms
        if slot_ms not in self.active.slots:
            self.active.activate(slot_ms, is_loaded=one.before == EMPTY)
            if one.before != EMPTY:
                self.chains.appendleft(Chain(slot_ms, one.before.last))
        if one.rolls or not timed.cancels:
            due_ms = slot_ms if one.rolls else timed.due_ms
            self.active.push(Due(due_ms, timed.physical_offset, timed.size, 0, slot_ms, one.rolls))

    def _append(self, slot_ms: int, physical_offset: int, size: int, topic_hash: int, flags: int, now_ms: int) -> None:
        position = self.log.begin_append()
        before = self.wheel.slot(slot_ms)
        self.log.append(self._unit(before, slot_ms, physical_offset, size, topic_hash, flags, now_ms))
        first = position if before.first == NO_POSITION else before.first
        self.wheel.put(slot_ms, Slot(first, position, before.number + 1))

    def skip(self, count: int = 1) -> None:
        """Pass over messages of the timer's queue that are unusable or missing."""
        self.queue_offset += count

    def _slot_for(self, timed: Timed, now_ms: int) -> tuple[int, bool]:
        """Return the slot for a message and whether it rolls there (RocketMQ: TimerMessageStore.doEnqueue).

        RocketMQ counts from now. Here the store time counts, so that a message, and what cancels it, get the same slot
        after a crash.
        """
        if timed.is_done:
            return self.read_ms - PRECISION_MS, False
        slot_ms, rolls = slot_of(timed.out_ms), False
        for begin in (slot_of(timed.stored_ms), slot_of(now_ms)):
            slot_ms, rolls = self._slot_from(timed, begin)
            if slot_ms - slot_of(now_ms) < self.wheel.span_ms // 2:
                break  # else the clock was set back beyond the reach of the wheel
        return max(slot_ms, self.read_ms), rolls

    def _slot_from(self, timed: Timed, begin_ms: int) -> tuple[int, bool]:
        window, out_ms = self._window_ms, slot_of(timed.out_ms)
        ahead = out_ms - begin_ms
        if ahead < window or timed.stays:
            return out_ms, False
        step = slot_of(window // 2) if ahead - window < window // 3 else slot_of(window)
        return begin_ms + step, True

    def is_far(self, out_ms: int, stored_ms: int) -> bool:
        """Whether a message may have been put into another slot than its own, to be rescheduled."""
        return slot_of(out_ms) - slot_of(stored_ms) >= self._window_ms

    @property
    def _window_ms(self) -> int:
        return min(self._roll_window_ms(), self.wheel.span_ms // 2)

    def slot_with(self, physical_offset: int) -> int | None:
        """Search the log for the slot in which a message waits; None if that is finished. Blocks;
        thread-safe."""
        found: int | None = None
        for _, units in self.log.pieces():
            ahead = timer_units_ahead(units, self.read_ms)
            for slot_ms, place in zip(ahead[::2], ahead[1::2], strict=True):
                if place == physical_offset:
                    found = slot_ms
        return found

    def first_waiting(self, default: int) -> int:
        """Return the log offset of the first message in an unfinished slot. Blocks; thread-safe."""
        first = default
        for _, units in self.log.pieces():
            first = min(first, min(timer_units_ahead(units, self.read_ms)[1::2], default=first))
        return first

    # -- slots whose time comes ----------------------------------------------------------------------------

    def activate_slots(self, now_ms: int) -> None:
        """Activate the slots that are due soon and queue their chains for loading."""
        until = min(slot_of(now_ms) + self._lead_ms(now_ms), self.active_until + _SEARCHED_AT_ONCE_MS)
        # The first unfinished slot may hold late messages, wherever the clock is now.
        until = max(until, self.read_ms + PRECISION_MS)
        if until <= self.active_until:
            return
        found = self.wheel.filled(self.active_until, until)
        if len(found) > _ACTIVATED_AT_ONCE:
            until = found[_ACTIVATED_AT_ONCE][0]
            del found[_ACTIVATED_AT_ONCE:]
        for slot_ms, slot in found:
            if slot_ms not in self.active.slots and slot_ms >= self.read_ms:
                self.active.activate(slot_ms, is_loaded=False)
                self.chains.append(Chain(slot_ms, slot.last))
        self.active_until = until

    def _lead_ms(self, now_ms: int) -> int:
        """How far ahead slots are activated, so that all messages until then are loaded in time."""
        lead = LEAD_MS
        messages = 0
        start = max(self.active_until, self.read_ms)
        for slot_ms, slot in self.wheel.filled(start, start + _LOOK_AHEAD_MS):
            messages += slot.number
            if slot_ms - now_ms <= LEAD_MS + messages // _LOADED_A_MS:
                lead = max(lead, slot_ms + PRECISION_MS - slot_of(now_ms))
        return slot_of(lead)

    def settled_until(self, now_ms: int) -> int:
        """Return a time, at most now, up to which every message that has a unit was delivered, if it was due.

        0 while slots up to now, or the first unfinished one, are to be loaded: these may hold messages that were due
        before their time, because they were stored late, or moved by the end of a run.
        """
        slots, last_ms = self.active.slots.items(), max(now_ms, self.read_ms)
        if self.active_until <= last_ms or any(slot_ms <= last_ms and not slot.is_loaded for slot_ms, slot in slots):
            return 0
        first_ms = self.active.first_ms
        return now_ms if first_ms is None else min(now_ms, first_ms - 1)

    def finish_slots(self, now_ms: int) -> list[str]:
        """Move `read_ms` past finished slots; return the topics of delete messages that cancelled
        nothing."""
        stop = min(slot_of(now_ms), self.active_until)
        if stop <= self.read_ms:
            return []
        self.read_ms, finished = self.active.finish_before(stop)
        return [topic for slot in finished for topic in slot.deletes.values() if topic is not None]

    # -- the end of a run ----------------------------------------------------------------------------------

    def take_active(self, now_ms: int) -> list[tuple[Due, KeysView[DeleteId]]]:
        """Finish the partly delivered slots and return their waiting messages, each with the delete ids of its slot.

        `move` puts them into the next slot. Does nothing while such a slot is still to be loaded; the next run then
        finds it partly delivered.
        """
        self.finish_slots(now_ms)
        slots = self.active.slots
        partly_delivered = [slot_ms for slot_ms, slot in slots.items() if slot.delivered_from is not None]
        if self._replay_from is not None and self.read_ms <= self._replay_until_ms:
            partly_delivered.append(self._replay_until_ms)
        stop = max(partly_delivered, default=self.read_ms - PRECISION_MS) + PRECISION_MS
        if stop > self.active_until or any(slot_ms < stop and not slot.is_loaded for slot_ms, slot in slots.items()):
            return []
        moving: list[tuple[Due, KeysView[DeleteId]]] = [
            (due, slots[due.place].deletes.keys()) for due in self.active.waiting() if due.place < stop
        ]
        self.active = ActiveSlots()
        if self.queue_offset >= self._replay_until_offset:
            self._replay_from = None
        self.read_ms = stop
        return moving

    def move(self, due: Due, topic_hash: int, now_ms: int) -> None:
        """Put a message that `take_active` returned into the first unfinished slot. May make a file.

        Raises:
            DiskFull, FlushFailed: the message stays out of the wheel.
        """
        if self.needs_files():
            self.make_files()
        self._append(self.read_ms, due.physical_offset, due.size, topic_hash, MAGIC_ROLL if due.rolls else 0, now_ms)

    def end_with(self, physical_offset: int, size: int, now_ms: int) -> None:
        """Make the last unit of the log that of the queue's last message with a unit. May make a file.

        Raises:
            DiskFull, FlushFailed: the last unit is unchanged.
        """
        last = self.log.last_unit()
        if last is not None and last.physical_offset != physical_offset:
            if self.needs_files():
                self.make_files()
            self._append(self.read_ms - PRECISION_MS, physical_offset, size, 0, 0, now_ms)

    # -- progress ------------------------------------------------------------------------------------------

    def outlives_recovery(self) -> bool:
        """Whether slots and queue have passed everything that earlier runs finished."""
        if self.read_ms <= self._replay_until_ms or self.queue_offset < self._replay_until_offset:
            return False
        self._replay_from = None
        return True

    def progress(self, log_end: int) -> TimerProgress:
        """Return what may be saved once the timer log, and the log up to `log_end`, have been flushed."""
        replay_from = self.active.first_delivery(log_end)
        if self._replay_from is not None:
            # Copies that an earlier run delivered from unfinished slots are further back.
            replay_from = min(replay_from, self._replay_from)
        return TimerProgress(self.read_ms, self.log.end, self.queue_offset, replay_from, self.log.digests[-FILES_MAX:])

    def flush(self) -> None:
        """Flush timer log and wheel. Blocks.

        Raises:
            FlushFailed: the sync failed.
        """
        self.log.flush()
        self.wheel.flush()

    def close(self) -> None:
        """Close the files without a flush."""
        self.log.close()
        self.wheel.close()


def _is_newer(finished: FinishedTimers | None, progress: TimerProgress) -> bool:
    return (
        finished is not None
        and finished.replay_from is not None
        and progress.replay_from is not None
        and finished.replay_from > progress.replay_from
    )
