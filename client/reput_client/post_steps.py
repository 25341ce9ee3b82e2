"""What is done for posted messages without waiting: blocks leave, are answered, fail, leave again, are done."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from reput_client.address import Address
from reput_client.backoff import Backoff
from reput_client.core import Waiter
from reput_client.post_block import Block
from reput_client.post_gathering import Gathering
from reput_client.post_link import Link
from reput_client.puts import Putter, outcome_unknown
from reput_client.runtime import Event
from reput_client.session import Session, wall_clock_ms
from reput_protocol.errors import ReputError
from reput_protocol.message_id import UniqueIdGenerator

log = logging.getLogger("reput_client")

_AWAY_S: Final = 1.0


class PostSteps:
    """The blocks of one producer, from when they are open until they are done. Nothing here waits, and nothing raises.

    Invariant: a block that is not done is in `unfinished`, and either open in `gathering` or sealed in one of `links`.
    """

    def __init__(
        self,
        session: Session,
        putter: Putter,
        gathering: Gathering,
        ids: UniqueIdGenerator | None,
        *,
        retries: int,
        new_backoff: Callable[[], Backoff],
        on_failed: Callable[[Block], None],
        on_idle: Callable[[], None],
    ) -> None:
        """`on_failed` is called with every block that has failed, `on_idle` when all blocks are done."""
        self._session = session
        self._putter = putter
        self._gathering = gathering
        self._ids = ids
        self._retries = retries
        self._new_backoff = new_backoff
        self._on_failed = on_failed
        self._on_idle = on_idle
        self.links: dict[Address, Link] = {}
        self.unfinished: dict[int, Block] = {}
        """By serial, in that order."""
        self.to_call: deque[Block] = deque()
        """Done, with callbacks that have not been called."""
        self._arrivals = _Arrivals(self.wake)
        self.tenders: dict[Waiter, float] = {}
        """Those who call `step` when something is due, and until when they sleep."""
        self.due_at = math.inf
        """When to call `step` again even if nothing comes."""
        self._stepped_at = -math.inf
        self.changed: Event | None = None
        """Set when a block is done, if somebody waits for that."""

    def begun(self, block: Block) -> None:
        """A block has been opened: see to it that it leaves in time."""
        self.unfinished[block.serial] = block
        self._see_to(block.due_at)

    def is_held_up(self, address: Address) -> bool:
        """Whether blocks for this broker have to wait for their turn, or for a connection."""
        link = self.links.get(address)
        return link is not None and bool(link.waiting)

    def _see_to(self, due_at: float) -> None:
        self.due_at = min(self.due_at, due_at)
        if any(until > due_at for until in self.tenders.values()):
            self.wake()

    def wake(self) -> None:
        """Have those who do what is due look again."""
        for waiter in self.tenders:
            self._session.pump.wake(waiter)

    def signal(self) -> None:
        """Have those who wait for blocks to be done look again."""
        if self.changed is not None:
            self.changed.set()
            self.changed = None

    def leave_all(self) -> None:
        """Seal every open block."""
        for block in list(self._gathering.open.values()):
            self.leave(block)

    def leave(self, block: Block) -> None:
        """Seal an open block and have it wait for its turn."""
        self._gathering.close(block)
        self._seal(block)

    def _seal(self, block: Block) -> None:
        link = self.links.get(block.address)
        if link is None:
            link = self.links[block.address] = Link(
                self._session, self._putter, block.address, self._arrivals, self._new_backoff(), self._retries
            )
        try:
            block.seal(wall_clock_ms(), self._ids)
        except Exception as error:  # what can be wrong with a message was looked at when it came
            log.exception("a block of %d messages cannot be made", len(block.bodies))
            block.finish(None, ReputError(f"the block cannot be made: {error!r}"))
            self._finished([block])
            return
        link.add(block, self._session.runtime.now())

    def step(self) -> bool:
        """Do all that is due and can be done now; return whether the system has all that was sent."""
        session, gathering, links = self._session, self._gathering, self.links.values()
        while True:
            self._arrivals.ready = False
            now = session.runtime.now()
            for link in links:
                self._finished(link.answered(now))
            if any(now >= link.next_expiry() for link in links):
                session.poll(to_the_end=True)  # the answers may be here
                spares = not self.tenders and now - self._stepped_at > _AWAY_S
                for link in links:
                    self._finished(link.answered(now))
                    self._finished(link.expire(now, spares=spares))
            while gathering.open and (block := next(iter(gathering.open.values()))).due_at <= now:
                self.leave(block)
            unwritten = [link for link in links if not link.send(now)]
            if not self._arrivals.ready:
                break
        self._stepped_at = now
        self.due_at = min((link.next_due(now) for link in links), default=math.inf)
        if gathering.open:
            self.due_at = min(self.due_at, next(iter(gathering.open.values())).due_at)
        self._see_to(self.due_at)
        return not unwritten

    def to_connect(self) -> list[Link]:
        """Return the links that should connect now."""
        now = self._session.runtime.now()
        return [link for link in self.links.values() if link.needs_connection(now)]

    def _finished(self, blocks: Sequence[Block]) -> None:
        """Blocks are done."""
        routes = self._session.routes
        for block in blocks:
            route = routes.get(block.queue.topic)
            if route is not None and route.template:
                routes.forget(block.queue.topic)  # there is a topic now
            if block.callbacks:
                self.to_call.append(block)
            if block.error is not None:
                self._on_failed(block)
            self._gathering.held -= block.size
            del self.unfinished[
                block.serial
            ]  # last: what an interrupt leaves here is unknown, or not told of yet
        if blocks:
            self.signal()
            self.wake()
            if not self.unfinished:
                self._on_idle()

    def take_answers(self) -> None:
        """Take the answers that have come."""
        now = self._session.runtime.now()
        for link in self.links.values():
            self._finished(link.answered(now))

    def give_up(self, error: ReputError) -> None:
        """End everything: with `error`, or as unknown what may have left. Never waits."""
        for link in self.links.values():
            link.clear()
        for block in list(self._gathering.open.values()):
            self._gathering.close(block)
        blocks = list(self.unfinished.values())
        for block in blocks:
            if not block.done:
                block.give_up(error)
        self._finished(blocks)

    def forget(self, ids: UniqueIdGenerator | None) -> None:
        """In a forked child: what is under way is the parent's; go on with other ids."""
        self.tenders.clear()
        self.changed = None
        self._ids = ids
        for block in list(self._gathering.open.values()):
            self._gathering.close(block)
        for block in self.unfinished.values():
            reason = "it was posted before the fork, and the parent process sends it"
            block.changed = None
            block.finish(None, outcome_unknown(block.queue, (), reason))
        self._gathering.held = 0
        self.links.clear()
        self.unfinished.clear()
        self.to_call.clear()


class _Arrivals(Waiter):
    """Told of every call of a posted block that has finished."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def notify(self) -> None:
        """The step that follows takes what has come."""
        self.ready = True
        self._wake()
