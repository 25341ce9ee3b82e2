"""Bugs to plant in the broker or in the members' client, so that the judges can prove that they would notice them.

Each function changes the running process before it begins. None of this is reachable from the product.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from support import planted_bugs

if TYPE_CHECKING:
    from reput_broker.store.base.dispatch import DispatchBatch, QueueRows

_chance = random.Random(7)
_KINDS: Final = "ok=80,fails1=10,poison=10"


@dataclass(frozen=True)
class Bug(planted_bugs.Bug):
    """One bug: where it is planted, by which rules it is to be caught, and what has to happen for that."""

    rules: tuple[str, ...]
    broker: bool = True
    first: tuple[str, ...] = ()
    weights: dict[str, int] = field(default_factory=lambda: {"join": 2, "leave": 1, "kill": 1})
    kinds: str = _KINDS

    def in_broker(self) -> None:
        """Plant it, if it is one of the broker's."""
        if self.broker:
            self.plant()

    def in_member(self) -> None:
        """Plant it, if it is one of the client's."""
        if not self.broker:
            self.plant()


# -- the broker's ------------------------------------------------------------------------------------------------------


def lost_wake_up() -> None:
    """nine in ten waiting pulls are not woken by a message"""
    from reput_broker.put.held_pulls import PullRequestHoldService

    real = PullRequestHoldService.arriving

    def deaf(self: PullRequestHoldService, rows: QueueRows, batch: DispatchBatch) -> None:
        if _chance.random() < 0.1:
            real(self, rows, batch)

    PullRequestHoldService.arriving = deaf  # type: ignore[method-assign]


def dead_member_stays() -> None:
    """a member whose connection ends stays in its group"""
    from reput_broker.groups.membership import Membership

    Membership.gone = lambda *_: None  # type: ignore[method-assign]
    Membership.expire = lambda *_: None  # type: ignore[method-assign]


def commit_goes_back() -> None:
    """now and then a commit puts the group's offset back"""
    from reput_broker.tables.offsets import ConsumerOffsetManager

    real = ConsumerOffsetManager.commit

    def careless(
        self: ConsumerOffsetManager, group: str, topic: str, queue_id: int, offset: int, *, increase_only: bool = False
    ) -> None:
        if _chance.random() < 0.3:
            offset, increase_only = max(0, offset - 3), False
        real(self, group, topic, queue_id, offset, increase_only=increase_only)

    ConsumerOffsetManager.commit = careless  # type: ignore[method-assign]


def lock_given_twice() -> None:
    """every request for the lock of a queue gets it"""
    from reput_broker.groups.queue_locks import QueueLocks

    QueueLocks.lock = lambda *arguments: list(arguments[-1])  # type: ignore[method-assign]


def lock_never_free() -> None:
    """a lock stays with the member that had it first, for ever"""
    from reput_broker.groups.queue_locks import QueueLocks

    real = QueueLocks.lock

    def for_ever(self: QueueLocks, group: str, client_id: str, queues: Any) -> Any:
        locked = real(self, group, client_id, queues)
        for held in self._locks.get(group, {}).values():
            held.expires_at = float("inf")
        return locked

    QueueLocks.lock = for_ever  # type: ignore[method-assign]
    QueueLocks.unlock = lambda *_: None  # type: ignore[method-assign]


def retry_dropped() -> None:
    """half of the messages that are given back are taken and forgotten"""
    from reput_broker.remoting.request import Response
    from reput_broker.retry.feature import SendBackProcessor

    real = SendBackProcessor._store_it

    def forgetful(self: SendBackProcessor, request: Any, key: Any, returned: Any, record: Any, look: bool) -> Any:
        if not returned.is_dead_letter and _chance.random() < 0.5:
            return Response()
        return real(self, request, key, returned, record, look)

    SendBackProcessor._store_it = forgetful  # type: ignore[method-assign]


def retry_early() -> None:
    """every message given back is redelivered after a second"""
    from reput_broker.retry import feature
    from reput_broker.send.retry_records import returned_message

    def hasty(*arguments: Any, **options: Any) -> Any:
        returned = returned_message(*arguments, **options)
        if not returned.is_dead_letter:
            returned.properties["DELAY"] = "1"
        return returned

    patch.object(feature, "returned_message", hasty).start()


def retry_to_another_group() -> None:
    """half of the messages that are given back come to another group"""
    from reput_broker.retry import feature
    from reput_broker.send.retry_records import returned_message

    def astray(record: Any, group: str, **options: Any) -> Any:
        # Its retry topic was made with its first heartbeat.
        return returned_message(record, "bystander" if _chance.random() < 0.5 else group, **options)

    patch.object(feature, "returned_message", astray).start()


def dead_letter_twice() -> None:
    """a dead letter is stored twice"""
    from reput_broker.retry.feature import SendBackProcessor

    real = SendBackProcessor._store_it

    def twice(self: SendBackProcessor, request: Any, key: Any, returned: Any, record: Any, look: bool) -> Any:
        if returned.is_dead_letter:
            self._core.store.put_record(record)
        return real(self, request, key, returned, record, look)

    SendBackProcessor._store_it = twice  # type: ignore[method-assign]


