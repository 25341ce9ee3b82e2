"""The connections to the brokers of one user, and the transactions of the user's clients.

A broker checks with any member of the producer group of a half message. gRPC producers have no groups, so the group is
named like the topic, as with RocketMQ's proxy, and the proxy is a member of it: from the first half message that it
sends to the topic, and from when a producer of the topic connects, if the topic is of type TRANSACTION or the proxy has
sent one there before. It stays one when the user gets a new secret. Everything that ends a transaction is in its id, so
that any proxy can end it. The brokers' checks go to a client over its Telemetry stream.
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from reput_client import TLS, Credentials, Producer
from reput_client.consume.offsets import OffsetRequests
from reput_client.errors import BrokerNotFound
from reput_client.pop.popped import Settling
from reput_client.produce.transaction_checks import HalfPlace
from reput_client.produce.transactions import TransactionProducer
from reput_client.received import ReceivedMessage
from reput_client.transport.broker_requests import BrokerRequest
from reput_client.transport.session import Session
from reput_protocol.codes import AckLevel, RequestCode, TransactionState
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.group import SubscriptionGroupConfig, SubscriptionGroupHeader
from reput_protocol.commands.topic import GetTopicConfigHeader, TopicConfig
from reput_protocol.commands.transaction import CheckTransactionHeader, EndTransactionHeader
from reput_protocol.errors import BrokerError, GroupNotFound, PermissionDenied, ReputError, TopicNotFound
from reput_protocol.names import check_send_topic
from reput_protocol.record.message import Message, MessageQueue
from reput_protocol.wire.header import HeaderType
from reput_proxy import log
from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import ms_of, to_client
from reput_proxy.pops import Pops
from reput_proxy.rejections import ID_BYTES_MAX, Code, Rejected, check_broker, check_name, check_size, ok

PRODUCER_GROUP: Final = "reput-proxy"
TIMEOUT_S: Final = 3.0
"""How long a request to a broker takes at most, unless its caller has less time."""
_LINGER_S: Final = 0.0006
"""How long a message waits for those of others at most, for each other send that may be under way. It takes the proxy
about as long to pass one on."""
_LINGER_MAX_S: Final = 0.01
_PAUSE_S: Final = 0.0005
"""Nothing more is waited for when for so long no send has begun, and as many are under way as before."""
_FORGOTTEN: Final = 1 / 8
"""By how much each send lowers the number of those that may be under way, until as many are again."""
_RECOVERY_MAX_S: Final = 3600
_TOPICS_MAX: Final = 1000
"""Topics with transactions; each has a connection to each broker."""
_TRIES: Final = 30
_RETRY_S: Final = 1.0
_STATES: Final = {pb.COMMIT: TransactionState.COMMIT, pb.ROLLBACK: TransactionState.ROLLBACK}
T = TypeVar("T")

_KNOWN_S: Final = 10.0
"""How long settings of topics and groups are believed."""
_KNOWN_MAX: Final = 10_000
_TRY_S: Final = 1.0
"""How long one of several brokers may take: clients do not wait for one that hangs until their own deadlines."""


@dataclass(frozen=True)
class BrokerOptions:
    """How the brokers are reached.

    Attributes:
        server: `host:port` of a broker or name server, several separated by commas.
        tls: how to encrypt; None: not at all.
        ack: how safe a message is when its client gets the response, see `Producer`.
    """

    server: str
    tls: TLS | None = None
    ack: AckLevel = AckLevel.FLUSHED


class GatheredSends:
    """The sends of one producer, which leave in blocks, since one costs a broker about as much as a message.

    A client that sends alone waits for no other.
    """

    def __init__(self, producer: Producer) -> None:
        self._gathering = producer._gathering
        self._under_way = 0
        self._most = 0.0
        """How many were under way lately."""
        self._begun_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count a send while it is under way, and set how long it and the next ones wait."""
        self._under_way += 1
        self._most = max(self._under_way, self._most - _FORGOTTEN)
        self._gathering.linger_s = min(_LINGER_S * (self._most - 1), _LINGER_MAX_S)
        if self._most > 1:
            loop = asyncio.get_running_loop()
            self._begun_at = loop.time()
            if self._timer is None and self._under_way >= self._most:
                self._timer = loop.call_later(_PAUSE_S, self._look)
        try:
            yield
        finally:
            self._under_way -= 1

    def _look(self) -> None:
        """Let the messages leave, unless further sends have begun meanwhile."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._begun_at + _PAUSE_S:
            self._timer = loop.call_at(self._begun_at + _PAUSE_S, self._look)
        else:
            self._timer = None
            self._gathering.send_now()


@dataclass(eq=False, repr=False)
class Known(Generic[T]):
    """Answers of brokers, each kept for a short time; concurrent questions for one name share a request.

    If no broker can be asked then, because it is away, or a name server, the last answer counts for a further time. One
    that there is no such name, None, does not.
    """

    _ask: Callable[[str], Awaitable[T | None]]
    _answers: OrderedDict[str, tuple[float, asyncio.Future[T | None]]] = field(default_factory=OrderedDict, init=False)

    async def get(self, name: str) -> T | None:
        """Return what `ask` returns for `name`, or has returned a short time ago; raises what it raises."""
        loop = asyncio.get_running_loop()
        until, answer = self._answers.get(name, (0.0, None))
        if answer is None or loop.time() >= until:
            answer = asyncio.ensure_future(self._ask_again(name, answer))
            answer.add_done_callback(lambda done: self._forget_failure(name, done))
            self._answers[name] = loop.time() + _KNOWN_S, answer
            self._answers.move_to_end(name)
            if len(self._answers) > _KNOWN_MAX:
                self._answers.popitem(last=False)
        return answer.result() if answer.done() else await asyncio.shield(answer)

    async def _ask_again(self, name: str, last: asyncio.Future[T | None] | None) -> T | None:
        try:
            return await self._ask(name)
        except ReputError as error:
            found = None if last is None or not last.done() or last.exception() else last.result()
            if found is None or (isinstance(error, BrokerError) and not error.retryable):
                raise
            return found

    def _forget_failure(self, name: str, done: asyncio.Future[T | None]) -> None:
        if done.cancelled() or done.exception() is not None:
            known = self._answers.get(name)
            if known is not None and known[1] is done:
                del self._answers[name]


def settings_of_topics(session: Session) -> Known[TopicConfig]:
    """Return the settings of topics; None for one that does not exist yet, or that the user may not read."""

    async def ask(topic: str) -> TopicConfig | None:
        try:
            route = await session.route(topic, session.deadline(None))
        except TopicNotFound:
            return None
        return await _first(
            session,
            RequestCode.GET_TOPIC_CONFIG,
            GetTopicConfigHeader(topic),
            f"settings of {topic}",
            TopicConfig.from_json,
            route.brokers,
            missing=(TopicNotFound, PermissionDenied),
        )

    return Known(ask)


def settings_of_groups(session: Session) -> Known[SubscriptionGroupConfig]:
    """Return the settings of groups; None for one that does not exist yet.

    Asking for one that the user may not read raises `PermissionDenied`: whether a group consumes in order must not be
    guessed.
    """

    async def ask(group: str) -> SubscriptionGroupConfig | None:
        return await _first(
            session,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            SubscriptionGroupHeader(group),
            f"settings of {group}",
            SubscriptionGroupConfig.from_json,
            await session.masters(session.deadline(None)),
            missing=(GroupNotFound,),
        )

    return Known(ask)


async def _first(
    session: Session,
    code: RequestCode,
    header: CommandHeader,
    what: str,
    parse: Callable[[bytes], T],
    brokers: Iterable[str],
    *,
    missing: tuple[type[ReputError], ...],
) -> T | None:
    """Return the first answer of a broker that has what is asked for; None if all say that they have not.

    Args:
        missing: the errors that say so.

    Raises:
        ReputError: a broker has not answered, and no other has it.
    """
    failure: ReputError | None = None
    names = [*brokers]
    for name in names:
        address = session.brokers.masters.get(name)
        if address is None:
            failure = failure or BrokerNotFound(name, "")
            continue
        try:
            ext = header.to_ext(HeaderType.MSGPACK)
            deadline = session.deadline(None if name == names[-1] else _TRY_S)
            call = await session.ask_ok(code, ext, what=what, address=address, deadline=deadline)
        except missing:
            continue
        except ReputError as error:
            session.check_open()
            failure = failure or error
        else:
            return parse(bytes(call.body))
    if failure is not None:
        raise failure
    return None


class Upstream:
    """The connections to the brokers of one user, and what uses them; transactions have some of their own.

    Args:
        options: how the brokers are reached.
        credentials: the user; None: requests are not signed.
        ask_producer: sends a command to a client of the user that produces to a topic; False without one.
    """

    def __init__(
        self,
        options: BrokerOptions,
        credentials: Credentials | None,
        ask_producer: Callable[[str, pb.TelemetryCommand], bool],
    ) -> None:
        self.options = options
        self.credentials = credentials
        self.producer = Producer(
            options.server,
            group=PRODUCER_GROUP,
            ack=options.ack,
            timeout_s=TIMEOUT_S,
            tls=options.tls,
            credentials=credentials,
        )
        self.sends = GatheredSends(self.producer)
        self.session: Session = self.producer._session
        self.offsets = OffsetRequests(self.session)
        self.pops = Pops(self.session)
        self.topics = settings_of_topics(self.session)
        self.groups = settings_of_groups(self.session)
        self.transactions = Transactions(self, ask_producer)

    def settling(self, group: str) -> Settling:
        """Return what settles messages of a group."""
        return Settling(self.session, group)

    def transaction_producer(self, topic: str) -> TransactionProducer:
        """Return a producer for the half messages of a topic, which is a member of the topic's group."""
        return TransactionProducer(
            self.options.server,
            group=topic,
            check=_leave_open,
            ack=self.options.ack,
            timeout_s=TIMEOUT_S,
            tls=self.options.tls,
            credentials=self.credentials,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        self.pops.close()
        await self.transactions.aclose()
        await self.producer.aclose()


async def _leave_open(_message: ReceivedMessage) -> TransactionState:
    """Never called: checks go to clients."""
    return TransactionState.UNKNOWN


class TransactionId(NamedTuple):
    """Where the half message of a transaction is."""

    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    unique_id: str

    @classmethod
    def of(cls, half: HalfPlace) -> TransactionId:
        """Return the id for a place."""
        queue = half.queue
        return cls(queue.broker_name, queue.queue_id, half.queue_offset, half.physical_offset, half.unique_id)

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(" ".join(map(str, ("v1", *self))).encode()).decode()

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """Read an id; raises `Rejected` if it is not one."""
        check_size("the transaction id", text, ID_BYTES_MAX, Code.INVALID_TRANSACTION_ID)
        try:
            version, name, *numbers, unique_id = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
            queue_id, queue_offset, physical_offset = (int(number) for number in numbers if len(number) < 20)
            if version == "v1" and min(queue_offset, physical_offset) >= 0:
                return cls(name, queue_id, queue_offset, physical_offset, unique_id)
        except ValueError:
            pass
        raise Rejected(Code.INVALID_TRANSACTION_ID, f"{text[:80]!r} is not the id of a transaction of this proxy")


@dataclass(eq=False, repr=False)
class Transactions:
    """The transactions of one user's clients.

    Args:
        upstream: the connections of the user.
        ask_producer: sends a command to a client of the user that produces to a topic; False without one.
    """

    _upstream: Upstream
    _ask_producer: Callable[[str, pb.TelemetryCommand], bool]
    _producers: dict[str, TransactionProducer] = field(default_factory=dict, init=False)
    """By topic."""
    _closed: bool = field(default=False, init=False)

    @property
    def topics(self) -> tuple[str, ...]:
        """Those whose checks are answered."""
        return (*self._producers,)

    async def send(
        self, given: pb.Message, message: Message, ordering_key: str | None, timeout_s: float
    ) -> pb.SendResultEntry:
        """Store a half message."""
        check_after_s: float | None = None
        if given.system_properties.HasField("orphaned_transaction_recovery_duration"):
            check_after_s = ms_of(given.system_properties.orphaned_transaction_recovery_duration) / 1000
            if check_after_s > _RECOVERY_MAX_S:
                raise Rejected(Code.BAD_REQUEST, f"a transaction is checked after {_RECOVERY_MAX_S} s at most")
        producer = self._producer(message.topic)
        assert message.unique_id is not None, "the client gives it"
        receipt, half = await producer._send_half(message, check_after_s or None, None, ordering_key, timeout_s)
        return pb.SendResultEntry(
            status=ok(),
            message_id=message.unique_id,
            transaction_id=str(TransactionId.of(half)),
            offset=receipt.queue_offset,
        )

    async def end(self, request: pb.EndTransactionRequest, timeout_s: float) -> None:
        """Commit or roll back.

        Raises:
            Rejected: the id or the resolution is not valid.
            TransactionEnded: it was ended the other way.
            ReputError: the broker has not accepted it; it will check.
        """
        topic = request.topic.name
        check_name(check_send_topic, topic, Code.ILLEGAL_TOPIC)
        found = TransactionId.parse(request.transaction_id)
        state = _STATES.get(request.resolution)
        if state is None:
            raise Rejected(Code.BAD_REQUEST, "the resolution is COMMIT or ROLLBACK")
        session = self._upstream.session
        deadline = session.deadline(timeout_s)
        await check_broker(session, topic, found.broker_name, Code.INVALID_TRANSACTION_ID, deadline)
        header = EndTransactionHeader(
            producer_group=topic,
            tran_state_table_offset=found.queue_offset,
            commit_log_offset=found.physical_offset,
            commit_or_rollback=int(state),
            from_transaction_check=request.source == pb.SOURCE_SERVER_CHECK,
            msg_id=found.unique_id,
            transaction_id=found.unique_id,
            topic=topic,
        )
        await session.ask_ok(
            RequestCode.END_TRANSACTION,
            header.to_ext(HeaderType.MSGPACK),
            what=f"end of transaction {found.unique_id}",
            queue=MessageQueue(topic, found.broker_name, found.queue_id),
            deadline=deadline,
        )

    async def producer_connected(self, topics: Sequence[str]) -> None:
        """Answer checks of these topics, which a client produces to, if they are for transactions; never raises."""
        for topic in topics:
            await self._take_checks(topic, is_for_transactions=False)

    async def resume(self, topics: Sequence[str]) -> None:
        """Answer checks of these topics, as the user's connections before did; never raises."""
        await asyncio.gather(*(self._take_checks(topic, is_for_transactions=True) for topic in topics))

    async def _take_checks(self, topic: str, *, is_for_transactions: bool) -> None:
        """Become a member of a topic's group. Without `is_for_transactions` its type says whether."""
        reason = ""
        for _ in range(_TRIES):
            if self._closed:
                return
            try:
                if not is_for_transactions:
                    config = await self._upstream.topics.get(topic)
                    if config is None or config.message_type != "TRANSACTION":
                        return
                await self._producer(topic)._presence.begin()
            except (ReputError, Rejected) as error:
                reason = str(error)
                # The broker may know a new secret a little later.
                if not is_for_transactions and not (isinstance(error, ReputError) and error.retryable):
                    break
                await asyncio.sleep(_RETRY_S)
            else:
                return
        log.warning("transaction_checks_not_taken", topic=topic, error=reason)

    def _producer(self, topic: str) -> TransactionProducer:
        producer = self._producers.get(topic)
        if producer is None:
            if len(self._producers) >= _TOPICS_MAX:
                raise Rejected(Code.TOO_MANY_REQUESTS, f"a proxy has transactions of {_TOPICS_MAX} topics at most")
            producer = self._producers[topic] = self._upstream.transaction_producer(topic)
            requests = producer._session.requests
            requests.unregister(RequestCode.CHECK_TRANSACTION_STATE)  # it would call `check`, which has no handle
            requests.register(RequestCode.CHECK_TRANSACTION_STATE, lambda request: self._check(topic, request))
        return producer

    def _check(self, topic: str, request: BrokerRequest) -> None:
        """Pass a check on to a client that produces to the topic; without one the broker asks again later."""
        header = CheckTransactionHeader.from_ext(request.ext)
        session = self._producers[topic]._session
        names = session.brokers.names_at(request.connection.address)
        message = ReceivedMessage.of_record(bytes(request.body), header.broker_name or (names[0] if names else ""))
        request.answer()
        half = HalfPlace(message.queue, header.tran_state_table_offset, header.commit_log_offset, message.message_id)
        try:
            command = pb.TelemetryCommand(
                recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                    message=to_client(message, pb.Resource(name=topic)), transaction_id=str(TransactionId.of(half))
                )
            )
        except ReputError as error:
            log.warning("transaction_not_checked", topic=topic, message_id=half.unique_id, error=str(error))
            return
        if not self._ask_producer(topic, command):
            log.info("no_producer_for_check", topic=topic, message_id=half.unique_id)

    async def aclose(self) -> None:
        """Leave all groups."""
        self._closed = True
        for producer in self._producers.values():
            await producer.aclose()
        self._producers.clear()
