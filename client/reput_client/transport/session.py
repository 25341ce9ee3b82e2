"""The session that every client is built on: addresses, connections, routes and requests."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Final

from typing_extensions import override

from reput_client.errors import (
    AmbiguousQueue,
    BrokerNotFound,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
)
from reput_client.transport.address import Address, parse_addresses
from reput_client.transport.backoff import Backoff
from reput_client.transport.broker_requests import RequestHandlers
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.options import ClientOptions
from reput_client.transport.pump import Pump
from reput_client.transport.routing import RETRY_S, TRY_S, BrokerTable, Route, RouteSearch, RouteTable, have_masters
from reput_client.transport.runtime import CallerRuns, Event, Runtime
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.topic import MASTER_ID, ClusterInfo, RouteHeader, TopicList, TopicRoute
from reput_protocol.errors import (
    BrokerError,
    ErrorCode,
    NotMaster,
    ReputError,
    RequestNotSupported,
    TopicNotFound,
    error_from_response,
)
from reput_protocol.names import DEFAULT_TOPIC
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.header import HeaderType, Value

SILENCE_S: Final = 1.0
"""After this long without a byte, a broker with alternatives is asked whether it is there."""
_LOOK_AGAIN_S: Final = 0.2
_LOOK_LATEST_S: Final = 1.0
"""The pauses between two looks for a master grow from the one to the other, less up to the half at random, and are no
longer than a third of the client's timeout, so that each request has a look."""
_LAST_S: Final = 0.1
"""No look is made so shortly before the deadline: a request that has no time would hide why the others have failed."""
_OUTAGE_S: Final = 5.0
"""A look so long after it was due is for another outage."""
_NOT_MASTER: Final = f"{ErrorCode.NOT_MASTER.name}: "

log = logging.getLogger("reput_client")


