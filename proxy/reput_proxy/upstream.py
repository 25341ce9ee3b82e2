"""The clients by which the proxy acts at the brokers for one user, and what they know of topics and groups."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from reput_client import TLS, Credentials, Producer
from reput_client.consume.offsets import OffsetRequests
from reput_client.errors import BrokerNotFound
from reput_client.pop.settling import Settling
from reput_client.transport.session import Session
from reput_protocol.codes import AckLevel, RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig, SubscriptionGroupHeader
from reput_protocol.commands.topic import GetTopicConfigHeader, TopicConfig
from reput_protocol.errors import GroupNotFound, PermissionDenied, ReputError, TopicNotFound
from reput_protocol.wire.header import HeaderType, Value
from reput_proxy.receiving import Receivers
from reput_proxy.transactions import Transactions

T = TypeVar("T")

PRODUCER_GROUP: Final = "reput-proxy"
TIMEOUT_S: Final = 3.0
"""How long a request to a broker takes at most, unless its caller has less time."""
_KNOWN_S: Final = 10.0
"""How long settings of topics and groups are believed."""
_KNOWN_MAX: Final = 10_000


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


class Known(Generic[T]):
    """Answers of brokers, each kept for a short time; concurrent questions for one name share a request."""

    def __init__(self, ask: Callable[[str], Awaitable[T]]) -> None:
        self._ask = ask
        self._answers: OrderedDict[str, tuple[float, asyncio.Future[T]]] = OrderedDict()

    async def get(self, name: str) -> T:
        """Return what `ask` returns for `name`, or has returned a short time ago; raises what it raises."""
        loop = asyncio.get_running_loop()
        until, answer = self._answers.get(name, (0.0, None))
        if answer is None or loop.time() >= until:
            answer = asyncio.ensure_future(self._ask(name))
            answer.add_done_callback(lambda done: self._forget_failure(name, done))
            self._answers[name] = loop.time() + _KNOWN_S, answer
            self._answers.move_to_end(name)
            if len(self._answers) > _KNOWN_MAX:
                self._answers.popitem(last=False)
        return answer.result() if answer.done() else await asyncio.shield(answer)

    def _forget_failure(self, name: str, done: asyncio.Future[T]) -> None:
        if done.cancelled() or done.exception() is not None:
            known = self._answers.get(name)
            if known is not None and known[1] is done:
                del self._answers[name]


class Upstream:
    """One user's clients. They share their connections; transactions have some of their own.

    Args:
        options: how the brokers are reached.
        credentials: the user; None: requests are not signed.
        transactions: makes what the user's transactions need.
    """

    def __init__(
        self,
        options: BrokerOptions,
        credentials: Credentials | None,
        transactions: Callable[[Upstream], Transactions],
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
        self.session: Session = self.producer._session
        self.offsets = OffsetRequests(self.session)
        self.receivers = Receivers(self.session)
        self.transactions = transactions(self)
        self.topics = Known(self._topic)
        self.groups = Known(self._group)

    def settling(self, group: str) -> Settling:
        """Return what settles messages of a group."""
        return Settling(self.session, group)

    async def _topic(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings; None if it does not exist yet, or the user may not read them."""
        try:
            route = await self.session.route(topic, self.session.deadline(None))
        except TopicNotFound:
            return None
        ext = GetTopicConfigHeader(topic).to_ext(HeaderType.MSGPACK)
        return await self._first(
            RequestCode.GET_TOPIC_CONFIG, ext, f"settings of {topic}", TopicConfig.from_json, route.brokers
        )

    async def _group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings; None if it does not exist yet, or the user may not read them."""
        masters = await self.session.masters(self.session.deadline(None))
        ext = SubscriptionGroupHeader(group).to_ext(HeaderType.MSGPACK)
        return await self._first(
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            ext,
            f"settings of {group}",
            SubscriptionGroupConfig.from_json,
            masters,
        )

    async def _first(
        self,
        code: RequestCode,
        ext: Mapping[str, Value],
        what: str,
        parse: Callable[[bytes], T],
        brokers: Iterable[str],
    ) -> T | None:
        """Return the first answer of a broker that has what is asked for; None if all say that they have not.

        Raises:
            ReputError: a broker has not answered, and no other has it: the order of a group must not be guessed.
        """
        failure: ReputError | None = None
        for name in brokers:
            address = self.session.brokers.master(name)
            if address is None:
                failure = failure or BrokerNotFound(name, "")
                continue
            try:
                call = await self.session.ask_ok(code, ext, what=what, address=address)
            except (TopicNotFound, GroupNotFound, PermissionDenied):
                continue
            except ReputError as error:
                self.session.check_open()
                failure = failure or error
            else:
                return parse(bytes(call.body))
        if failure is not None:
            raise failure
        return None

    async def aclose(self) -> None:
        """Close all connections."""
        self.receivers.close()
        await self.transactions.aclose()
        await self.producer.aclose()
