"""What all requests of a proxy share, and what each has: who sends it, and how long it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from reput_client import Credentials
from reput_client.pop.popped import Settling
from reput_proxy import messaging_pb2 as pb
from reput_proxy.clients import ClientKey, ClientTable, Renewals
from reput_proxy.rejections import Code, Rejected
from reput_proxy.spans import Spans
from reput_proxy.upstream import TIMEOUT_S, BrokerOptions, Upstream
from reput_proxy.users import UserGone, Users

T = TypeVar("T")

_RECEIVES_MAX: Final = 10_000


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    sent: int = 0
    received: int = 0
    acknowledged: int = 0
    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    """By method and code."""

    def count(self, method: str, code: int) -> None:
        """Count a response."""
        key = method, code
        self.requests[key] = self.requests.get(key, 0) + 1


class Proxy:
    """The state of a proxy. Another proxy needs none of it.

    Args:
        options: how the brokers are reached.
        advertised: the address that routes name; None: the one that the client has dialled.
        users: the users whose signatures are checked; None: requests need no signature.
        credentials: the user for all requests, where `users` is None.
        spans: makes spans of calls; None: there are none.
    """

    def __init__(
        self,
        options: BrokerOptions,
        *,
        advertised: pb.Endpoints | None = None,
        users: Users | None = None,
        credentials: Credentials | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.advertised = advertised
        self.users = users
        self.spans = spans
        self.clients = ClientTable()
        self.renewals = Renewals(self.clients.is_there, self._settling)
        self.counters = Counters()
        self._draining = asyncio.Event()
        self.receives = 0
        self._receives_max = _RECEIVES_MAX
        self._options = options
        self._credentials = credentials
        self._upstreams: dict[str, Upstream] = {}
        self._expected_back: set[ClientKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to renew."""
        self.spawn(self.renewals.run())

    def upstream(self, user: str, secret: str | None) -> Upstream:
        """Return the connections to the brokers of a user; new ones if its secret has changed."""
        known = self._upstreams.get(user)
        credentials = self._credentials if secret is None else Credentials(user, secret)
        if known is not None and known.credentials == credentials:
            return known
        found = Upstream(self._options, credentials, partial(self.clients.ask_producer, user))
        self._upstreams[user] = found
        if known is not None:
            self.spawn(found.transactions.resume(known.transactions.topics))
            self.spawn(_close_later(known))
        return found

    def follow_users(self) -> None:
        """Let the connections of users have their present secrets, and close those of users that may not sign any more.

        Transactions send heartbeats by themselves. Brokers would reject them for ever, and slow down this address.
        """
        assert self.users is not None
        for user in [*self._upstreams]:
            secret = self.users.secret_of(user)
            if secret is None:
                self.spawn(_close_later(self._upstreams.pop(user)))
            else:
                self.upstream(user, secret)

    def _settling(self, user: str, group: str) -> Settling:
        """Return what settles messages of a group, with the connections that a user has now; raises `UserGone`."""
        if user not in self._upstreams:
            raise UserGone(f"user {user!r} may not sign any more")
        return self._upstreams[user].settling(group)

    @property
    def draining(self) -> bool:
        """Whether the proxy is going to end."""
        return self._draining.is_set()

    def check_stays(self) -> None:
        """Raise `Rejected` if the proxy is going to end, for what would wait here."""
        if self.draining:
            raise Rejected(Code.INTERNAL_SERVER_ERROR, "the proxy stops; connect to another one, or again later")

    async def unless_draining(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what `work` returns; None, and it is cancelled, if the proxy is going to end before."""
        ends, task = asyncio.ensure_future(self._draining.wait()), asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, ends), return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            ends.cancel()
            task.cancel()

    @contextmanager
    def waiting_receive(self) -> Iterator[None]:
        """Count a receive while it waits.

        Raises:
            Rejected: too many wait, or the proxy is going to end.
        """
        self.check_stays()
        if self.receives >= self._receives_max:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"{self.receives} receives wait already")
        self.receives += 1
        try:
            yield
        finally:
            self.receives -= 1

    def give_back_unless_back(self, client: ClientKey) -> None:
        """Give back what a push consumer has, whose stream has ended, unless it is heard or opens one soon."""
        if self.renewals.has(client) and client not in self._expected_back:
            self._expected_back.add(client)
            self.spawn(self._give_back_unless_back(client))

    async def _give_back_unless_back(self, client: ClientKey) -> None:
        await asyncio.sleep(self.clients.away_s)
        self._expected_back.discard(client)
        if not self.clients.is_there(client):
            await self.renewals.give_back_all(client)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which must not raise, until the proxy ends."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def is_ready(self) -> bool:
        """Whether the proxy serves and a broker answers; with users, one of them asks, if there is any.

        Raises:
            ReputError: why no broker answers.
        """
        if self.draining:
            return False
        user: tuple[str, str | None] | None = ("", None) if self.users is None else self.users.first()
        if user is None:
            return True  # no request of a client is accepted either
        session = self.upstream(*user).session
        return bool(await session.broker_names(session.deadline(None)))

    def drain(self) -> None:
        """End what waits, so that clients go to another proxy; requests are still answered."""
        self._draining.set()
        for upstream in self._upstreams.values():
            upstream.pops.end_waiting()
        self.clients.end_all()

    async def aclose(self) -> None:
        """Close all connections to brokers."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstream in self._upstreams.values():
            await upstream.aclose()
        self._upstreams.clear()


async def _close_later(upstream: Upstream) -> None:
    """End the waits of an upstream, and close it when its requests that have begun have had their time."""
    upstream.pops.end_waiting()
    try:
        await asyncio.sleep(TIMEOUT_S)
    finally:
        await upstream.aclose()


@dataclass(frozen=True, slots=True)
class Call:
    """A request.

    Attributes:
        proxy: what all requests share.
        upstream: the connections to the brokers of its user.
        user: the user's name; empty without access control.
        client_id: as the client names itself; empty if it does not.
        remaining_s: how long the client waits for the answer.
        trace: the trace context of the call or of its span (W3C: traceparent, tracestate), which its messages get.
    """

    proxy: Proxy
    upstream: Upstream
    user: str
    client_id: str
    remaining_s: float
    trace: Mapping[str, str]

    @property
    def client_key(self) -> ClientKey:
        """What the client's messages and streams are kept under."""
        return self.user, self.client_id

    def check_client_id(self) -> None:
        """Raise `Rejected` if the client does not name itself."""
        if not self.client_id:
            raise Rejected(Code.CLIENT_ID_REQUIRED, "the metadata x-mq-client-id is missing")

    def now_ms(self) -> int:
        """Return the time in ms since 1970."""
        return time.time_ns() // 1_000_000

    @property
    def timeout_s(self) -> float:
        """How long a request to a broker may take, so that its error reaches the client.

        One of 0.5, 1.5, 2.5, ... seconds, since sends with the same timeout share a block: clients wait for whole
        seconds, of which up to 0.4 are over when a busy proxy gets to their calls.
        """
        return max(0.25, min(int(self.remaining_s + 0.4), 30) - 0.5)