class Session:
    """One client's connections and routes. It owns no task; the caller that awaits drives it (see `pump.py`).

    Attributes:
        requests: the handlers of requests from the broker.
        creates_topics: whether messages are sent to topics that do not exist, so that the broker may create them.
        on_lost: called when a connection has ended; must not wait. State bound to the connection must be renewed.
        on_stale_routes: called when routes seem to be old, for a client that does not use them often; must not wait.
    """

    def __init__(self, options: ClientOptions, runtime: Runtime) -> None:
        first, *others = parse_addresses(options.address)
        self.home = first._replace(others=tuple(others))
        self.runtime = runtime
        self.pump = Pump(self.runtime)
        self.requests = RequestHandlers()
        self.creates_topics = True
        self.routes = RouteTable()
        self.brokers = BrokerTable()
        self.timeout_s = options.timeout_s
        self.connect_timeout_s = options.connect_timeout_s
        self._options = options
        self._connections: dict[Address, BrokerConnection] = {}
        self._search = RouteSearch(self.home, runtime, self.brokers, self.connection_to, self.ask)
        self._looks: dict[tuple[str, ...], _Looks] = {}
        """By the brokers of a topic, which topics share."""
        self.on_lost: Callable[[BrokerConnection], None] = lambda _connection: None
        self.on_stale_routes: Callable[[], None] = lambda: None
        self.closed = False
        if isinstance(self.runtime, CallerRuns):
            self.runtime.on_interrupt(self._close_sockets)

    # -- connections -------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise `ClientClosed` if the client is closed."""
        if self.closed:
            raise ClientClosed

    def deadline(self, timeout_s: float | None) -> float:
        """Return the time `timeout_s` (None: the client's default) from now."""
        return self.runtime.now() + (self.timeout_s if timeout_s is None else timeout_s)

    def connection_to(self, address: Address) -> BrokerConnection:
        """Return the connection to `address`, open or not."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BrokerConnection(
                self.runtime,
                self.pump,
                address,
                self._options,
                self.requests.handle,
                lambda connection: self.on_lost(connection),
                self._met,
            )
        return connection

    def known_connection(self, queue: MessageQueue) -> BrokerConnection | None:
        """Return the connection to the master of the queue's broker, open or not, if known."""
        address = self.brokers.masters.get(queue.broker_name)
        return None if address is None else self._connections.get(address)

    async def connect(self) -> None:
        """Connect to the first address that answers, each tried once, so that a wrong address fails at once.

        Raises `ConnectFailed`.
        """
        self.check_open()
        deadline = self.deadline(self.connect_timeout_s)
        await self.connection_to(self.home).open(deadline, patient=False)

    async def open(self, address: Address | None, deadline: float) -> BrokerConnection:
        """Return an open connection to `address`, by default the client's own.

        Raises:
            ConnectFailed: not before the deadline.
            ClientClosed: the client was closed.
        """
        self.check_open()
        connection = self.connection_to(self.home if address is None else address)
        try:
            await connection.open(deadline, patient=True)
        except ConnectFailed:
            self.unreachable(connection.address)
            raise
        return connection

    async def try_to_open(self, address: Address, deadline: float, broker_name: str) -> BrokerConnection:
        """Return an open connection to the named broker's `address`; it is tried once.

        For a short time, if another broker may be its master by now.

        Raises `ConnectFailed` or `ClientClosed`.
        """
        self.check_open()
        connection = self.connection_to(address)
        limit_s = self.connect_timeout_s
        if self.brokers.slaves.get(broker_name) or len(self.brokers.slaves) > 1:
            limit_s = min(limit_s, TRY_S)
        try:
            await connection.open(min(deadline, self.runtime.now() + limit_s), patient=False)
        except ConnectFailed:
            self.unreachable(address)
            raise
        return connection

    def unreachable(self, address: Address) -> None:
        """Refresh the routes of topics at an unreachable address."""
        if address != self.home:
            for name in self.brokers.names_at(address):
                if self.brokers.masters.get(name) == address:
                    self.master_is_stale(name)
                else:
                    self._refresh_soon(name)

    def master_is_stale(self, broker_name: str) -> None:
        """Note that the known master of a broker is not: the routes of its topics are refreshed at their next use, from
        another of the client's addresses. Never waits.
        """
        self._search.distrust()
        self._refresh_soon(broker_name)

    def _refresh_soon(self, broker_name: str) -> None:
        for topic in self.routes.topics_of(broker_name):
            self.routes.refresh_at(topic, -math.inf)
        self.on_stale_routes()

    async def open_for(self, queue: MessageQueue, deadline: float, *, patient: bool = True) -> BrokerConnection:
        """Return an open connection to the master of the queue's broker.

        If it cannot be reached, its address is looked up again until the deadline: another broker of the same name may
        become the master. Not `patient`: it is tried once.

        Raises:
            BrokerNotFound: the route has no address for it, or another broker is there now.
            NotMaster: it is a slave now.
            ConnectFailed, ClientClosed: as `open`.
        """
        while True:
            self.check_open()
            try:
                address = self.brokers.masters.get(queue.broker_name)
                if address is None:
                    address = await self.master_address(queue, deadline, patient=patient)
                connection = self.connection_to(address)
                if not connection.usable():
                    if patient and address == self.home:
                        await self.open(address, deadline)  # which tries each of its addresses
                    else:
                        await self.try_to_open(address, deadline, queue.broker_name)
                if not connection.is_of(queue.broker_name):
                    raise BrokerNotFound(queue.broker_name, queue.topic)
                if connection.is_master:
                    return connection
                self._search.distrust()
                what = f"NOT_MASTER: {connection.place} is a slave of {queue.broker_name} now"
                raise NotMaster(ErrorCode.NOT_MASTER, what)
            except (ConnectFailed, NotMaster):
                if not patient or not await self.look_for_master(queue.topic, deadline):
                    raise
            except BrokerNotFound:
                is_known = bool(self.brokers.slaves.get(queue.broker_name))
                if not (is_known and patient) or not await self.look_for_master(queue.topic, deadline):
                    raise

    async def look_for_master(self, topic: str, deadline: float) -> bool:
        """Look up the brokers of a topic again, a little later than the last time; False if `deadline` came first.

        Without a topic, "", all brokers are looked up. Concurrent calls for the same brokers share a look-up. While the
        masters stay the same, the pauses grow. Whether it succeeds is left to the caller's next attempt.
        """
        try:
            await self._look(topic, deadline, TRY_S)
        except ClientClosed:
            raise
        except ReputError as error:
            log.info("brokers of %s not looked up: %s", topic, error)
        return self.runtime.now() < deadline

    def _looks_of(self, topic: str) -> _Looks:
        brokers = self.routes.brokers_of(topic) or (topic,)
        looks = self._looks.get(brokers)
        if looks is None or (looks.running is None and self.runtime.now() - looks.due_at > _OUTAGE_S):
            looks = self._looks[brokers] = _Looks(self.timeout_s / 3)
        return looks

    async def _look(self, topic: str, deadline: float, limit_s: float = math.inf) -> bool:
        """Look up the brokers of a topic, once that is due. False if another call has done so, and raises errors."""
        runtime, looks = self.runtime, self._looks_of(topic)
        if looks.running is not None:
            await looks.running.wait(deadline - runtime.now())
            return runtime.now() >= deadline
        looks.running = running = runtime.event()
        try:
            if looks.due_at > runtime.now():
                is_late = looks.due_at + _LAST_S > deadline
                await runtime.sleep(max(0.0, (deadline if is_late else looks.due_at) - runtime.now()))
            now, before = runtime.now(), dict(self.brokers.masters)
            if now < deadline:
                try:
                    await self.look_up(topic, min(deadline, now + limit_s))
                finally:
                    if self.brokers.masters != before:
                        looks.pauses.reset()
                    looks.due_at = now + looks.pauses.next_delay_s()
            return True
        finally:
            looks.running = None
            running.set()

    async def look_up(self, topic: str, deadline: float) -> None:
        """Fetch the addresses of a topic's brokers, or of all, if there is no such topic: its broker may say so."""
        if topic:
            with suppress(TopicNotFound):
                await self.fetch_route(topic, deadline)
                return
        await self.cluster(deadline)

    def _met(self, connection: BrokerConnection) -> None:
        """Forget what is known of the home address if another broker, or a slave, is there now."""
        if connection.address == self.home:
            for name in self.brokers.names_at(self.home):
                if connection.is_of(name) and connection.is_master:
                    continue
                self.brokers.forget(name)
                if connection.is_of(name):
                    self.master_is_stale(name)
                    continue
                for topic in self.routes.topics_of(name):
                    self.routes.forget(topic)
                self.on_stale_routes()

    @property
    def connected(self) -> bool:
        """Whether any connection is open."""
        return any(connection.is_open for connection in self._connections.values())

    def poll(self, *, to_the_end: bool = False) -> None:
        """Take what has arrived on the open connections, without waiting.

        `to_the_end`: all of it, so that a connection closed by the broker is known to be lost on return.
        """
        reading = self.pump.reading
        if reading and not to_the_end:
            return  # the reading caller takes it
        self.pump.touch()
        for connection in list(self._connections.values()):
            if connection.is_open:
                while connection.read_ready() and to_the_end:
                    pass
        if reading:
            self.runtime.interrupt()  # the reader's answer may have been taken here

    # -- requests ----------------------------------------------------------------------------------------------

    async def ask(
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
        patient: bool = True,
    ) -> Call:
        """Send an idempotent request and return the answered call, whatever its code.

        It goes to `address`, else to the master of `queue`, else to the client's own address. If the connection is
        lost, it is repeated, with `ext_repeated` in place of `ext` if given, until the deadline, and likewise if the
        queue's broker is not the master any more. Not `patient`: only while `open_for` finds that one at once.

        Raises:
            BrokerNotFound: the queue's broker cannot be found.
            RequestTimeout, ConnectFailed: no answer before the deadline.
            ClientClosed: the client was closed.
        """
        started_at = self.runtime.now()
        if deadline is None:
            deadline = started_at + self.timeout_s
        template = RequestTemplate(code, ext)
        while True:
            if queue is None:
                connection = await self.open(address, deadline)
            else:
                connection = await self.open_for(queue, deadline, patient=patient)
            call = connection.start_template(template, Waiter(), body)
            since = self.runtime.now()
            try:
                # If there is an alternative to a silent broker, it is asked to identify itself; if it does not, its
                # connection is lost and the call fails.
                while not await self.pump.wait(
                    call.waiter, min(deadline, since + SILENCE_S) if connection.has_alternative else deadline
                ):
                    doubtful = connection.doubt(since)
                    since = self.runtime.now()
                    if since >= deadline:
                        break
                    if doubtful:
                        await connection.check(deadline)
            finally:
                if not call.done:
                    connection.abandon(call)
            if not call.done:
                raise RequestTimeout(what, deadline - started_at, connection.silence(started_at))
            if call.error is None:
                if queue is None or not is_not_master(call):
                    return call
                self._search.learn_members(call)
                if not await self.look_for_master(queue.topic, deadline):
                    return call
                continue
            if not isinstance(call.error, ConnectionLost):
                raise call.error
            if self.runtime.now() >= deadline:
                raise RequestTimeout(what, deadline - started_at, call.error) from call.error
            if not patient and connection.is_resting:
                raise connection.failure() from call.error
            if ext_repeated is not None:
                template = RequestTemplate(code, ext_repeated)

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
        """Like `ask`, but every answer except SUCCESS raises `BrokerError`."""
        call = await self.ask(
            code, ext, what=what, address=address, queue=queue, deadline=deadline, body=body, ext_repeated=ext_repeated
        )
        if address is None and queue is None:
            self._check_home(call)
        raise_refusal(call)
        return call

    def _check_home(self, call: Call) -> None:
        """Raise `RequestNotSupported` if the client's own address is not where requests for routes are answered."""
        if call.answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self.connection_to(self.home).is_rocketmq:
            raise RequestNotSupported(
                ErrorCode.UNSUPPORTED_REQUEST,
                f"{self.home} is one of RocketMQ's brokers, which do not serve routes: give the client the "
                "address of a name server",
            )

    # -- routes ------------------------------------------------------------------------------------------------

    async def route(self, topic: str, deadline: float) -> Route:
        """Return the route of `topic` from memory, refreshed in the background every 30 s, or from the broker.

        Raises:
            TopicNotFound: the broker has no such topic.
        """
        route = self.routes.fresh(topic, self.runtime.now())
        if route is None:
            route = self.routes.get(topic)
            if route is None:
                return await self.fetch_route(topic, deadline)
            await self._refresh(topic, deadline)
        return route

    async def fetch_route(self, topic: str, deadline: float) -> Route:
        """Fetch the route of `topic` now. Of several addresses, each is asked until one knows the topic's masters."""
        search = self._search
        for asked in count(1):
            call, asked_at = await search.ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, route_ext(topic), f"route of {topic}", deadline
            )
            search.learn_members(call)
            is_last = asked >= len(search.addresses) or self.runtime.now() >= deadline
            try:
                route, knows_masters = self._learn(topic, call, asked_at)
            except TopicNotFound:
                # A slave may not have the newest topics.
                if search.check_master(call) or is_last:
                    raise
            else:
                if is_last or knows_masters:
                    break
        return route

    async def publish_route(self, topic: str, deadline: float) -> Route:
        """Return the route to send by; for a topic that does not exist yet, the template's.

        Raises:
            TopicNotFound: there is no such topic, and it is not to be created on first use.
        """
        known = self.routes.get(topic)
        if known is not None and not known.template:
            await self._refresh(topic, deadline)
            return known
        try:
            return await self.fetch_route(topic, deadline)
        except TopicNotFound as missing:
            if not self.creates_topics:
                raise
            try:
                template = await self.fetch_route(DEFAULT_TOPIC, deadline)
            except BrokerError:
                raise missing from None
            route = template.as_template_for(topic)
            self.routes.put(route, self.runtime.now())
            return route

    async def _refresh(self, topic: str, deadline: float) -> None:
        """Request the route if it is due for a refresh, without waiting for the answer; connect first, briefly."""
        now = self.runtime.now()
        if not self.routes.is_stale(topic, now):
            return
        # Due again soon: an answer may never come, because the connection ends or the broker is stuck.
        self.routes.refresh_at(topic, now + RETRY_S)
        asked_at = self._search.next_guide() or self.home
        connection = self.connection_to(asked_at)
        try:
            if not connection.is_open:
                await connection.open(min(deadline, now + SILENCE_S), patient=False)
        except ConnectFailed as error:
            log.warning("route of %s not refreshed: %s", topic, error)
            self._search.distrust()
            self.routes.refresh_at(topic, self.runtime.now() + RETRY_S)
        else:
            arrival = _RouteArrival(self, topic, asked_at)
            arrival.call = connection.start_template(
                RequestTemplate(RequestCode.GET_ROUTEINFO_BY_TOPIC, route_ext(topic)), arrival
            )

    def _learn(self, topic: str, call: Call, asked_at: Address) -> tuple[Route, bool]:
        """Take the route from an answer; return it, and whether it has the masters of all brokers."""
        self._check_home(call)
        raise_refusal(call)
        if not call.body:
            raise error_from_response(ResponseCode.TOPIC_NOT_EXIST, f"no route for topic {topic}", {})
        body = TopicRoute.from_json(call.body)
        knows_masters = self._search.learn_brokers(body.broker_datas, call, asked_at)
        route = Route.from_body(topic, body)
        self.routes.put(route, self.runtime.now(), is_complete=knows_masters)
        return route, knows_masters

    async def cluster(self, deadline: float) -> ClusterInfo:
        """Return the brokers of the cluster as the client's own address knows them now."""
        call, asked_at = await self._search.ask(
            RequestCode.GET_BROKER_CLUSTER_INFO, {}, "brokers of the cluster", deadline
        )
        self._check_home(call)
        raise_refusal(call)
        self._search.learn_members(call)
        info = ClusterInfo.from_json(call.body)
        self._search.learn_brokers(info.broker_addr_table.values(), call, asked_at)
        return info

    async def topic_names(self, deadline: float) -> list[str]:
        """Return all topics that the client's own address knows, sorted, those of the system among them."""
        call = await self.ask_ok(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, what="list of topics", deadline=deadline
        )
        return sorted(TopicList.from_json(call.body).topics)

    async def broker_names(self, deadline: float) -> list[str]:
        """Return the names of all brokers, sorted. Of several addresses, each is asked until one knows all masters.

        Raises:
            BrokerNotFound: there is no broker.
        """
        for asked in count(1):
            info = await self.cluster(deadline)
            is_last = asked >= len(self._search.addresses) or self.runtime.now() >= deadline
            if is_last or have_masters(info.broker_addr_table.values()):
                break
        if not info.broker_addr_table:
            raise BrokerNotFound("", "")
        return sorted(info.broker_addr_table)

    async def masters(self, deadline: float) -> dict[str, Address]:
        """Return the address of every broker's master by name, as the client's own address knows them now.

        Raises:
            BrokerNotFound: there is no master.
        """
        found = {name: self.brokers.masters.get(name) for name in await self.broker_names(deadline)}
        masters = {name: address for name, address in found.items() if address is not None}
        if not masters:
            raise BrokerNotFound("", "")
        return masters

    async def is_gone(self, topic: str, deadline: float) -> bool:
        """Whether a topic certainly does not exist any more, after an answer that it does not.

        If a master of each of its brokers is known where routes are asked for, the answer is right: a name server that
        has started again knows no topics of a broker without a master, and a slave may not have the newest topics.
        False if that cannot be found out. Raises `ClientClosed` if the client was closed.
        """
        brokers = self.routes.brokers_of(topic)
        if brokers is None:
            return True
        try:
            there = (await self.cluster(deadline)).broker_addr_table
            has_masters = all(name in there and MASTER_ID in there[name].broker_addrs for name in brokers)
            if has_masters and self.connection_to(self._search.guide or self.home).is_master:
                await self.fetch_route(topic, deadline)
        except TopicNotFound:
            return True
        except ReputError:
            self.check_open()
        return False

    def learn_quietly(self, topic: str, call: Call, asked_at: Address) -> None:
        """Take the answer of a background refresh; after a failure the route stays, and brokers refuse what is gone."""
        try:
            self._learn(topic, call, asked_at)
        except ReputError as error:
            self._search.distrust()
            self.routes.refresh_at(topic, self.runtime.now() + RETRY_S)
            log.warning("route of %s not refreshed: %s", topic, error)

    async def master_address(self, queue: MessageQueue, deadline: float, *, patient: bool = True) -> Address:
        """Return the address of the queue's broker's master; fetches the route again if it is not known.

        Not `patient`: unless that was done a moment ago.

        Raises `BrokerNotFound` if that has no address for it.
        """
        address = self.brokers.masters.get(queue.broker_name)
        has_looked = address is None and not patient and self._looks_of(queue.topic).due_at > self.runtime.now()
        while address is None and not has_looked:
            has_looked = await self._look(queue.topic, deadline)
            address = self.brokers.masters.get(queue.broker_name)
        if address is None:
            raise BrokerNotFound(queue.broker_name, queue.topic)
        return address

    async def queue(
        self, topic: str, queue_id: int, broker_name: str | None, deadline: float | None = None
    ) -> MessageQueue:
        """Return queue `queue_id` of `topic` on the named broker, or on the only one that has it.

        The broker checks whether the queue exists and is readable.

        Raises:
            AmbiguousQueue: several brokers have a queue of that number and none is named.
            BrokerNotFound: the route names no broker.
        """
        if broker_name is None:
            route = await self.route(topic, self.deadline(None) if deadline is None else deadline)
            names = set(route.brokers)
            if len(names) > 1:
                queues = (*route.readable, *route.writable)
                names = {queue.broker_name for queue in queues if queue.queue_id == queue_id} or names
            if len(names) > 1:
                raise AmbiguousQueue(topic, queue_id, sorted(names))
            if not names:
                raise BrokerNotFound("", topic)
            (broker_name,) = names
        return MessageQueue(topic, broker_name, queue_id)

    # -- ending ------------------------------------------------------------------------------------------------

    def _close_sockets(self) -> None:
        """Close only the sockets, after an interrupt has closed the client."""
        for connection in list(self._connections.values()):
            if connection.is_open:
                self.runtime.close_socket(connection.sock)

    def close(self) -> None:
        """Close every connection; waiting callers raise `ClientClosed`. Never waits; idempotent."""
        self.closed = True
        for connection in self._connections.values():
            connection.close()

    def after_fork(self) -> None:
        """In a forked child: abandon the parent's connections and start with none."""
        self.pump.reset()
        for connection in self._connections.values():
            connection.leave_to_parent()


