"""An engine in memory that elects: leases by trio's clock, and faults that a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import trio

from reput_broker.ha.election.engine import REQUESTS_PER_LEASE, EngineUnavailable, GroupRecord, LeaseLost


@dataclass
class EngineState:
    """What a majority of the engine has: the record of one group, and the leader's lease.

    Attributes:
        is_down: nothing is answered, and no lease ends, as without a quorum.
        writes: the records in the order of their writing.
    """

    lease_s: float = 10.0
    record: GroupRecord = field(default_factory=GroupRecord)
    is_down: bool = False
    writes: list[GroupRecord] = field(default_factory=list)
    _lease: int = 0
    _lease_end: float = inf
    _change: trio.Event = field(default_factory=trio.Event)

    def now(self) -> GroupRecord:
        """Return the record; the leader is removed from it once its lease has ended."""
        if self.record.leader is not None and trio.current_time() >= self._lease_end and not self.is_down:
            self.keep(replace(self.record, leader=None))
        return self.record

    def keep(self, record: GroupRecord) -> GroupRecord:
        """Replace the record."""
        self.record = replace(record, revision=(str(len(self.writes) + 1),))
        self.writes.append(self.record)
        self._change.set()
        self._change = trio.Event()
        return self.record

    def grant(self) -> int:
        """Give a new lease."""
        self._lease += 1
        self._lease_end = trio.current_time() + self.lease_s
        return self._lease

    def restore(self, copy: GroupRecord) -> None:
        """Have an older record again, with its lease if that has the same leader, as an engine of a copy does."""
        self.keep(copy)
        self.renew()

    def renew(self) -> None:
        """Let the lease begin again, as an engine does that has found a quorum."""
        self._lease_end = trio.current_time() + self.lease_s

    def extend(self, lease: int) -> bool:
        """Extend a lease; False if it has ended."""
        if self.now().leader is None or lease != self._lease:
            return False
        self._lease_end = trio.current_time() + self.lease_s
        return True

    async def changes(self, revision: tuple[str, ...]) -> None:
        """Return once the record is another one."""
        while self.now().revision == revision:
            with trio.move_on_at(self._lease_end if self.record.leader is not None else inf):
                await self._change.wait()
            if self.is_down:
                await trio.sleep(0.1)


class FakeEngine:
    """One member's connection to an engine.

    Attributes:
        is_cut_off: this member alone gets no answer.
        loses_answers: how many of the next changes are made without an answer.
        delay_s: the time that a request takes to the engine, and the same for its answer.
    """

    name = "engine in memory"

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self.is_cut_off = False
        self.loses_answers = 0
        self.delay_s = 0.0
        self._lease = 0

    async def _travel(self) -> None:
        await trio.sleep(self.delay_s)
        if self.state.is_down or self.is_cut_off:
            await trio.sleep(self.state.lease_s / REQUESTS_PER_LEASE)
            raise EngineUnavailable("no response")

    async def _answer(self) -> None:
        if self.loses_answers:
            self.loses_answers -= 1
            raise EngineUnavailable("the answer was lost")
        await self._travel()

    async def read(self) -> GroupRecord:
        await self._travel()
        record = self.state.now()
        await self._travel()
        return record

    async def take(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        await self._travel()
        now = self.state.now()
        kept = None
        if now == seen and now.revision == seen.revision:
            self._lease = self.state.grant()
            kept = self.state.keep(new)
        await self._answer()
        return kept

    async def keep_alive(self) -> None:
        await self._travel()
        if not self.state.extend(self._lease):
            raise LeaseLost("the lease has ended")
        await self._travel()

    async def write(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        await self._travel()
        now = self.state.now()
        kept = None
        if now == new and (now.leader is None or self.state.extend(self._lease)):
            kept = now
        elif now == seen and now.leader is not None and self.state.extend(self._lease):
            kept = self.state.keep(new)
        await self._answer()
        return kept

    async def changed(self, seen: GroupRecord) -> None:
        await self._travel()
        await self.state.changes(seen.revision)

    async def close(self) -> None:
        pass
