"""Parts of a group member without a broker, a socket or an event loop, under a clock that tests set."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.queue_locks import QueueLocks as BrokerLocks
from reput_client.consume.group.member import MemberParts
from reput_client.consume.group.options import ConsumerOptions
from reput_client.offset_store import OFFSET_NOT_FOUND, ReadOffsetType
from reput_client.transport.address import Address
from reput_client.transport.options import ClientOptions
from reput_client.transport.routing import Route
from reput_client.transport.runtime import Runtime
from reput_client.transport.session import Session
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import LockBatchBody, LockBatchResult
from reput_protocol.commands.topic import BrokerData
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.header import Value
from support.waiting import FakeSeconds

T = TypeVar("T")

ADDRESS = Address("127.0.0.1", 1)
Reply = Callable[[Mapping[str, Value], bytes], bytes]


class _Runtime:
    """Time alone: nothing waits."""

    def __init__(self, clock: FakeSeconds) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now

    def event(self) -> Any:
        return _Event()

    def interrupt(self) -> None:
        pass


class _Event:
    def set(self) -> None:
        pass


class ScriptedSession(Session):
    """A session whose requests are answered at once by functions, by code."""

    def __init__(self, clock: FakeSeconds) -> None:
        super().__init__(ClientOptions(str(ADDRESS)), cast("Runtime", _Runtime(clock)))
        self.replies: dict[int, Reply] = {}
        self.asked: list[int] = []

    async def ask_ok(
        self,
        code: RequestCode,
        ext: Mapping[str, Value],
        *,
        what: str,
        address: Address | None = None,
        queue: MessageQueue | None = None,
        deadline: float | None = None,
        body: Buffer = b"",
        ext_repeated: Mapping[str, Value] | None = None,
    ) -> Call:
        """See `Session`."""
        del what, address, queue, deadline, ext_repeated
        self.asked.append(code)
        call = Call(1, Waiter())
        call.body = memoryview(self.replies[code](ext, bytes(body)))
        return call


class LockTable:
    """The broker's own table of locks, asked through sessions."""

    def __init__(self, clock: FakeSeconds) -> None:
        self.table = BrokerLocks(GroupsConfig(), clock)

    def answer(self, session: ScriptedSession) -> None:
        """Answer this session's requests about locks."""
        session.replies[RequestCode.LOCK_BATCH_MQ] = self._lock
        session.replies[RequestCode.UNLOCK_BATCH_MQ] = self._unlock

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """Return whose lock a queue is under."""
        return self.table.owner(group, (queue.topic, queue.queue_id))

    def _lock(self, ext: Mapping[str, Value], body: bytes) -> bytes:
        del ext
        wanted = LockBatchBody.from_json(body)
        by_key = {(queue.topic, queue.queue_id): queue for queue in wanted.queues}
        locked = self.table.lock(wanted.consumer_group, wanted.client_id, by_key)
        return LockBatchResult([by_key[key] for key in locked]).to_json()

    def _unlock(self, ext: Mapping[str, Value], body: bytes) -> bytes:
        del ext
        wanted = LockBatchBody.from_json(body)
        keys = [(queue.topic, queue.queue_id) for queue in wanted.queues]
        self.table.unlock(wanted.consumer_group, wanted.client_id, keys)
        return b""


class SharedOffsets:
    """The offsets of a group, as all of its members see them; without a broker, `earliest` is 0."""

    def __init__(self) -> None:
        self.kept: dict[MessageQueue, int] = {}
        self.failure = None

    def update(self, queue: MessageQueue, offset: int, increase_only: bool = False) -> None:
        """See `OffsetStore`."""
        self.kept[queue] = max(offset, self.kept.get(queue, 0)) if increase_only else offset

    async def read(self, queue: MessageQueue, kind: ReadOffsetType) -> int:
        """See `OffsetStore`."""
        del kind
        return self.kept.get(queue, OFFSET_NOT_FOUND)

    async def persist(self, queue: MessageQueue) -> None:
        """See `OffsetStore`."""

    def remove(self, queue: MessageQueue) -> None:
        """See `OffsetStore`; here nothing is in memory that is not stored."""


def member_of(
    session: ScriptedSession, client_id: str, offsets: SharedOffsets, *, queues: int = 1, **options: Any
) -> MemberParts:
    """Return a member of group `g` that has joined, of topic `t` at broker `b`; nothing runs in its background."""
    readable = tuple(MessageQueue("t", "b", number) for number in range(queues))
    session.routes.put(Route("t", readable, readable, ("b",)), session.runtime.now())
    session.brokers.learn(BrokerData("c", "b", {0: str(ADDRESS)}))
    options = {"start": 0, "offset_store": offsets, "handler_timeout_s": math.inf, **options}
    member = MemberParts(session, ConsumerOptions(str(ADDRESS), group="g", topic="t", **options))
    member._membership.client_id = client_id
    member._membership.source = lambda broker_name: ADDRESS if broker_name == "b" else None  # type: ignore[method-assign]
    member._membership.at_master = lambda broker_name: broker_name == "b"  # type: ignore[method-assign]
    return member


def done(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never really waits to its end."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise AssertionError("it waits for something")
