"""Messages with a deliver time of their own: which wait, where, and which are due (RocketMQ: TimerMessageStore).

The queue of the topic `rmq_sys_wheel_timer` is the truth: the delayed records, in the order in which they came. Each
gets a unit in the timer log, chained into the slot of its second in the wheel. Shortly before that second its chain
is loaded into memory (`ActiveSlots`), where every message fires at its own millisecond. RocketMQ fires the whole slot
at its end; its files are the same.

Slots are done with one after the other: `read_ms` is the first that is not. A unit whose second is over already goes
into that one. After a crash everything is made again from the timer log, as far as it is known to be on the disk, and
from the queue; what had been delivered of the slots that were not done with is told by the copies in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, KeysView, Sequence
from pathlib import Path
from typing import NamedTuple

from reput_broker.delay.active_slots import ActiveSlots
from reput_broker.delay.delayed_record import DeleteId, Due
from reput_broker.delay.delivered_records import OffsetSet
from reput_broker.delay.timer_checkpoint import (
    FILES_MAX,
    TimerCheckDamaged,
    TimerCheckpoint,
    TimerProgress,
)
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
    """The slots of a wheel, and for whom the messages in them are."""

    def __init__(self, slots: int) -> None:
        self.slots = bytearray(slots * SLOT_BYTES)
        """As the file holds them."""
        self.waiting: dict[int, int] = {}
        """For the hash of each topic how many messages wait for it."""
        self.first_ms: int | None = None
        """The time of the first slot with a message that waits; None if none does."""
        self.consumed_ms: int | None = None
        """The time of the last slot that holds a message which was done with before its slot was; None if none does."""


def image_of(log: TimerLog, slots: int, read_ms: int, consumed: OffsetSet) -> WheelImage:
    """Return the wheel that a timer log makes, in memory that does not grow with the log. Blocks.

    Args:
        log: what to read.
        slots: of the wheel.
        read_ms: slots before this time are done with.
        consumed: log offsets of parked records that have been delivered, parked anew or cancelled. Their units stay in
            their chains and count for nothing.
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
"""A slot is loaded so long before its time, and longer the more messages it has."""
_LOADED_A_MS = 30
_LOOK_AHEAD_MS = 60_000
_ACTIVATED_AT_ONCE = 1000
_SEARCHED_AT_ONCE_MS = 65_536_000
_DELAY_MAX_MS = 1_000_000_000


class Chain(NamedTuple):
    """A slot to be loaded: its time, and its last unit when it was begun."""

    slot_ms: int
    last: int


class Timed(NamedTuple):
    """What the record of the timer's queue says to the wheel."""

    physical_offset: int
    size: int
    stored_ms: int
    """When it was put."""
    out_ms: int
    """The slot that it asks for (TIMER_OUT_MS)."""
    due_ms: int
    """When it is to be delivered."""
    topic_hash: int
    cancels: bool
    """Whether it is no message but cancels one."""
    stays: bool = False
    """Whether it goes into that slot and no other: the message that it cancels is there."""
    is_done: bool = False
    """Whether it needs no slot any more. It gets a unit in one that is done with all the same: RocketMQ takes the last
    unit of the log for the last message of the queue that it has looked at."""


class _Placed(NamedTuple):
    """A message that gets a unit: its slot, what that held, and what it holds then."""

    slot_ms: int
    rolls: bool
    before: Slot
    after: Slot
    unit: bytes


