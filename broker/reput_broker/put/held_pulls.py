"""What pulls and pops share: holding those that found nothing, reads outside the page cache, and filters.

**Long polling** (RocketMQ: PullRequestHoldService). The store calls `arriving` for each queue that a step of dispatch
has filled, and after the step its progress calls `answer_ready`. Pops and notifications are held here too:
`pop.polling` decides which of them a message wakes. `Arrivals` notifies services of the broker in another way: of
their own topics, or of all that is dispatched.

A held pull is released when a matching message arrives, when its time is up, when an administrator changes something
that concerns it, when the broker stops, or when its connection ends. It then runs once more and is answered with the
result: a few pulls immediately, the others in batches between which other tasks run.

The memory of held pulls is limited, for each client and in total. A pull beyond the limit is refused as BUSY, after
which clients wait for a second or more; after a wrong "nothing found" RocketMQ's clients would pull again
immediately. A client that holds less than its share is never refused because of the total.

**Cold reads** are made in worker threads: a page fault in the event loop would stall all clients.

**Filters** (RocketMQ: ClientManageProcessor.checkClientConfig, FilterFactory): from an expression to a filter, and
CheckClientConfig (46).
"""

from __future__ import annotations

import heapq
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, TypeVar

import trio

from reput_broker.config.sections import FiltersConfig, LongPollingConfig
from reput_broker.remoting.request import Client, Processor, Refusal, Request, Response, serves
from reput_broker.store.base.dispatch import DispatchBatch, QueueRows
from reput_broker.store.message_reader import FilteredGet, HeldExtents
from reput_protocol.codes import ExpressionType, RequestCode, ResponseCode
from reput_protocol.commands.group import CheckClientBody
from reput_protocol.errors import ErrorCode, FilterSyntaxError
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import MessageFilter, TagFilter, tag_hash

T = TypeVar("T")

QueueKey = tuple[str, int]
K = TypeVar("K")