class _Looks:
    """Looks for the masters of some brokers, one at a time."""

    __slots__ = ("due_at", "pauses", "running")

    def __init__(self, pause_max_s: float) -> None:
        self.running: Event | None = None
        self.due_at = -math.inf
        self.pauses = Backoff(min(_LOOK_AGAIN_S, pause_max_s), min(_LOOK_LATEST_S, pause_max_s))


class _RouteArrival(Waiter):
    """Takes the answer of a background route refresh."""

    __slots__ = ("_asked_at", "_session", "_topic", "call")

    def __init__(self, session: Session, topic: str, asked_at: Address) -> None:
        super().__init__()
        self._session = session
        self._topic = topic
        self._asked_at = asked_at
        self.call: Call | None = None

    @override
    def notify(self) -> None:
        super().notify()
        if self.call is not None and not self._session.closed:
            self._session.learn_quietly(self._topic, self.call, self._asked_at)


def raise_refusal(call: Call) -> None:
    """Raise the `BrokerError` of an answered call, by code and remark, unless it is SUCCESS."""
    header = call.answer
    if header.code != ResponseCode.SUCCESS:
        raise error_from_response(header.code, header.remark, header.ext)


def is_not_master(call: Call) -> bool:
    """Whether an answered call was refused because the broker is not the master (`NotMaster`)."""
    header = call.answer
    return bool(header.code) and (header.remark or "").startswith(_NOT_MASTER)


def route_ext(topic: str) -> dict[str, Value]:
    """Return the header fields of a route request."""
    return RouteHeader(topic=topic).to_ext(HeaderType.MSGPACK)


def wall_clock_ms() -> int:
    """Return the time, a message's born time, in ms since 1970."""
    return time.time_ns() // 1_000_000
