"""The POP consumer: the broker shares out messages instead of queues, and each is acknowledged by itself."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, Self

from reput_client.consume.group.failures import GiveBack, OnFailure, check_on_failure
from reput_client.consume.group.subscriber import StopSignals, Subscriber, awaited
from reput_client.consume.group.subscriptions import Start, Subscriptions, check_start, parse_topics
from reput_client.pop.fetcher import PopFetcher, Wait
from reput_client.pop.handling import Run, check_invisible
from reput_client.pop.popped import M, PoppedMessage, Settling
from reput_client.received import V
from reput_client.transport.options import ClientOptions, takes
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig, SubscriptionGroupHeader
from reput_protocol.commands.pop import POP_MESSAGES_MAX
from reput_protocol.errors import GroupNotFound, ReputError
from reput_protocol.names import check_client_group


@dataclass(frozen=True, kw_only=True)
class PopConsumerOptions(ClientOptions, Generic[V]):
    """See `PopConsumer`."""

    group: str
    topic: str | None = None
    topics: Iterable[str] | Mapping[str, str] | re.Pattern[str] | None = None
    tags: str = "*"
    sql: str | None = None
    start: Start = "earliest"
    deserializer: Callable[[bytes], V] | None = None
    orderly: bool | None = None
    on_failure: OnFailure | None = None
    wait_for_topic: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_client_group(self.group)
        check_start(self.start)
        check_on_failure(self.on_failure)

    @cached_property
    def subscriptions(self) -> Subscriptions:
        """What is consumed; raises like `PopConsumer`."""
        return parse_topics(self.group, self.topic, self.topics, self.tags, self.sql, retries=False, version=0)


class PopConsumer(Subscriber, Generic[V]):
    """Receives messages that no other member of the group has meanwhile; an async context manager.

        async with PopConsumer(address, group="billing", topic="orders") as consumer:
            for message in await consumer.receive():
                ...
                await message.ack()

    Or `run` calls a handler. Members have no queues of their own: any number of them share even one queue, and a slow
    one holds up only the messages that it has. A message that is not acknowledged within its invisible time is
    redelivered, to any member; after as many redeliveries as the group allows it is a dead letter (docs/pop.md).

    Messages are received from the masters of all brokers of the topics. Tasks may share a consumer.

    Args:
        address: `host:port` of a broker, several separated by commas, or a list of them.
        group: the consumer group. All members must consume the same topics and tags. It is created on first use, where
            brokers permit that.
        topic, topics: one topic, several names, a mapping from names to tags, or a compiled pattern, which consumes all
            topics whose whole name matches, also ones that are created later: with a `start` of "earliest" or "latest"
            from their beginning.
        tags: `*`, or tags joined by `||`, for every topic without its own.
        sql: instead of tags, a SQL92 expression over message properties, evaluated by the broker.
        start: where to begin in a queue for which the group has no offset, as of `Consumer`.
        deserializer: returns `PoppedMessage.value` for a body, such as `Json(Order).deserialize`.
        orderly: receive the messages of a queue in order: the next ones only when those before are acknowledged, or
            visible again. None: as the group's setting `consumeMessageOrderly` says.
        on_failure: what `run` does when a handler raises, as of `Consumer`.
        wait_for_topic: wait for a topic that does not exist; if False, receiving raises `TopicNotFound`.
        timeout_s: seconds a request may take, including connecting.

    Raises:
        InvalidName, FilterSyntaxError, ValueError, TypeError: an argument is not valid.
    """

    @takes(PopConsumerOptions)
    def __init__(self, options: PopConsumerOptions[V]) -> None:
        self.group = options.group
        self._subscriptions = options.subscriptions
        super().__init__(options)
        self._options = options
        self._settling = Settling(self._session, options.group)
        self._fetcher = PopFetcher(
            self._session,
            options.subscriptions,
            self._settling,
            start=options.start,
            wait_for_topic=options.wait_for_topic,
            deserializer=options.deserializer,
        )
        self._runs: set[Run[Any]] = set()
        self._stopped = False

    # -- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, find the topics of a pattern, and read whether the group consumes in order unless `orderly` says it.

        Raises:
            ConnectFailed: no broker responds at the given addresses.
            PermissionDenied: the user may not list the topics for a pattern, or not read the group's settings; for
                these, give `orderly`.
        """
        await super().__aenter__()
        try:
            await self._fetcher.begin()
            orderly = self._options.orderly
            self._fetcher.orderly = await self._is_group_orderly() if orderly is None else orderly
        except BaseException:
            self._session.close()
            raise
        return self

    async def _is_group_orderly(self) -> bool:
        """Read the setting at the first broker that knows the group; a group that does not exist has none."""
        session = self._session
        failure: ReputError | None = None
        for name, address in (await session.masters(session.deadline(None))).items():
            try:
                call = await session.ask_ok(
                    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
                    SubscriptionGroupHeader(self.group).to_ext(),
                    what=f"settings of {self.group} at {name}",
                    address=address,
                )
            except GroupNotFound:
                continue
            except ReputError as error:
                session.check_open()
                failure = failure or error  # others may be there
            else:
                return SubscriptionGroupConfig.from_json(call.body).consume_message_orderly
        if failure is not None:
            raise failure
        return False

    def stop(self) -> None:
        """Receive no more messages: `receive` returns, and `run` does when its handlers are done.

        Never waits; any task may call it.
        """
        self._stopped = True
        for run in self._runs:
            run.stop()
        self._fetcher.end_waiting()

    async def aclose(self) -> None:
        """Close the connections. What `run` has in hand is given back, and is redelivered at once. Idempotent.

        Messages from `receive` that are not acknowledged are redelivered when their invisible times end.
        """
        self.stop()
        try:
            for run in [*self._runs]:
                await self._finish(run)
        finally:
            self._session.close()

    async def _finish(self, run: Run[Any], *, counts: bool = True) -> None:
        finish = partial(run.finish, counts=counts)
        await self._session.runtime.shielded(2 * self._session.timeout_s, finish)

    @property
    def stopped(self) -> bool:
        """Whether no more messages are delivered, because the consumer was stopped or closed."""
        return self._stopped

    @property
    def orderly(self) -> bool:
        """Whether messages are received in order; known once the consumer is entered."""
        return self._fetcher.orderly

    # -- messages ----------------------------------------------------------------------------------------------

    async def receive(
        self, max_messages: int = POP_MESSAGES_MAX, *, invisible_s: float = 60.0, wait_s: float = 15.0
    ) -> list[PoppedMessage[V]]:
        """Return up to `max_messages` messages, at most 32; waits up to `wait_s` seconds if there are none.

        For `invisible_s` seconds no other member receives them. Messages of one queue are in order. A call that is
        cancelled while it waits has taken none.

        Raises:
            TopicNotFound: there is no such topic, and `wait_for_topic` is False.
            FilterRefused: the broker cannot parse `sql`; says where.
            PermissionDenied, BrokerError: refused.
            RequestTimeout, ConnectFailed, BrokerNotFound: no broker of the topics answers in time.
            RecordMalformed: the answer has no records.
        """
        return await self._receive_as(PoppedMessage, max_messages, invisible_s, wait_s)

    async def _receive_as(self, kind: type[M], max_messages: int, invisible_s: float, wait_s: float) -> list[M]:
        """Like `receive`, with messages of a class of the caller."""
        check_invisible(invisible_s)
        if max_messages < 1 or wait_s < 0:
            raise ValueError("max_messages must be 1 or more, wait_s 0 or more")
        self._session.check_open()
        if self._stopped:
            return []
        until = self._session.runtime.now() + wait_s
        return await self._fetcher.receive(kind, max_messages, invisible_s, until, Wait())

    async def ack(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge several messages, with one request for each broker.

        Raises:
            PartlyAcknowledged: some are not acknowledged, or it is unknown; it says which, and why.
        """
        await self._settling.ack_all(messages)

    async def run(
        self,
        handler: Callable[[PoppedMessage[V]], Awaitable[object]],
        *,
        concurrency: int = 1,
        invisible_s: float = 60.0,
        handle_signals: bool = True,
    ) -> None:
        """Call `handler` with every message, up to `concurrency` at a time, until the consumer is stopped or closed.

        A message is acknowledged when its handler returns, unless that has settled it. While a handler runs, however
        long, its message's invisible time of `invisible_s` is extended; if this process dies, the message is
        redelivered after that time. When a handler raises, `on_failure` decides. If that ends `run`, the exception is
        raised, with `concurrency` above 1 in an exception group.

        At the end, also when it is cancelled, handled messages are acknowledged, and all others given back, so that
        the group receives them at once.

        SIGTERM and SIGINT (Ctrl-C) stop the consumer, as in `Consumer.run`; not with `handle_signals=False`.

        Raises:
            TypeError: `handler` takes other arguments, or is a plain function; no message counts as handled.
            BrokerError: a permanent refusal. While brokers are away, this waits.
        """
        handler = awaited(handler)
        if self._tracing is not None:
            handler = self._tracing.handler(handler, self.group)
        with StopSignals(self._session.runtime, self.stop, enabled=handle_signals):
            run = self._begin_run(PoppedMessage, concurrency, invisible_s)
            try:
                if concurrency > 1:
                    await run.run_concurrently(handler)
                else:
                    await run.run_one_by_one(handler)
            finally:
                await self._end_run(run)

    def _begin_run(self, kind: type[M], concurrency: int, invisible_s: float, *, ahead: bool = True) -> Run[M]:
        """Return a new run, for code that calls handlers in its own way."""
        self._session.check_open()
        run = Run(
            kind,
            self._session,
            self._fetcher,
            self._settling,
            self._options.on_failure or GiveBack(),
            invisible_s=invisible_s,
            concurrency=concurrency,
            ahead=ahead,
        )
        if self._stopped:
            run.stop()
        self._runs.add(run)
        run.begin()
        return run

    async def _end_run(self, run: Run[Any], *, counts: bool = True) -> None:
        """End a run: give back what is not handled; `counts` as of `Run.finish`."""
        self._runs.discard(run)
        await self._finish(run, counts=counts)

    def _after_fork(self) -> None:
        """In a forked child: abandon the parent's connections and runs."""
        super()._after_fork()
        self._fetcher.forget()
        for run in self._runs:
            run.forget()
        self._runs.clear()