HELD_BYTES: Final = 2048
"""Approximate memory of a held pull besides the text of its filter: what the answer needs of the request, the call that
answers it, and its entries here."""
_TEXT_BYTES: Final = 16
"""Approximate memory of a compiled filter per character of its text."""
_TICKS_A_S: Final = 16
"""Pulls whose time is up within this fraction of a second are released together."""
_ANSWERED_A_TURN: Final = 8
"""Pulls after which other tasks run: an answer may be some MiB."""
_PASSED_A_TURN: Final = 256
"""Likewise, pulls that were already released."""
_LOOKED_AT_MAX: Final = 256
"""Filters of a queue, and messages per expression, that are evaluated for arriving messages. Beyond that the held pulls
run again and evaluate them."""
_EVALUATED_MAX: Final = 8192
"""Parts of expressions evaluated for messages that arrive together: about a millisecond."""


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A held pull, pop or notification."""

    request: Request
    group: str
    queue: QueueKey
    offset: int
    message_filter: MessageFilter | None
    tick: int
    """When its time is up."""
    resume: Callable[[bool], None]
    """Runs the request again and answers; with False, answers that there is nothing."""
    abandon: Callable[[], None]
    """Called if its client is gone."""
    size: int
    """Approximate bytes."""
    is_let_go: bool = False
    """Whether it was resumed or abandoned."""
    may_get_messages: bool = True
    """False once its member has left the group."""


@dataclass(slots=True)
class _Alike:
    """Pulls that wait for the same messages, and the highest of their offsets."""

    pulls: dict[HeldRequest, None] = field(default_factory=dict)
    highest: int = -1


class _HeldOf:
    __slots__ = ("pulls", "size")

    def __init__(self) -> None:
        self.pulls: dict[HeldRequest, None] = {}
        self.size = 0


class PullRequestHoldService:
    """The held pulls. It is the store's MessageArrivingListener.

    Attributes:
        is_stopping: whether no pull should be held, because the broker is about to stop.
        held_bytes: approximate memory of the held pulls.
        count: how many pulls are held.
    """

    def __init__(self, config: LongPollingConfig) -> None:
        self.is_stopping = False
        self.held_bytes = 0
        self.count = 0
        self._config = config
        self._waiting: dict[QueueKey, dict[MessageFilter | None, _Alike]] = {}
        self._by_client: dict[Client, _HeldOf] = {}
        self._by_group: dict[str, dict[HeldRequest, None]] = {}
        self._by_tick: dict[int, dict[HeldRequest, None]] = {}
        self._ticks: list[int] = []
        self._ready: deque[Iterator[HeldRequest | None]] = deque()
        self._earlier_tick = trio.Event()
        self._more_ready = trio.Event()

    def hold(
        self,
        request: Request,
        group: str,
        queue: QueueKey,
        offset: int,
        message_filter: MessageFilter | None,
        wait_s: float,
        resume: Callable[[bool], None],
        abandon: Callable[[], None],
    ) -> HeldRequest:
        """Hold a pull for at most `wait_s` seconds, limited by `long_polling.max_wait`.

        In the end `resume` is called, with False after `member_left`, or, if the client has gone, `abandon`.

        Raises:
            Refusal: too many are held; neither will be called.
        """
        size = HELD_BYTES
        if message_filter is not None:
            size += _TEXT_BYTES * len(message_filter.expression)
        of_client = self._by_client.get(request.client) or _HeldOf()
        self._check_room(of_client.size + size, size)
        tick = math.ceil((trio.current_time() + min(wait_s, self._config.max_wait)) * _TICKS_A_S)
        held = HeldRequest(request, group, queue, offset, message_filter, tick, resume, abandon, size)
        self._wait(held)
        self.count += 1
        self._by_client[request.client] = of_client
        of_client.pulls[held] = None
        of_client.size += size
        self.held_bytes += size
        self._by_group.setdefault(group, {})[held] = None
        if tick not in self._by_tick:
            if not self._ticks or tick < self._ticks[0]:
                self._earlier_tick.set()
            self._by_tick[tick] = {}
            heapq.heappush(self._ticks, tick)
        self._by_tick[tick][held] = None
        return held

    def _wait(self, held: HeldRequest) -> None:
        alike = self._waiting.setdefault(held.queue, {}).setdefault(held.message_filter, _Alike())
        alike.pulls[held] = None
        alike.highest = max(alike.highest, held.offset)

    def _check_room(self, size_of_client: int, size: int) -> None:
        config = self._config
        if size_of_client > config.client_memory_max:
            raise Refusal(
                ErrorCode.BUSY,
                f"the waiting pulls of this client would take {size_of_client} bytes, and at most "
                f"{config.client_memory_max} are held of one (long_polling.client_memory_max); pull again later, or "
                "from more connections",
            )
        if self.held_bytes + size > config.memory_max:
            share = config.memory_max // (len(self._by_client) + 1)
            if size_of_client > share:
                raise Refusal(
                    ErrorCode.BUSY,
                    f"the waiting pulls of all clients take {self.held_bytes} bytes of {config.memory_max} "
                    f"(long_polling.memory_max), and this client more than its share of {share}; pull again later",
                )

    def arriving(self, rows: QueueRows, batch: DispatchBatch) -> None:
        """Note new messages; matching pulls run again at the next `answer_ready`."""
        queue = (rows.topic, rows.queue_id)
        waiting = self._waiting.pop(queue, None)
        if waiting is None:
            return
        end = rows.end_queue_offset
        arrived = Arrived(rows, batch)
        kept: dict[MessageFilter | None, _Alike] = {}
        for message_filter, alike in islice(waiting.items(), _LOOKED_AT_MAX):
            if not arrived.may_have_one_for(message_filter):
                kept[message_filter] = alike
            elif alike.highest < end:
                self._ready.append(iter(alike.pulls))
            else:  # rare: a pull beyond the end of its queue is not held
                self._ready.append(iter([held for held in alike.pulls if held.offset < end]))
                ahead = {held: None for held in alike.pulls if held.offset >= end}
                kept[message_filter] = _Alike(ahead, alike.highest)
        if len(waiting) > _LOOKED_AT_MAX:
            self._ready.append(_pulls_of(islice(waiting.values(), _LOOKED_AT_MAX, None)))
        if kept:
            self._waiting[queue] = kept

    def answer_ready(self) -> None:
        """Run released pulls again: some now, the rest in `run`."""
        answered = 0
        for _ in range(_PASSED_A_TURN):
            if not self._ready:
                return
            try:
                held = next(self._ready[0])
            except StopIteration:
                self._ready.popleft()
                continue
            if held is not None and not held.is_let_go:
                self._let_go(held)
                answered += 1
                if answered == _ANSWERED_A_TURN:
                    break
        if self._ready:
            self._ready.rotate(-1)
            self._more_ready.set()

    def wake(self, held: HeldRequest) -> None:
        """Release one request; it runs again at the next `answer_ready`."""
        self._ready.append(iter((held,)))

    def drop_client(self, client: Client) -> None:
        """Drop the pulls of a closed connection."""
        of_client = self._by_client.get(client)
        if of_client is not None:
            self._release(list(of_client.pulls))

    def member_left(self, client: Client, group: str) -> None:
        """Give no message to the held requests of a member that has left its group and closed nothing.

        They stay until they would be answered. Answered now, some clients would send them again.
        """
        of_client = self._by_client.get(client)
        for held in () if of_client is None else of_client.pulls:
            if held.group == group:
                held.may_get_messages = False

    def release_all(self) -> None:
        """Run every held pull again, because the broker is about to stop."""
        self.is_stopping = True
        clients = list(self._by_client.values())
        self._release(held for of_client in clients for held in list(of_client.pulls))

    def release_topic(self, topic: str) -> None:
        """Run the held pulls of a deleted topic again."""
        self._release(self._of_topic(topic, list(self._waiting)))

    def _of_topic(self, topic: str, queues: list[QueueKey]) -> Iterator[HeldRequest | None]:
        for queue in queues:
            if queue[0] == topic:
                yield from _pulls_of(self._waiting.pop(queue, {}).values())
            yield None

    def release_group(self, group: str, queues: Iterable[QueueKey] | None = None) -> None:
        """Run the held pulls of a group in some queues, or in all, again: a check or an offset may have changed."""
        pulls = list(self._by_group.get(group, ()))
        wanted = None if queues is None else set(queues)
        self._release(held if wanted is None or held.queue in wanted else None for held in pulls)

    async def run(self) -> None:
        """Release pulls whose time is up, and answer released ones, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_rest)
            await self._expire()

    async def _expire(self) -> None:
        while True:
            self._earlier_tick = trio.Event()
            if not self._ticks:
                await self._earlier_tick.wait()
                continue
            with trio.move_on_at(self._ticks[0] / _TICKS_A_S):
                await self._earlier_tick.wait()
                continue
            self._release(self._by_tick.pop(heapq.heappop(self._ticks)))

    async def _answer_rest(self) -> None:
        while True:
            await self._more_ready.wait()
            self._more_ready = trio.Event()
            self.answer_ready()
            await trio.lowlevel.checkpoint()

    def _release(self, pulls: Iterable[HeldRequest | None]) -> None:
        """Release pulls one after the other. The iterable must not change meanwhile."""
        self._ready.append(iter(pulls))
        self.answer_ready()

    def _let_go(self, held: HeldRequest) -> None:
        client = held.request.client
        held.is_let_go = True
        self.count -= 1
        self._wait_no_longer(held)
        self._by_tick.get(held.tick, {}).pop(held, None)
        _discard(self._by_group, held.group, held)
        of_client = self._by_client[client]
        del of_client.pulls[held]
        of_client.size -= held.size
        self.held_bytes -= held.size
        if not of_client.pulls:
            del self._by_client[client]
        if client.is_closed:
            held.abandon()
        else:
            held.resume(held.may_get_messages)

    def _wait_no_longer(self, held: HeldRequest) -> None:
        """Remove a pull from the waiting ones, unless messages for it have arrived."""
        filters = self._waiting.get(held.queue, {})
        alike = filters.get(held.message_filter)
        if alike is None or held not in alike.pulls:
            return
        del alike.pulls[held]
        if not alike.pulls:
            del filters[held.message_filter]
            if not filters:
                del self._waiting[held.queue]


