"""A simulated engine that elects, on a machine of its own: requests and answers cross the network.

A request whose answer does not come in time is given up by its member, and may arrive later all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from reput_broker.ha.election.engine import REQUESTS_PER_LEASE, EngineUnavailable, GroupRecord, LeaseLost
from simulation.network import Network
from support.election_engine import EngineState

T = TypeVar("T")
ADDRESS: Final = "127.0.6.1"
_REQUEST_BYTES: Final = 300


class SimulatedEngine:
    """One member's connection to the engine. Implements `Engine`."""

    name = "simulated engine"

    def __init__(self, state: EngineState, network: Network, address: str) -> None:
        self._state = state
        self._network = network
        self._address = address
        self._lease = 0
        self._there, self._back = network.lanes(address, ADDRESS)

    async def _ask(self, work: Callable[[], T]) -> T:
        """Let the engine do something; return its answer."""
        there, back = self._there, self._back
        answers: list[T] = []
        answered = trio.Event()

        def arrived() -> None:
            if not self._state.is_down:
                answer = work()
                back.put(_REQUEST_BYTES, lambda: _note(answer))

        def _note(answer: T) -> None:
            answers.append(answer)
            answered.set()

        there.put(_REQUEST_BYTES, arrived)
        with trio.move_on_after(self._state.lease_s / REQUESTS_PER_LEASE):
            await answered.wait()
        if not answers:
            self._there, self._back = self._network.lanes(self._address, ADDRESS)
            raise EngineUnavailable(f"no response from {ADDRESS}")
        return answers[0]

    async def read(self) -> GroupRecord:
        return await self._ask(self._state.now)

    async def take(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        def work() -> tuple[int, GroupRecord] | None:
            now = self._state.now()
            if now != seen or now.revision != seen.revision:
                return None
            return self._state.grant(), self._state.keep(new)

        taken = await self._ask(work)
        if taken is None:
            return None
        self._lease, kept = taken
        return kept

    async def keep_alive(self) -> None:
        lease = self._lease
        if not await self._ask(lambda: self._state.extend(lease)):
            raise LeaseLost("the lease has ended")

    async def write(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        lease = self._lease

        def work() -> GroupRecord | None:
            now = self._state.now()
            if now == new and (now.leader is None or self._state.extend(lease)):
                return now
            if now == seen and now.leader is not None and self._state.extend(lease):
                return self._state.keep(new)
            return None

        return await self._ask(work)

    async def changed(self, seen: GroupRecord) -> None:
        await self._ask(lambda: None)
        await self._state.changes(seen.revision)
        await self._ask(lambda: None)

    async def close(self) -> None:
        pass
