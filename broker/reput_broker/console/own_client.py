"""Clients of a single broker: of the one in this process, which need no connection, and of another one of the cluster.

Imported when the first page is asked for: a broker whose console is not used does not load the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from reput_broker.remoting.request import Response
from reput_client.admin import Admin
from reput_client.produce.producer import Producer
from reput_client.security import TLS, Credentials
from reput_client.transport.address import Address
from reput_client.transport.aio import AnyioRuntime
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.options import ClientOptions
from reput_client.transport.routing import Route
from reput_client.transport.session import Session, raise_refusal, route_ext
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import MASTER_ID, BrokerData, ClusterInfo, TopicRoute
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.header import HeaderType, Value

log = structlog.get_logger(__name__)

Ask = Callable[[int, Mapping[str, Value], bytes], Awaitable[Response]]
"""Makes a request: code, fields and body."""

_PRODUCER_GROUP: Final = "reput-console"
_ADDRESS: Final = "127.0.0.1:1"
"""Stands for this broker; nothing connects to it."""
_TIMEOUT_S: Final = 60.0
"""More time than a page may take."""


@dataclass(frozen=True)
class _Options(ClientOptions):
    """Options that take no user from the broker's environment."""

    def __post_init__(self) -> None:
        """Take the fields as they are."""


_OWN_OPTIONS: Final = _Options(_ADDRESS, timeout_s=_TIMEOUT_S)
_NOT_USED: Final = Credentials("console", "is not signed")
"""A client on a session that exists has those of the session."""


def own_admin(ask: Ask, broker_name: str) -> OneBrokerAdmin:
    """Return a client whose only broker is this one. It needs no connecting and no closing."""
    return OneBrokerAdmin(_OwnSession(ask, broker_name))


class OneBrokerAdmin(Admin):
    """A client with one broker."""

    def __init__(self, session: Session) -> None:
        self._given = session
        super().__init__(_ADDRESS, credentials=_NOT_USED)

    def _new_session(self, _options: ClientOptions) -> Session:
        return self._given

    def producer(self) -> Producer:
        """Return a producer on the same session."""
        return _OneBrokerProducer(self._given)


class _OneBrokerProducer(Producer):
    """A producer with one broker."""

    def __init__(self, session: Session) -> None:
        self._given = session
        super().__init__(_ADDRESS, group=_PRODUCER_GROUP, deduplicate=False, credentials=_NOT_USED)

    def _new_session(self, _options: ClientOptions) -> Session:
        return self._given


def member_admin(
    address: str, broker_name: str, connect_timeout_s: float, credentials: Credentials | None, tls: TLS | None
) -> OneBrokerAdmin:
    """Return a client whose only broker is another one of the cluster; a context manager, which connects.

    Args:
        address: where clients reach the broker.
        broker_name: its name, so that routes have its queues only.
        connect_timeout_s: time that it has to accept a connection.
        credentials: the user whose requests they are; None: they are not signed.
        tls: how to encrypt; None: not at all.
    """
    options = _Options(
        address, timeout_s=_TIMEOUT_S, connect_timeout_s=connect_timeout_s, credentials=credentials, tls=tls
    )
    return OneBrokerAdmin(_OneBrokerSession(options, broker_name))


class _OneBrokerSession(Session):
    """A session with one broker, whatever its role."""

    def __init__(self, options: ClientOptions, broker_name: str) -> None:
        super().__init__(options, AnyioRuntime())
        self._own = BrokerData("", broker_name, {MASTER_ID: str(self.home)})
        self.brokers.learn(self._own, self.home)

    async def open_for(self, queue: MessageQueue, deadline: float, *, patient: bool = True) -> BrokerConnection:
        """Return the connection to the broker."""
        del queue, patient
        connection = self.connection_to(self.home)
        await connection.open(deadline, patient=False)
        return connection

    async def look_for_master(self, topic: str, deadline: float) -> bool:
        """Look for no other broker."""
        del topic, deadline
        return False

    async def fetch_route(self, topic: str, deadline: float) -> Route:
        """Return the part of a route that is the broker's."""
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        call = await self.ask(code, route_ext(topic), what=f"route of {topic}", deadline=deadline)
        raise_refusal(call)
        name = self._own.broker_name
        queues = [data for data in TopicRoute.from_json(call.body).queue_datas if data.broker_name == name]
        route = Route.from_body(topic, TopicRoute(queues, [self._own]))
        self.routes.put(route, self.runtime.now())
        return route

    async def cluster(self, deadline: float) -> ClusterInfo:
        """Return the broker only."""
        del deadline
        return ClusterInfo({self._own.broker_name: self._own})

    async def queue(
        self, topic: str, queue_id: int, broker_name: str | None, deadline: float | None = None
    ) -> MessageQueue:
        """Return a queue of the broker."""
        del broker_name, deadline
        return MessageQueue(topic, self._own.broker_name, queue_id)


class _OwnSession(_OneBrokerSession):
    """A session with the broker in this process."""

    def __init__(self, ask: Ask, broker_name: str) -> None:
        super().__init__(_OWN_OPTIONS, broker_name)
        self._own_connection = _OwnConnection(self, ask)

    def connection_to(self, address: Address) -> BrokerConnection:
        """Return what stands for the connection to this broker."""
        del address
        return self._own_connection


class _OwnConnection(BrokerConnection):
    """What stands for the connection: each request is a task, which ends when the request is abandoned."""

    def __init__(self, session: Session, ask: Ask) -> None:
        super().__init__(
            session.runtime, session.pump, session.home, _OWN_OPTIONS, lambda _request: None, lambda _lost: None
        )
        self._ask_broker = ask
        self._tasks: dict[Call, trio.CancelScope] = {}

    @property
    def is_open(self) -> bool:
        """Whether requests can be made: always."""
        return True

    def usable(self) -> bool:
        """See `is_open`."""
        return True

    async def open(self, deadline: float, *, patient: bool) -> None:
        """Do nothing: it is open."""

    def start_template(self, template: RequestTemplate, waiter: Waiter, body: Buffer = b"") -> Call:
        """Begin a request."""
        call = Call(0, waiter)
        call.sent = True
        scope = self._tasks[call] = trio.CancelScope()

        async def perform() -> None:
            with scope:
                try:
                    response = await self._ask_broker(template.code, template.ext, bytes(body))
                    call.finish(response.header(0, HeaderType.MSGPACK), memoryview(response.body))
                except ReputError as error:
                    call.fail(error)
                except Exception as error:
                    log.exception("console_request_failed", code=template.code)
                    call.fail(ReputError(f"the request failed: {error!r}"))

        self._runtime.spawn(perform, lambda: self._tasks.__delitem__(call))
        return call

    def abandon(self, call: Call) -> bool:
        """End a request whose answer is not wanted any more. It may have been handled."""
        if call in self._tasks:
            self._tasks[call].cancel()
        return False
