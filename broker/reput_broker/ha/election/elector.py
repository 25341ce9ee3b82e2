"""The elector of one member: campaigns for being master, keeps the lease, and says what the broker is.

A member campaigns only if the record has no leader and the recorded in-sync set has the member, so the next master has
every confirmed message. The first master of a group is the member that the configuration names. A tenure as master ends
when the lease does; see `fence`. All waits and comparisons use clocks that never jump.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog
import trio

from reput_broker.ha.election.engine import (
    REQUESTS_PER_LEASE,
    Engine,
    EngineUnavailable,
    GroupRecord,
    Leader,
    LeaseLost,
)
from reput_broker.ha.election.in_sync_set import InSyncSet
from reput_broker.ha.election.member_file import MemberFile
from reput_broker.ha.roles import MASTER_ID, Master, Role, Tenure
from reput_broker.put.fence import Fence, boot_time
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_MARGIN = 0.1
"""The part of the lease by which the fence is earlier: clocks of two machines differ in speed, a little."""
_READS_PER_LEASE = 3
"""The record is read so often even if the engine reports no change, because a watch may end without notice."""
_PAUSE_S = 0.2
_HAND_OVER_S = 3.0
"""How long puts are refused while the next master gets the rest of the log."""
_OTHERS_S = 0.3
_LOOK_S = 0.005
_SET_CHECKS_PER_TIMEOUT = 100


class HandOverRefused(ReputError):
    """A hand-over was not made, and nothing has changed.

    Attributes:
        master: the address of the master if that is another broker, else empty: ask there.
    """

    def __init__(self, reason: str, master: str = "") -> None:
        super().__init__(reason)
        self.master = master


@dataclass(frozen=True, slots=True)
class HandOver:
    """A hand-over that was made."""

    member: int
    """The next master."""
    end: int
    """The end of this broker's log."""
    kept: int
    """Up to where the next master has it; less than `end` only if the hand-over was forced."""


@dataclass(slots=True)
class _Leading:
    """A tenure as master."""

    record: GroupRecord
    fence: Fence
    is_planned: bool
    """Whether the master before has handed over, so that all of the in-sync set have all of the log."""
    in_sync: InSyncSet | None = None
    """Once the log is open."""
    on_change: Callable[[], None] = lambda: None


