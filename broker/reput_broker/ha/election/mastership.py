"""The time of an elected master: keep the lease, record the in-sync set, hand over.

It ends when its lease does, when the engine has another record than this master, or by a hand-over. `fence`
then keeps this broker from acknowledging anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog
import trio

from reput_broker.ha.election.engine import REQUESTS_PER_LEASE, Engine, EngineUnavailable, GroupRecord, LeaseLost, Terms
from reput_broker.ha.election.in_sync_set import InSyncSet
from reput_broker.put.put_lock import Fence
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

PAUSE_S = 0.2
_MARGIN = 0.1
"""The part of the lease by which the fence is earlier: the clocks of two machines run at slightly different speeds."""
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


class Mastership:
    """The mastership that `record` began, which is never longer than a tenure.

    Args:
        record: this member is its leader.
        sent_at: when the request for the lease was sent.
        is_planned: whether the master before has handed over, so that all of the in-sync set have all of the log.
        gone: the number of the master before, if it has failed.
        clock: seconds of a clock that never jumps.
        on_end: called once with this, the reason, and whether the end was wanted, when it ends.
    """

    def __init__(
        self,
        engine: Engine,
        record: GroupRecord,
        terms: Terms,
        *,
        sent_at: float,
        is_planned: bool,
        gone: int | None,
        clock: Callable[[], float],
        on_end: Callable[[Mastership, str, bool], None],
    ) -> None:
        assert record.leader is not None, "it names this member"
        self.me = record.leader.member
        self.record = record
        self.in_sync: InSyncSet | None = None
        """Once the log is open."""
        self.is_over = False
        self.on_change: list[Callable[[], None]] = []
        """Called after each change of the in-sync set, or of those about to join it; the confirm offset may have moved.
        """
        self._engine = engine
        self._terms = terms
        self._is_planned, self._gone = is_planned, gone
        self._clock = clock
        self._on_end = on_end
        self._writing = trio.Lock()
        self._running = trio.CancelScope()
        self.fence = Fence(clock, self._valid_until(sent_at))

    def end(self, reason: str, *, is_wanted: bool = False) -> None:
        """End the mastership. Idempotent."""
        self.fence.end(reason)
        if self.is_over:
            return
        self.is_over = True
        self._running.cancel()
        if not is_wanted:
            log.warning("lease_ended", epoch=self.record.epoch, reason=reason)
        self._on_end(self, reason, is_wanted)

    # The lease

    async def run(self) -> None:
        """Keep the lease and record the in-sync set until the mastership ends."""
        with self._running:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._record_in_sync)
                reason = None
                while reason is None:
                    reason = self.fence.expiry() or await self._extend()
                self.end(reason)

    async def _extend(self) -> str | None:
        """Extend the lease once and wait until the next time; return why the lease has ended, or None."""
        sent_at, pause_s = self._clock(), self._terms.lease_s / REQUESTS_PER_LEASE
        try:
            with trio.move_on_after(max(0.0, self.fence.left_s)):
                await self._engine.keep_alive()
                self.fence.extend(self._valid_until(sent_at))
        except LeaseLost as error:
            return error.reason
        except EngineUnavailable as error:
            warn_unavailable(self._engine, error)
            pause_s = PAUSE_S
        await trio.sleep(max(0.0, min(pause_s, self.fence.left_s)))
        return None

    def _valid_until(self, sent_at: float) -> float:
        return sent_at + self._terms.lease_s * (1 - _MARGIN)

    # The in-sync set

    def lead(self, start: int, confirmed: int) -> InSyncSet:
        """Begin to lead; see `Elector.lead`. Raises LeaseLost."""
        if self.is_over or self.in_sync is not None or self.fence.expiry() is not None:
            raise LeaseLost(self.fence.expiry() or "this mastership was begun before")
        self.in_sync = InSyncSet(
            self.me,
            self.record.in_sync,
            start=start,
            confirmed=None if self._is_planned else confirmed,
            gone=self._gone,
            timeout_s=self._terms.in_sync_timeout_s,
            gap_max=self._terms.gap_max,
            now=self._clock(),
        )
        return self.in_sync

    async def _record_in_sync(self) -> None:
        """Record the changes that the in-sync set wants."""
        while True:
            await trio.sleep(self._terms.in_sync_timeout_s / _SET_CHECKS_PER_TIMEOUT)
            in_sync = self.in_sync
            if in_sync is None or self.fence.refusal() is not None:
                continue
            confirmed = in_sync.confirm
            change = in_sync.next_change(self._clock())
            if in_sync.confirm != confirmed:
                self._tell_change()  # a member that was about to join has gone
            if change is not None and await self._record(in_sync=change):
                in_sync.settled(change)
                self._tell_change()

    def _tell_change(self) -> None:
        for call in self.on_change:
            call()

    async def force(self) -> None:
        """Record that this master's history holds, whatever other members know to be confirmed before."""
        await self._record(forced=self.record.epoch)

    async def put_back(self) -> None:
        """Write the record again if the engine has an older one of it, because it was restored from a copy.

        Raises:
            EngineUnavailable: it may not have been written.
        """
        async with self._writing:
            found, own = await self._engine.read(), self.record
            if self.is_over or not found.is_older_than(own) or found.leader != own.leader:
                return
            log.error(
                "engine_has_lost_changes",
                engine=self._engine.name,
                epoch=own.epoch,
                version=own.version,
                found_version=found.version,
                hint="it was restored from an older copy; this master writes its record again",
            )
            try:
                self.record = await self._engine.write(found, own) or own
            except LeaseLost as error:
                self.end(error.reason)

    def _next(self, **changes: Any) -> GroupRecord:
        return replace(self.record, version=self.record.version + 1, **changes)

    async def _record(self, **changes: Any) -> bool:
        """Change the record as its leader. False if that is not known to have succeeded; then the mastership may
        be over.
        """
        async with self._writing:
            if self.is_over:
                return False
            new = self._next(**changes)
            try:
                kept = await self._engine.write(self.record, new)
            except LeaseLost as error:
                kept, reason = None, error.reason
            except EngineUnavailable as error:
                warn_unavailable(self._engine, error)
                return False
            else:
                reason = f"{self._engine.name} has another record of this group than this master"
            if kept is None:
                self.end(reason)
                return False
            log.info(
                "in_sync_set_changed", epoch=new.epoch, in_sync=sorted(new.in_sync), before=sorted(self.record.in_sync)
            )
            self.record = kept
            return True

    # Hand-over

    def successor(self) -> int | None:
        """Return the member that should lead if this one cannot: of those in sync, connected and fit, the one that has
        the most of the log; None if there is none. One may have connected again without its last messages.
        """
        in_sync = self.in_sync
        if in_sync is None or in_sync.proposed is not None:
            return None
        others = {m: in_sync.offset_of(m) or 0 for m in sorted(in_sync.recorded - {self.me}) if in_sync.can_lead(m)}
        best = max(others, key=others.__getitem__, default=None)
        return best if best is not None and others[best] >= in_sync.confirm else None

    async def hand_over(self, member: int, *, force: bool = False, stays: bool = True) -> HandOver:
        """Hand over to another member; see `Elector.hand_over`.

        Args:
            stays: whether this member stays in the in-sync set.

        Raises:
            HandOverRefused: nothing has changed.
            LeaseLost: the mastership has ended, and the member was not named as the successor.
            EngineUnavailable: the mastership has ended; whether the member takes over is not known.
        """
        async with self._writing:
            in_sync = self.in_sync
            if in_sync is None or self.is_over:
                raise HandOverRefused("this broker is just becoming the master, or ceases to be; ask again shortly")
            if in_sync.proposed is not None:
                raise HandOverRefused("a change of the in-sync set is under way; try again in a moment")
            _check_successor(in_sync, member, force=force)
            self.fence.close(f"handing over to member {member}")  # the end of the log is final now
            try:
                await self._wait_for(in_sync, member)
                end = in_sync.end
                kept = min(end, in_sync.offset_of(member) or 0)
                if kept < end and not force:
                    raise HandOverRefused(f"member {member} has lost the log from {kept} on; the master has {end}")
                others = in_sync.caught_up(end) if kept == end else frozenset()
                if not stays:
                    others -= {self.me}
                if self.is_over:
                    raise LeaseLost(self.fence.expiry() or "")
                self.end(f"handed over to member {member}", is_wanted=True)
            finally:
                self.fence.reopen()
            # What is lost here by force may be known to be confirmed.
            lost = {"forced": self.record.epoch + 1} if kept < end else {}
            new = self._next(in_sync=others | {member}, successor=member, leader=None, **lost)
            if await self._engine.write(self.record, new) is None:
                raise LeaseLost(f"{self._engine.name} has another record of this group than this master")
        log.info("handed_over", member=member, end=end, lost_bytes=end - kept, forced=force)
        return HandOver(member, end, kept)

    async def _wait_for(self, in_sync: InSyncSet, member: int) -> None:
        """Wait until the member has the log and the accepted changes are done, for a limited time."""
        if member in in_sync.recorded:
            with trio.move_on_after(_HAND_OVER_S) as waiting:
                while (in_sync.offset_of(member) or 0) < in_sync.end:  # noqa: ASYNC110 - rare; an event would cost every report
                    await trio.sleep(_LOOK_S)
            if waiting.cancelled_caught:
                raise HandOverRefused(
                    f"member {member} did not get the rest of the log within {_HAND_OVER_S} s; it has it up to "
                    f"{in_sync.offset_of(member)}, the master up to {in_sync.end}"
                )
        # Puts and changes of tables that wait for members are answered meanwhile. For those that are not, the outcome
        # is unknown.
        with trio.move_on_after(_OTHERS_S):
            await self.fence.settled()
            while member in in_sync.recorded and not in_sync.has_all:  # noqa: ASYNC110 - as above
                await trio.sleep(_LOOK_S)

    async def give_back(self, reason: str, *, is_wanted: bool, stays: bool = True) -> None:
        """End the mastership and give the lease back; any member of the in-sync set may take over at once.

        Args:
            stays: whether this member stays in the in-sync set. It leaves only if another one can lead: otherwise
                nothing is done.
        """
        async with self._writing:
            if self.is_over or not (stays or self.successor() is not None):
                return
            self.end(reason, is_wanted=is_wanted)
            in_sync = self.record.in_sync if stays else self.record.in_sync - {self.me}
            try:
                await self._engine.write(self.record, self._next(in_sync=in_sync, leader=None))
            except (EngineUnavailable, LeaseLost) as error:
                log.warning("lease_not_given_back", reason=error.reason, hint="it ends by itself")


def _check_successor(in_sync: InSyncSet, member: int, *, force: bool) -> None:
    offset, end = in_sync.offset_of(member), in_sync.end
    if offset is None or not in_sync.is_connected(member):
        raise HandOverRefused(
            f"member {member} does not copy from this master now; in sync are {sorted(in_sync.recorded)}"
        )
    if member not in in_sync.recorded and not force:
        raise HandOverRefused(
            f"member {member} is not in sync: it has the log up to {offset}, the master up to {end}. "
            f"Forced, {end - offset} bytes from offset {offset} on are lost; in sync are {sorted(in_sync.recorded)}"
        )


def warn_unavailable(engine: Engine, error: EngineUnavailable) -> None:
    """Log that the engine does not answer."""
    log.warning(
        "election_engine_unavailable",
        engine=engine.name,
        reason=error.reason,
        hint="a master accepts messages until its lease ends; no other member can take over meanwhile",
    )