def _pulls_of(waiting: Iterable[_Alike]) -> Iterator[HeldRequest]:
    return chain.from_iterable(alike.pulls for alike in waiting)


def _discard(table: dict[K, dict[HeldRequest, None]], key: K, held: HeldRequest) -> None:
    pulls = table[key]
    del pulls[held]
    if not pulls:
        del table[key]


@dataclass(eq=False, repr=False)
class Arrived:
    """Messages that arrived in a queue. Matches them with filters, a bounded number of both."""

    _rows: QueueRows
    _batch: DispatchBatch
    _codes: frozenset[int] | None = field(default=None, init=False)
    _evaluated: int = field(default=0, init=False)

    def may_have_one_for(self, message_filter: MessageFilter | None) -> bool:
        """Whether a filter accepts one of them, or that was not evaluated."""
        if message_filter is None:
            return True
        if isinstance(message_filter, SqlFilter):
            return self._matches_any(message_filter)
        if self._codes is None:
            self._codes = frozenset(tag_hash(int(code)) for code in self._rows.tags_codes)
        return message_filter.matches_all or not self._codes.isdisjoint(message_filter.codes)

    def _matches_any(self, sql_filter: SqlFilter) -> bool:
        rows = self._rows
        self._evaluated += len(rows.sizes) * sql_filter.parts
        if len(rows.sizes) > _LOOKED_AT_MAX or self._evaluated > _EVALUATED_MAX:
            return True  # the pull itself evaluates them, within its limits
        return any(properties is None or sql_filter.matches(properties) for properties in self._batch.properties(rows))