def delayed_early() -> None:
    """delayed messages fire a third of a second before their time"""
    from reput_broker.delay.active_slots import ActiveSlots
    from reput_broker.delay.levels import Level

    due_ms, take = Level.due_ms, ActiveSlots.take

    Level.due_ms = lambda self, *arguments: due_ms(self, *arguments) - 300  # type: ignore[method-assign]
    ActiveSlots.take = lambda self, now_ms, count: take(self, now_ms + 300, count)  # type: ignore[method-assign]


def delayed_twice() -> None:
    """after a kill the schedule does not look in the log for what it has delivered"""
    from reput_broker.delay.delayed_record import DeliveredRecords

    DeliveredRecords._note = lambda *_: None  # type: ignore[method-assign]


def half_message_delivered() -> None:
    """every other rollback is carried out as a commit"""
    from reput_broker.transactions import feature as transaction
    from reput_protocol.codes import TransactionState
    from reput_protocol.commands.transaction import EndTransactionHeader

    class Careless(EndTransactionHeader):
        @classmethod
        def from_ext(cls, ext: Any) -> Any:
            header = EndTransactionHeader.from_ext(ext)
            if header.commit_or_rollback == TransactionState.ROLLBACK and _chance.random() < 0.5:
                header.commit_or_rollback = TransactionState.COMMIT
            return header

    patch.object(transaction, "EndTransactionHeader", Careless).start()


def deduplication_forgotten() -> None:
    """a broker that was restarted knows no message that was put before"""
    from reput_broker.send.deduplication import Deduplication

    Deduplication.find_all = lambda *arguments: [None for _ in arguments[2]]  # type: ignore[method-assign]
    Deduplication.find_single = lambda *_: None  # type: ignore[method-assign]


# -- the client's ------------------------------------------------------------------------------------------------------


def committed_too_soon() -> None:
    """what is handed out is committed, handled or not"""
    from reput_client.consume.group.assigned_queue import QueueProgress

    QueueProgress.position = QueueProgress.delivered_to  # type: ignore[method-assign]


def owned_twice() -> None:
    """every member takes the first queue of each topic"""
    from reput_client.consume.group import rebalance
    from reput_client.consume.group.allocation import allocate

    def greedy(strategy: Any, me: str, queues: Any, members: Any) -> Any:
        mine = allocate(strategy, me, queues, members)
        return sorted({*mine, min(queues)}) if me in members else mine

    patch.object(rebalance, "allocate", greedy).start()


def takes_at_once() -> None:
    """a member takes a queue of another member at once"""
    from reput_client.consume.group import handover

    handover.TAKE_AFTER_S = 0.0  # type: ignore[misc]


def left_without_commit() -> None:
    """a queue that is given up is not committed"""
    from reput_client.consume.group.handover import Handover

    async def careless(self: Handover, queues: Any, timeout_s: float | None = None, **_: Any) -> None:
        if self.locks is not None:
            await self.locks.unlock([assigned.queue for assigned in queues], timeout_s)

    Handover.let_go = careless  # type: ignore[method-assign]


def begins_one_too_far() -> None:
    """a member that takes a queue starts one message after the group's offset"""
    from reput_client.consume.group.commits import OffsetsAtBroker

    real = OffsetsAtBroker.read

    async def further(self: OffsetsAtBroker, queue: Any, slave: Any) -> int | None:
        offset = await real(self, queue, slave)
        return None if offset is None else offset + 1

    OffsetsAtBroker.read = further  # type: ignore[method-assign]


def passes_over_what_failed() -> None:
    """in order, a message that could not be handled is passed over"""
    from reput_client.consume.group.serving import OrderedServing

    def over(self: OrderedServing, taken: Any, at: float) -> None:
        assigned, message = taken
        assigned.handled(message)

    OrderedServing.again = over  # type: ignore[method-assign]


_ORDERS_CHANGE_HANDS: Final = {"join": 3, "leave": 2}
BUGS: Final = planted_bugs.table_of(
    (
        Bug(lost_wake_up, ("late",)),
        Bug(dead_member_stays, ("lost",), first=("kill", "kill", "kill")),
        Bug(commit_goes_back, ("offset went back",)),
        Bug(lock_given_twice, ("lock given twice", "one at a time"), weights=_ORDERS_CHANGE_HANDS),
        Bug(lock_never_free, ("lost",), first=("leave", "kill", "leave", "join"), weights=_ORDERS_CHANGE_HANDS),
        Bug(retry_dropped, ("retry dropped",)),
        Bug(retry_early, ("retry early",), kinds="ok=80,hangs=20"),
        Bug(retry_to_another_group, ("bystander",)),
        Bug(dead_letter_twice, ("dead letter twice",)),
        Bug(delayed_early, ("delayed early",)),
        Bug(delayed_twice, ("delayed once",), weights={"kill-broker": 1}),
        Bug(half_message_delivered, ("half message",)),
        # Two kills, then quiet: what was put before is put once more now and then.
        Bug(deduplication_forgotten, ("deduplicated",), first=("kill-broker", "kill-broker"), weights={"join": 1}),
        Bug(committed_too_soon, ("commit",), broker=False),
        Bug(owned_twice, ("owned twice", "duplicate"), broker=False),
        Bug(takes_at_once, ("taken too soon",), broker=False, weights=_ORDERS_CHANGE_HANDS),
        Bug(left_without_commit, ("duplicate",), broker=False, weights=_ORDERS_CHANGE_HANDS),
        Bug(begins_one_too_far, ("lost",), broker=False),
        Bug(passes_over_what_failed, ("order",), broker=False),
    )
)