class Elector:
    """Campaigns for one member of a group, as long as `run` runs. A `TenureSource`.

    Args:
        engine: elects. `close` closes it.
        me: this member, as the others reach it.
        role: of a master.
        file: the identity of this member's directory.
        lease_s: the length of the lease that the engine gives.
        first_master: the member that becomes master while the group has no state.
        log_epoch: returns the last epoch in this member's log.
        in_sync_timeout_s, gap_max: see `InSyncSet`.
        clock: seconds of a clock that never jumps.
    """

    def __init__(
        self,
        engine: Engine,
        me: Leader,
        role: Role,
        file: MemberFile,
        *,
        lease_s: float,
        first_master: int,
        log_epoch: Callable[[], int],
        in_sync_timeout_s: float,
        gap_max: int,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._engine = engine
        self._me = me
        self._role = role
        self._file = file
        self._lease_s = lease_s
        self._first_master = first_master
        self._log_epoch = log_epoch
        self._in_sync_timeout_s, self._gap_max = in_sync_timeout_s, gap_max
        self._clock = clock
        self._seen = GroupRecord()
        self._leading: _Leading | None = None
        self._writing = trio.Lock()
        self._vacant_since: tuple[int, float] | None = None
        self._current = self._as_slave(None)
        self._change = trio.Event()
        self._reason = "the engine has not answered yet"
        self._unfit: str | None = None
        self._waiting = trio.CancelScope()

    # What the broker is

    @property
    def current(self) -> Tenure:
        """The tenure now."""
        return self._current

    async def changed(self, tenure: Tenure) -> None:
        """Return once `current` differs from `tenure`."""
        while self._current == tenure:
            await self._change.wait()

    @property
    def fence(self) -> Fence:
        """The fence of the tenure as master; one that refuses everything without such a tenure."""
        if self._leading is not None:
            return self._leading.fence
        fence = Fence(self._clock)
        fence.end(self._reason)
        return fence

    @property
    def reason(self) -> str:
        """Why this member is not the master; empty if it is."""
        return "" if self._leading is not None else self._reason

    def now(self) -> float:
        """Return the time by the clock of fence and in-sync set, in seconds."""
        return self._clock()

    def on_set_change(self, call: Callable[[], None]) -> None:
        """Call this after each change of the in-sync set in this tenure, which may move the confirm offset."""
        if self._leading is not None:
            self._leading.on_change = call

    def status(self) -> dict[str, Any]:
        """Return the facts for the status page."""
        leading, leader = self._leading, self._seen.leader
        in_sync = None if leading is None else leading.in_sync
        record = self._seen if leading is None else leading.record
        return {
            "engine": self._engine.name,
            "member": self._me.member,
            "epoch": record.epoch,
            "in_sync": sorted(record.in_sync),
            "master": self._me.address if leading else None if leader is None else leader.address,
            "lease_left_s": None if leading is None else round(leading.fence.left_s, 3),
            "confirm_offset": None if in_sync is None else in_sync.confirm,
            "reason": self.reason,
        }

    # The engine's record

    async def run(self) -> None:
        """Campaign, follow, keep the lease, and record changes of the in-sync set, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_lease)
            nursery.start_soon(self._record_in_sync)
            await self._follow_record()

    async def _follow_record(self) -> None:
        while True:
            try:
                record = await self._engine.read()
                await self._act_on(record)
                wait_s = self._wait_s(record)
                with trio.move_on_after(wait_s) as self._waiting:
                    await self._engine.changed(record)
                    await trio.sleep(_LOOK_S)  # an engine that reports a change at once, again and again
            except EngineUnavailable as error:
                self._note_unavailable(error)
                await trio.sleep(_PAUSE_S)

    def _wait_s(self, record: GroupRecord) -> float:
        """Return how long to wait for a change."""
        if self._vacant_since is None or record.successor is None:
            return self._lease_s / _READS_PER_LEASE
        return max(
            _LOOK_S,
            min(self._lease_s / _READS_PER_LEASE, self._vacant_since[1] + self._lease_s - self._clock()),
        )

    async def _act_on(self, record: GroupRecord) -> None:
        leading = self._leading
        if leading is not None:
            if record.leader == self._me and record.epoch == leading.record.epoch:
                return
            if record.epoch < leading.record.epoch and record.leader is not None:
                return  # read before this member became master
            self._end(
                leading,
                f"{self._engine.name} has removed this member as master of epoch {leading.record.epoch}",
            )
        self._seen = record
        if record.leader is not None and record.leader.member != self._me.member:
            self._follow(record, record.leader)
            return
        self._set(self._as_slave(None))
        reason = self._why_not(record)
        if reason is None:
            await self._campaign(record, record.in_sync | {self._me.member})
        elif reason != self._reason:
            self._reason = reason
            log.warning("not_campaigning", reason=reason, epoch=record.epoch, in_sync=sorted(record.in_sync))

    def _follow(self, record: GroupRecord, leader: Leader) -> None:
        self._vacant_since = None
        me = self._me.member
        # A new disk under the number of a member in sync gets its identity only when it is no longer counted as such.
        if self._file.epoch is not None or me not in record.in_sync:
            self._note_epoch(record.epoch)
        tenure = self._as_slave(Master(leader.address, leader.ha_address))
        if tenure != self._current:
            log.info("master_elected", member=leader.member, address=leader.address, epoch=record.epoch)
        self._reason = f"member {leader.member} at {leader.address} is the master of epoch {record.epoch}"
        self._set(tenure)

    def _why_not(self, record: GroupRecord) -> str | None:
        """Return why this member may not campaign now, or None."""
        me, seen = self._me.member, self._file.epoch
        if record.leader is not None and record.leader != self._me:
            return (
                f"another broker, at {record.leader.address}, is the master under this broker's number {me}; "
                "give each member of the group a broker_id of its own"
            )
        if self._unfit is not None:
            return self._unfit
        if seen is not None and record.epoch < seen:
            return (
                f"{self._engine.name} has epoch {record.epoch} of this group, but this member saw epoch {seen}: the "
                "engine has lost its state; decide which member has the longest log, and let it run "
                "`reput broker promote NUMBER --force`"
            )
        if record.epoch == 0:
            if me == self._first_master:
                return None
            return (
                f"{self._engine.name} knows nothing of this group yet; member {self._first_master} "
                "(election.first_master) creates it"
            )
        if me not in record.in_sync:
            return f"this member is not in sync; only members {sorted(record.in_sync)} have every confirmed message"
        if seen is None:
            return (
                f"member {me} is recorded as in sync, but this data directory has never been that member's (no "
                "config/election.json): a new disk has none of the messages"
            )
        return self._why_wait(record)

    def _why_wait(self, record: GroupRecord) -> str | None:
        if self._vacant_since is None or self._vacant_since[0] != record.epoch:
            self._vacant_since = (record.epoch, self._clock())
        if (
            record.successor in (None, self._me.member)
            or self._clock() >= self._vacant_since[1] + self._lease_s
        ):
            return None
        return f"the last master has handed over to member {record.successor}"

    async def _campaign(self, record: GroupRecord, in_sync: frozenset[int]) -> bool:
        if not self._note_epoch(record.epoch):
            return False
        epoch = max(record.epoch, self._file.epoch or 0, self._log_epoch()) + 1
        sent_at = self._clock()
        taken = await self._engine.take(record, GroupRecord(epoch, in_sync, leader=self._me))
        if taken is None:
            return False
        self._note_epoch(epoch)
        self._vacant_since = None
        fence = Fence(self._clock, self._valid_until(sent_at))
        self._leading = _Leading(taken, fence, is_planned=record.successor == self._me.member)
        self._seen = taken
        log.info(
            "elected", epoch=epoch, member=self._me.member, in_sync=sorted(in_sync), engine=self._engine.name
        )
        self._set(Tenure(self._role, MASTER_ID, epoch))
        return True

    def _note_epoch(self, epoch: int) -> bool:
        try:
            self._file.note(epoch)
        except (OSError, ReputError) as error:
            log.error("election_file_not_written", detail=str(error), hint="check the data directory")
            return False
        return True

    def _valid_until(self, sent_at: float) -> float:
        return sent_at + self._lease_s * (1 - _MARGIN)

    async def _keep_lease(self) -> None:
        """Extend the lease; end the tenure at the fence."""
        while True:
            leading = self._leading
            if leading is None:
                await self.changed(self._current)
                continue
            reason = leading.fence.expiry()
            if reason is None:
                reason = await self._extend(leading)
            if reason is not None and leading is self._leading:
                self._end(leading, reason)

    async def _extend(self, leading: _Leading) -> str | None:
        """Extend the lease once and wait until the next time; return why the lease has ended, or None."""
        sent_at, pause_s = self._clock(), self._lease_s / REQUESTS_PER_LEASE
        try:
            with trio.move_on_after(max(0.0, leading.fence.left_s)):
                await self._engine.keep_alive()
                leading.fence.extend(self._valid_until(sent_at))
        except LeaseLost as error:
            return error.reason
        except EngineUnavailable as error:
            self._note_unavailable(error)
            pause_s = _PAUSE_S
        await trio.sleep(max(0.0, min(pause_s, leading.fence.left_s)))
        return None

    def _end(self, leading: _Leading, reason: str, *, is_wanted: bool = False) -> None:
        """End the tenure as master: the broker is a slave without a master until the record names one."""
        leading.fence.end(reason)
        self._leading = None
        self._seen = replace(leading.record, leader=None)
        self._reason = reason
        if not is_wanted:
            log.warning("lease_ended", epoch=leading.record.epoch, reason=reason)
        self._set(self._as_slave(None))

    # The in-sync set

    async def lead(self, start: int) -> InSyncSet:
        """Begin to lead with an open log, before anything is served; return the in-sync set to report to.

        After a failover the set is this member alone, so that all of its log is confirmed; the others join as soon as
        they have it. After a hand-over all of the set have the whole log.

        Args:
            start: the log's end.

        Raises:
            LeaseLost: the tenure has ended.
        """
        me = self._me.member
        leading = self._leading
        while leading is not None and leading is self._leading and leading.fence.expiry() is None:
            if leading.is_planned or leading.record.in_sync == {me}:
                leading.in_sync = InSyncSet(
                    me,
                    leading.record.in_sync,
                    start=start,
                    timeout_s=self._in_sync_timeout_s,
                    gap_max=self._gap_max,
                    now=self._clock(),
                )
                return leading.in_sync
            if not await self._record(leading, replace(leading.record, in_sync=frozenset({me}))):
                await trio.sleep(_PAUSE_S)
        raise LeaseLost(self._reason)

    async def _record_in_sync(self) -> None:
        """Record the changes that the in-sync set wants."""
        while True:
            await trio.sleep(self._in_sync_timeout_s / _SET_CHECKS_PER_TIMEOUT)
            leading = self._leading
            in_sync = None if leading is None else leading.in_sync
            if leading is None or in_sync is None or leading.fence.refusal() is not None:
                continue
            change = in_sync.next_change(self._clock())
            if change is not None and await self._record(leading, replace(leading.record, in_sync=change)):
                in_sync.settled(change)
                leading.on_change()

    async def _record(self, leading: _Leading, new: GroupRecord) -> bool:
        """Write the record as its leader. False if that is not known to have succeeded; then the tenure may be over."""
        async with self._writing:
            if leading is not self._leading:
                return False
            try:
                kept = await self._engine.write(leading.record, new)
            except LeaseLost as error:
                kept, reason = None, error.reason
            except EngineUnavailable as error:
                self._note_unavailable(error)
                return False
            else:
                reason = f"{self._engine.name} has another record of this group than this master"
        if kept is None:
            if leading is self._leading:
                self._end(leading, reason)
            return False
        log.info(
            "in_sync_set_changed",
            epoch=new.epoch,
            in_sync=sorted(new.in_sync),
            before=sorted(leading.record.in_sync),
        )
        leading.record = kept
        return True

    # Hand-over

    async def hand_over(self, member: int, log_end: Callable[[], int], *, force: bool = False) -> HandOver:
        """Make another member the master, without losing a message, and become a slave.

        Accepts no more messages, waits until the member has the whole log, and gives the lease back.

        Args:
            member: the next master.
            log_end: returns the end of this broker's log.
            force: even if the member is not in sync; what it does not have is lost then. Without a master, this member
                itself can be made the master by force.

        Raises:
            HandOverRefused: nothing has changed.
            EngineUnavailable: the engine did not answer; whether the member takes over is not known.
        """
        leading = self._leading
        in_sync = None if leading is None else leading.in_sync
        if leading is None:
            return await self._take_over(member, log_end(), force=force)
        if in_sync is None:
            raise HandOverRefused("this broker is just becoming the master; try again in a moment")
        if member == self._me.member:
            return HandOver(member, log_end(), log_end())  # it is the master already
        async with self._writing:
            self._check_successor(in_sync, member, log_end(), force=force)
            leading.fence.close(f"handing over to member {member}")
            try:
                if member in in_sync.recorded:
                    await self._wait_for(in_sync, member, log_end)
                end = log_end()
                kept = min(end, in_sync.offset_of(member) or 0)
                others = in_sync.caught_up(end) if kept == end else frozenset()
                self._end(leading, f"handed over to member {member}", is_wanted=True)
                new = replace(leading.record, in_sync=others | {member}, successor=member, leader=None)
                if await self._engine.write(leading.record, new) is None:
                    raise HandOverRefused(
                        f"{self._engine.name} has changed the group's record meanwhile; see the log"
                    )
            finally:
                leading.fence.reopen()
        log.info("handed_over", member=member, end=end, lost_b=end - kept, forced=force)
        return HandOver(member, end, kept)

    def _check_successor(self, in_sync: InSyncSet, member: int, end: int, *, force: bool) -> None:
        offset = in_sync.offset_of(member)
        if in_sync.proposed is not None:
            raise HandOverRefused("a change of the in-sync set is under way; try again in a moment")
        if offset is None or not in_sync.is_connected(member):
            raise HandOverRefused(
                f"member {member} does not copy from this master now; in sync are {sorted(in_sync.recorded)}"
            )
        if member not in in_sync.recorded and not force:
            raise HandOverRefused(
                f"member {member} is not in sync: it has the log up to {offset}, the master up to {end}. "
                f"Forced, {end - offset} bytes from offset {offset} on are lost; in sync are {sorted(in_sync.recorded)}"
            )

    async def _wait_for(self, in_sync: InSyncSet, member: int, log_end: Callable[[], int]) -> None:
        with trio.move_on_after(_HAND_OVER_S) as waiting:
            while (in_sync.offset_of(member) or 0) < log_end():  # noqa: ASYNC110 - rare; an event would cost every report
                await trio.sleep(_LOOK_S)
        if waiting.cancelled_caught:
            raise HandOverRefused(
                f"member {member} did not get the rest of the log within {_HAND_OVER_S} s; it has it up to "
                f"{in_sync.offset_of(member)}, the master up to {log_end()}"
            )
        # Puts that wait for further members are answered meanwhile, as far as possible.
        with trio.move_on_after(_OTHERS_S):
            while in_sync.confirm < log_end():  # noqa: ASYNC110 - as above
                await trio.sleep(_LOOK_S)

    async def _take_over(self, member: int, end: int, *, force: bool) -> HandOver:
        """Make this member the master of a group that has none, although it is not in sync."""
        record = await self._engine.read()
        if record.leader is not None and record.leader != self._me:
            raise HandOverRefused(f"this broker is not the master; {self._reason}", record.leader.address)
        if member != self._me.member:
            raise HandOverRefused(
                f"the group has no master now; only member {member} itself can be made the master, so send this to it"
            )
        if not force:
            raise HandOverRefused(
                f"the group has no master, and this member does not campaign: {self._reason}. Forced, it becomes the "
                f"master with its log up to {end}, and what only members {sorted(record.in_sync)} have beyond is lost"
            )
        if not await self._campaign(record, frozenset({member})):
            raise HandOverRefused("another member has become the master in this moment")
        log.warning("promoted_by_force", member=member, end=end, in_sync_before=sorted(record.in_sync))
        return HandOver(member, end, end)

    # Stopping and trouble

    async def resign(self) -> None:
        """Give the lease back, with the log closed; any member of the in-sync set may take over at once."""
        leading = self._leading
        if leading is None:
            return
        self._end(leading, "the broker stops", is_wanted=True)
        with suppress(EngineUnavailable, LeaseLost):
            await self._engine.write(leading.record, replace(leading.record, leader=None))

    async def close(self) -> None:
        """Close the connections to the engine."""
        await self._engine.close()

    async def leave(self, log_end: Callable[[], int]) -> None:
        """Hand over, because the broker stops, to the member in sync that has the most of the log, if there is one.

        Args:
            log_end: see `hand_over`.
        """
        in_sync = None if self._leading is None else self._leading.in_sync
        if in_sync is None:
            return
        others = [m for m in in_sync.recorded if m != self._me.member and in_sync.is_connected(m)]
        if others:
            with suppress(HandOverRefused, EngineUnavailable):
                await self.hand_over(max(others, key=lambda m: in_sync.offset_of(m) or 0), log_end)

    async def set_unfit(self, reason: str | None) -> None:
        """Do not campaign for the given reason, such as a broken disk; None: campaign again.

        A master gives its lease back if another member is in sync.
        """
        if reason == self._unfit:
            return
        self._unfit = reason
        self._waiting.cancel()  # campaign at once
        leading = self._leading
        if reason is None or leading is None or leading.in_sync is None:
            return
        async with self._writing:
            others = leading.in_sync.recorded - {self._me.member}
            if leading is not self._leading or not others or leading.in_sync.proposed is not None:
                return
            self._end(leading, reason)
            with suppress(EngineUnavailable, LeaseLost):
                await self._engine.write(leading.record, replace(leading.record, in_sync=others, leader=None))

    def _as_slave(self, master: Master | None) -> Tenure:
        # A slave's number is announced; 0 stands for the master.
        return Tenure(Role.SLAVE, self._me.member + 1, master=master)

    def _set(self, tenure: Tenure) -> None:
        if tenure != self._current:
            self._current = tenure
            self._change.set()
            self._change = trio.Event()

    def _note_unavailable(self, error: EngineUnavailable) -> None:
        log.warning(
            "election_engine_unavailable",
            engine=self._engine.name,
            reason=error.reason,
            hint="a master accepts messages until its lease ends; no other member can take over meanwhile",
        )
        if self._leading is None and self._seen.leader is None:
            self._reason = f"{self._engine.name} does not answer: {error.reason}"