class Arrivals:
    """A dispatcher that wakes services for new messages of their topics, and passes batches on to others."""

    def __init__(self) -> None:
        self._wake: dict[str, Callable[[], None]] = {}
        self._followers: list[Callable[[DispatchBatch], None]] = []

    def follow(self, call: Callable[[DispatchBatch], None]) -> None:
        """Call `call` with every batch."""
        self._followers.append(call)

    def watch(self, topic: str, wake: Callable[[], None]) -> None:
        """Call `wake` whenever messages have been stored in a topic."""
        self._wake[topic] = wake

    def end(self) -> None:
        """Call no follower any more: the end of the store may dispatch a last batch."""
        self._followers.clear()
        self._wake.clear()

    def dispatch(self, batch: DispatchBatch) -> None:
        """Call the followers, and the watchers of the topics in the batch."""
        for call in self._followers:
            call(batch)
        for rows in batch.queues:
            wake = self._wake.get(rows.topic)
            if wake is not None:
                wake()


class ColdReads:
    """Cold reads for one kind of request.

    Args:
        at_once: reads that run concurrently.
        remedy: what a client does after a failed read.
    """

    def __init__(self, at_once: int, remedy: str) -> None:
        self._places = trio.CapacityLimiter(at_once)
        self._remedy = remedy

    async def read(self, client: Client, held: HeldExtents | FilteredGet, read: Callable[[], T]) -> T:
        """Call `read` in a worker thread, once the client has read its earlier answers; then release `held`.

        Args:
            read: a method of `held`.

        Raises:
            Refusal: the read failed.
        """
        try:
            while True:
                async with self._places:
                    if not client.is_crowded:
                        return await trio.to_thread.run_sync(read)
                await client.drained()
        except Exception as error:
            raise Refusal(ErrorCode.INTERNAL, f"reading old messages failed: {error}; {self._remedy}") from error
        finally:
            held.release()


_TAG: Final = ExpressionType.TAG.value
_COMPILED_AT_ONCE_MAX: Final = 256
"""Longer expressions are compiled in steps; one of this length takes a millisecond or two."""