class TimerMessageStore:
    """The timer of one directory. One owner; `log.chain`, `make_files` and `flush` may run in worker threads.

    Args:
        data_dir: the store directory, which holds `timerwheel`, `timerlog/` and `config/timercheck`.
        log_file_size: bytes of one file of the timer log.
        roll_window_ms: messages further ahead are delayed anew on their way (RocketMQ: timerRollWindowSlot).
        slots: of the wheel.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        log_file_size: int,
        roll_window_ms: Callable[[], int],
        slots: int = SLOTS,
    ) -> None:
        self.log = TimerLog(data_dir / "timerlog", log_file_size)
        self.wheel = TimerWheel(data_dir / "timerwheel", slots)
        self.checkpoint = TimerCheckpoint(data_dir / "config" / "timercheck")
        self.active = ActiveSlots()
        self.read_ms = 0
        """Every slot before this one is done with."""
        self.queue_offset = 0
        """The next message of the timer's queue that needs a unit."""
        self.chains: deque[Chain] = deque()
        """Begun slots that are to be loaded, in order."""
        self._roll_window_ms = roll_window_ms
        self._active_until = 0
        self._replay_from: int | None = None
        self._replay_until_ms = -1
        self._replay_until_offset = 0
        self._consumed = OffsetSet()
        self.wheel_refusal: str | None = None
        """Why the start could not make the wheel, until it is made."""
        self.is_rebuilt = False
        """Whether the start has found messages, but not the files that say how far they have come."""

    # -- opening -------------------------------------------------------------------------------------------

    def open(
        self, first_offset: int, end_offset: int, now_ms: int, queue_offset_at: Callable[[int], int | None]
    ) -> int | None:
        """Read the files and cut off what is not certain. Blocks; `recover` must follow.

        Args:
            first_offset, end_offset: bounds of the timer's queue.
            now_ms: the time.
            queue_offset_at: for a log offset, the queue offset of the record of the timer's queue there, if one is.

        Returns:
            The log offset behind which copies of what is not done with may lie; None if none can.

        Raises:
            ForeignFile: a file is not what it must be.
            DiskFull, FlushFailed: what is left of an earlier run could not be removed.
        """
        self._replay_until_offset = end_offset
        self.log.load()
        try:
            progress = self.checkpoint.load()
        except TimerCheckDamaged:
            return self._start_over(first_offset, end_offset, now_ms)
        if progress is None or not self.log.holds(progress.log_position, progress.digests):
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
        """Read the whole queue again, and the whole log for what has been delivered of it.

        There was no timer here, or its files are lost or damaged.
        """
        self.log.cut(0)
        self.read_ms = slot_of(now_ms)
        self.queue_offset = first_offset
        if end_offset > first_offset:
            self.is_rebuilt = True
            self._replay_from = 0
        return self._replay_from

    def _continue_after_rocketmq(
        self,
        progress: TimerProgress,
        first_offset: int,
        end_offset: int,
        queue_offset_at: Callable[[int], int | None],
    ) -> None:
        """Begin where RocketMQ left off: it trusts the last unit that it finds more than its checkpoint."""
        self.read_ms = progress.read_ms
        last = self.log.last_unit()
        logged = None if last is None else queue_offset_at(last.physical_offset)
        offset = progress.queue_offset if logged is None else max(progress.queue_offset, logged + 1)
        self.queue_offset = min(max(offset, first_offset), end_offset)

    def recover(self, now_ms: int, consumed: OffsetSet) -> dict[int, int]:
        """Make the wheel from the timer log. Blocks.

        Args:
            now_ms: the time.
            consumed: log offsets of parked records that have been delivered, parked anew or cancelled.

        Returns:
            For the hash of each topic how many messages wait for it.
        """
        self._consumed = consumed
        image = image_of(self.log, self.wheel.slots, self.read_ms, consumed)
        begin = slot_of(now_ms) if image.first_ms is None else min(image.first_ms, slot_of(now_ms))
        self.read_ms = self._active_until = max(self.read_ms, begin)
        if image.consumed_ms is not None:
            self._replay_until_ms = image.consumed_ms
        if self.log.end:
            try:
                self._make_wheel(image)
            except (ReputError, OSError, MemoryError) as error:
                self.wheel_refusal = str(error) or "there is no memory for it"
        return image.waiting

    def _make_wheel(self, image: WheelImage | None = None) -> None:
        """Make the wheel with the chains of the timer log in it, as a whole or not at all. Blocks."""
        if image is None and self.log.end:
            image = image_of(self.log, self.wheel.slots, self.read_ms, self._consumed)
        self.wheel.create()
        if image is not None:
            self.wheel.fill(image.slots)
        self.wheel_refusal = None

    @property
    def lacks_wheel(self) -> bool:
        """Whether the timer log has units and there was no room, or no memory, for the wheel.

        Nothing may be done with slots until `make_files` has made it; messages may come meanwhile.
        """
        return self.wheel_refusal is not None

    @property
    def is_used(self) -> bool:
        """Whether a message with a time of its own has ever been parked here."""
        return self.wheel.exists or self.queue_offset > 0

    # -- putting messages into slots -----------------------------------------------------------------------

    def needs_files(self) -> bool:
        """Whether the next `add` needs a file that is not there yet: `make_files` first."""
        return self.lacks_wheel or not self.wheel.exists or self.log.needs_file()

    def make_files(self) -> None:
        """Make what the next `add` needs. Blocks.

        Raises:
            DiskFull, FlushFailed, OSError: it could not be made; it may be tried again.
        """
        if self.lacks_wheel or not self.wheel.exists:
            self._make_wheel()
        if self.log.needs_file() or self.log.should_prepare_file():
            self.log.make_file()

    def add(self, entries: Sequence[Timed], now_ms: int) -> list[int]:
        """Give the next messages of the timer's queue their units, and let those wait whose slot is begun.

        Returns:
            Their slots. Those of the first ones only, if a file of the log ends in between, or if the slot of the next
            is held by a message that is another turn of the wheel away.

        Raises:
            DiskFull: nothing has changed; it may be tried again.
        """
        position = self.log.begin_append()
        placed = self._place(entries[: self.log.room], position, now_ms)
        self.log.append(b"".join([one.unit for one in placed]))
        for one in placed:
            self.wheel.put(one.slot_ms, one.after)
        for timed, one in zip(entries, placed, strict=False):
            if not timed.is_done and (
                one.slot_ms < self._active_until
                or one.slot_ms in self.active.slots
                or timed.out_ms < self.read_ms
            ):
                self._let_wait(timed, one)
        self.queue_offset += len(placed)
        return [one.slot_ms for one in placed]

    def _place(self, entries: Sequence[Timed], position: int, now_ms: int) -> list[_Placed]:
        """Find the slots of messages, and make the units that chain them there."""
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
            unit = self._unit(
                before, slot_ms, timed.physical_offset, timed.size, timed.topic_hash, flags, now_ms
            )
            first = position if before.first == NO_POSITION else before.first
            after = Slot(first, position, before.number + (-1 if timed.cancels else 1))
            changed[slot_ms] = after
            placed.append(_Placed(slot_ms, rolls, before, after, unit))
            position += UNIT_BYTES
        return placed

    def _unit(
        self,
        before: Slot,
        slot_ms: int,
        physical_offset: int,
        size: int,
        topic_hash: int,
        flags: int,
        now_ms: int,
    ) -> bytes:
        written_ms = min(max(slot_of(now_ms), slot_ms - _DELAY_MAX_MS), slot_ms + _DELAY_MAX_MS)
        return TimerUnit(
            before.last,
            MAGIC_DEFAULT | flags,
            written_ms,
            slot_ms - written_ms,
            physical_offset,
            size,
            topic_hash,
        ).pack()

    def _let_wait(self, timed: Timed, one: _Placed) -> None:
        """Let a message wait in memory, whose slot is begun."""
        slot_ms = one.slot_ms
        if slot_ms not in self.active.slots:
            self.active.activate(slot_ms, is_loaded=one.before == EMPTY)
            if one.before != EMPTY:
                self.chains.appendleft(Chain(slot_ms, one.before.last))
        if one.rolls or not timed.cancels:
            due_ms = slot_ms if one.rolls else timed.due_ms
            self.active.push(Due(due_ms, timed.physical_offset, timed.size, 0, slot_ms, one.rolls))

    def _append(
        self, slot_ms: int, physical_offset: int, size: int, topic_hash: int, flags: int, now_ms: int
    ) -> None:
        """Append one unit to the chain of a slot."""
        position = self.log.begin_append()
        before = self.wheel.slot(slot_ms)
        self.log.append(self._unit(before, slot_ms, physical_offset, size, topic_hash, flags, now_ms))
        first = position if before.first == NO_POSITION else before.first
        self.wheel.put(slot_ms, Slot(first, position, before.number + 1))

    def skip(self, count: int = 1) -> None:
        """Pass over messages of the timer's queue that cannot be used, or are not there any more."""
        self.queue_offset += count

    def _slot_for(self, timed: Timed, now_ms: int) -> tuple[int, bool]:
        """Return the slot for a message and whether it rolls there (RocketMQ: TimerMessageStore.doEnqueue).

        RocketMQ counts from now. Here it is from when the message was put, so that a message that gets its unit once
        more after a crash gets it where it was, and what cancels it there.
        """
        if timed.is_done:
            return self.read_ms - PRECISION_MS, False
        window = self._window_ms
        slot_ms, rolls = slot_of(timed.out_ms), False
        for begin in (slot_of(timed.stored_ms), slot_of(now_ms)):
            ahead = slot_of(timed.out_ms) - begin
            if ahead < window or timed.stays:
                slot_ms, rolls = slot_of(timed.out_ms), False
            else:
                step = slot_of(window // 2) if ahead - window < window // 3 else slot_of(window)
                slot_ms, rolls = begin + step, True
            if slot_ms - slot_of(now_ms) < self.wheel.span_ms // 2:
                break  # else the clock was set back so far that the wheel does not reach that slot
        return max(slot_ms, self.read_ms), rolls

    def is_far(self, out_ms: int, stored_ms: int) -> bool:
        """Whether a message may have been put into a slot that is not its own, on the way there."""
        return slot_of(out_ms) - slot_of(stored_ms) >= self._window_ms

    @property
    def _window_ms(self) -> int:
        return min(self._roll_window_ms(), self.wheel.span_ms // 2)

    def slot_with(self, physical_offset: int) -> int | None:
        """Look for the slot that a message waits in; None if that is done with. Blocks; in whatever thread."""
        found: int | None = None
        for _, units in self.log.pieces():
            ahead = timer_units_ahead(units, self.read_ms)
            for slot_ms, place in zip(ahead[::2], ahead[1::2], strict=True):
                if place == physical_offset:
                    found = slot_ms
        return found

    def first_waiting(self, default: int) -> int:
        """Return the log offset of the first message in a slot that is not done with. Blocks; in whatever thread."""
        first = default
        for _, units in self.log.pieces():
            first = min(first, min(timer_units_ahead(units, self.read_ms)[1::2], default=first))
        return first

    # -- slots whose time comes ----------------------------------------------------------------------------

    def activate_slots(self, now_ms: int) -> None:
        """Begin the slots whose time is near: their chains are then to be loaded."""
        until = min(slot_of(now_ms) + self._lead_ms(now_ms), self._active_until + _SEARCHED_AT_ONCE_MS)
        # The first slot that is not done with may hold what was late already, whatever the clock says since then.
        until = max(until, self.read_ms + PRECISION_MS)
        if until <= self._active_until:
            return
        found = self.wheel.filled(self._active_until, until)
        if len(found) > _ACTIVATED_AT_ONCE:
            until = found[_ACTIVATED_AT_ONCE][0]
            del found[_ACTIVATED_AT_ONCE:]
        for slot_ms, slot in found:
            if slot_ms not in self.active.slots and slot_ms >= self.read_ms:
                self.active.activate(slot_ms, is_loaded=False)
                self.chains.append(Chain(slot_ms, slot.last))
        self._active_until = until

    @property
    def active_until(self) -> int:
        """Every slot before this time that had messages has been begun."""
        return self._active_until

    def _lead_ms(self, now_ms: int) -> int:
        """How far ahead slots are begun: so far that what lies between now and there is loaded in time."""
        lead = LEAD_MS
        messages = 0
        start = max(self._active_until, self.read_ms)
        for slot_ms, slot in self.wheel.filled(start, start + _LOOK_AHEAD_MS):
            messages += slot.number
            if slot_ms - now_ms <= LEAD_MS + messages // _LOADED_A_MS:
                lead = max(lead, slot_ms + PRECISION_MS - slot_of(now_ms))
        return slot_of(lead)

    def finish_slots(self, now_ms: int) -> list[str]:
        """Move `read_ms` over the slots that are done with; return the topics of delete messages that met nothing."""
        stop = min(slot_of(now_ms), self._active_until)
        if stop <= self.read_ms:
            return []
        self.read_ms, finished = self.active.finish_before(stop)
        return [topic for slot in finished for topic in slot.deletes.values() if topic is not None]

    # -- the end of a run ----------------------------------------------------------------------------------

    def take_active(self, now_ms: int) -> list[tuple[Due, KeysView[DeleteId]]]:
        """End with the slots of which a message has been delivered, and return what still waits in them.

        Each with what delete messages of its slot say; `move` puts it into the next one. Nothing happens while the
        chain of such a slot is still to be loaded: then who comes next finds it half delivered.
        """
        self.finish_slots(now_ms)
        slots = self.active.slots
        begun = [slot_ms for slot_ms, slot in slots.items() if slot.began_at is not None]
        if self._replay_from is not None and self.read_ms <= self._replay_until_ms:
            begun.append(self._replay_until_ms)
        stop = max(begun, default=self.read_ms - PRECISION_MS) + PRECISION_MS
        if stop > self._active_until or any(
            slot_ms < stop and not slot.is_loaded for slot_ms, slot in slots.items()
        ):
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
        """Put a message that `take_active` returned into the first slot that is not done with. May make a file.

        Raises:
            DiskFull, FlushFailed: it stays out of the wheel.
        """
        if self.needs_files():
            self.make_files()
        self._append(
            self.read_ms, due.physical_offset, due.size, topic_hash, MAGIC_ROLL if due.rolls else 0, now_ms
        )

    def end_with(self, physical_offset: int, size: int, now_ms: int) -> None:
        """Let the last unit of the log be that of the last message of the queue that has one. May make a file.

        Raises:
            DiskFull, FlushFailed: it is not.
        """
        last = self.log.last_unit()
        if last is not None and last.physical_offset != physical_offset:
            if self.needs_files():
                self.make_files()
            self._append(self.read_ms - PRECISION_MS, physical_offset, size, 0, 0, now_ms)

    # -- progress ------------------------------------------------------------------------------------------

    def outlives_recovery(self) -> bool:
        """Whether nothing matters any more of what earlier runs were done with: slots and queue are beyond it."""
        if self.read_ms <= self._replay_until_ms or self.queue_offset < self._replay_until_offset:
            return False
        self._replay_from = None
        return True

    def progress(self, log_end: int) -> TimerProgress:
        """Return what may be saved once everything is on the disk: the log up to `log_end`, the timer log as it is."""
        replay_from = self.active.first_delivery(log_end)
        if self._replay_from is not None:
            # What an earlier run delivered of what is still not done with lies further back.
            replay_from = min(replay_from, self._replay_from)
        return TimerProgress(
            self.read_ms, self.log.end, self.queue_offset, replay_from, self.log.digests[-FILES_MAX:]
        )

    def flush(self) -> None:
        """Bring timer log and wheel to the disk. Blocks.

        Raises:
            FlushFailed: the system could not.
        """
        self.log.flush()
        self.wheel.flush()

    def close(self) -> None:
        """Close the files. Flushes nothing."""
        self.log.close()
        self.wheel.close()