class FilterCheck(Processor):
    """Creates the filters that this broker supports.

    Invariant: the SQL92 expressions in use, by waiting pulls for example, have at most `filters.sql_characters_max`
    characters together.
    """

    def __init__(self, config: FiltersConfig) -> None:
        self._config = config
        self._in_use: weakref.WeakSet[SqlFilter] = weakref.WeakSet()
        self._characters = 0

    @serves(RequestCode.CHECK_CLIENT_CONFIG)
    async def check_client_config(self, request: Request) -> Response:
        """Check a subscription before its consumer starts. A refusal keeps the consumer from starting."""
        subscription = request.content(CheckClientBody).subscription
        if self.takes_long(subscription.expression_type, subscription.sub_string):
            await self.prepare(subscription.sub_string)
        self.filter_of(subscription.expression_type, subscription.sub_string)
        return Response()

    def takes_long(self, expression_type: str | None, expression: str | None) -> bool:
        """Tell whether `filter_of` would compile a long expression, and so delay other clients."""
        return (
            expression_type == ExpressionType.SQL92
            and expression is not None
            and len(expression) > _COMPILED_AT_ONCE_MAX
            and self._config.sql
            and not SqlFilter.is_known(expression)
        )

    async def prepare(self, expression: str) -> None:
        """Compile an SQL92 expression in steps between which other tasks run; `filter_of` then finds the result."""
        with suppress(FilterSyntaxError):
            for _ in SqlFilter.parsing(expression):
                await trio.lowlevel.checkpoint()

    def filter_of(self, expression_type: str | None, expression: str | None) -> MessageFilter | None:
        """Return the filter of an expression, None if it matches every message.

        Args:
            expression_type: `TAG` (also None and the empty text) or `SQL92`.
            expression: the text; for tags None, an empty text and `*` match everything.

        Raises:
            FilterSyntaxError: it cannot be parsed, or its type is unknown.
            Refusal: SQL92 is turned off, or too much of it is in use.
        """
        if expression_type is None or expression_type == _TAG or not expression_type:
            tag_filter = TagFilter.parse(expression)
            return None if tag_filter.matches_all else tag_filter
        if not self._config.sql:
            raise Refusal(
                ErrorCode.UNSUPPORTED_REQUEST,
                f"this broker does not filter messages by {expression_type[:40]}, only by TAG; "
                "set its option filters.sql = true",
                response_code=ResponseCode.SYSTEM_ERROR,
            )
        if expression_type != ExpressionType.SQL92:
            raise FilterSyntaxError(
                f"filters of type {expression_type[:40]!r} are unknown; TAG and SQL92 are served", 0
            )
        sql_filter = SqlFilter.parse(expression or "")
        if sql_filter not in self._in_use:
            self._use(sql_filter)
        return sql_filter

    def filter_of_subscription(self, expression_type: str | None, expression: str | None) -> MessageFilter | None:
        """As `filter_of`, for an expression that came with a heartbeat, which could not refuse it.

        Raises:
            Refusal: for every reason; a bad expression under the code FILTER_DATA_NOT_EXIST, as in RocketMQ.
        """
        try:
            return self.filter_of(expression_type, expression)
        except FilterSyntaxError as error:
            raise Refusal(
                ErrorCode.FILTER_SYNTAX, str(error), response_code=ResponseCode.FILTER_DATA_NOT_EXIST
            ) from None

    def _use(self, sql_filter: SqlFilter) -> None:
        size = len(sql_filter.expression)
        if self._characters + size > self._config.sql_characters_max:
            raise Refusal(
                ErrorCode.BUSY,
                f"SQL92 expressions of {self._characters} characters are in use; use shorter ones, or raise "
                "filters.sql_characters_max",
            )
        self._in_use.add(sql_filter)
        self._characters += size
        weakref.finalize(sql_filter, self._no_longer_used, size).atexit = False

    def _no_longer_used(self, size: int) -> None:
        self._characters -= size
