"""The brokers of the cluster: where they are, whether they answer, and if not, since when.

A task asks each of them every few seconds for what any client may ask, so that one that is away is known before a page
asks it, and delays none. Name servers are asked for brokers of other groups; without them a broker knows its own group.

Requests are signed, those of pages with their user's secret. So only these brokers are asked: those that have
registered with this one, which needs the right to replicate; those whose addresses `name_servers` has; and with
`tls.connect`, which checks certificates, all that name servers list. Without TLS, a program between this broker and a
name server, or one that may register there, could name an address of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from reput_broker.access.model import Account
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.topic import ClusterInfo
from reput_protocol.errors import BrokerError, ErrorCode, ReputError

if TYPE_CHECKING:
    from reput_client.admin import Admin

TIMEOUT_S: Final = 1.5
"""Time that another broker has to answer."""
_WATCH_S: Final = 5.0
_LISTED_S: Final = 2.0
_FORGOTTEN_AFTER_S: Final = 24 * 3600
"""A broker that no name service lists any more is shown as away for so long."""
_MEMBERS_MAX: Final = 64
_UNPROVEN: Final = (
    "it is not asked, because only a name server without TLS lists it: set tls.connect, or add its address to "
    "name_servers"
)

ListOwn = Callable[[], Awaitable[ClusterInfo]]
"""Asks this broker for the brokers of the cluster."""


@dataclass(slots=True)
class Member:
    """A broker of the cluster.

    Attributes:
        broker_id: as announced; 0 is the master.
        listed_ms: when a name service listed it last.
        heard_ms: when it answered last; None: never, since this broker started.
        away_ms: since when it has not answered; None: it answers, or was not asked yet.
        error: why it does not answer.
        not_asked: why it is not asked; empty: it is.
    """

    address: str
    cluster: str
    broker_name: str
    broker_id: int
    is_own: bool
    listed_ms: int
    heard_ms: int | None = None
    away_ms: int | None = None
    error: str = ""
    not_asked: str = ""


class Members:
    """Knows the brokers of the cluster.

    Args:
        list_own: asks this broker for those that it knows; raises ReputError while it does not serve.
        own_addresses: returns the addresses under which this broker may be listed.
        clock_ms: the time of day.
    """

    def __init__(
        self,
        config: BrokerConfig,
        list_own: ListOwn,
        own_addresses: Callable[[], Iterable[str]],
        clock_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._list_own = list_own
        self._own_addresses = own_addresses
        self._clock_ms = clock_ms
        self._members: dict[str, Member] = {}
        self._remotes: dict[str, RemotingClient] = {}
        self._listed_at = -_LISTED_S
        access = config.access
        self._asks_all = config.tls.connect or not (access.enabled or access.credentials())

    async def run(self) -> None:
        """Ask all of them every few seconds, until cancelled."""
        try:
            while True:
                await self._list()
                async with trio.open_nursery() as nursery:
                    for address in self._config.name_servers:
                        nursery.start_soon(self._ask_name_server, address)
                    for member in [*self._members.values()]:
                        if not member.is_own and not member.not_asked:
                            nursery.start_soon(self._ask, member)
                self._forget()
                await trio.sleep(_WATCH_S)
        finally:
            for remote in self._remotes.values():
                remote.close()

    async def all(self) -> list[Member]:
        """Return the brokers by name and id, this one among them once it serves."""
        if trio.current_time() - self._listed_at >= _LISTED_S:
            await self._list()
        return sorted(self._members.values(), key=lambda member: (member.broker_name, member.broker_id, member.address))

    async def at(self, address: str) -> Member:
        """Return the broker with an address.

        Raises:
            BrokerError: there is none, it is away, or it is not asked.
        """
        found = {member.address: member for member in await self.all()}.get(address)
        if found is None:
            raise BrokerError(ErrorCode.NOT_FOUND, f"no broker of this cluster has the address {address[:80]!r}")
        if found.not_asked:
            raise BrokerError(ErrorCode.NO_PERMISSION, f"{found.broker_name} at {found.address}: {found.not_asked}")
        if found.away_ms is not None:
            raise _unavailable(found)
        return found

    def heard(self, member: Member) -> None:
        """Note that a broker has answered."""
        member.heard_ms, member.away_ms, member.error = self._clock_ms(), None, ""

    def missed(self, member: Member, error: str) -> None:
        """Note that a broker has not answered."""
        member.error = error
        if member.away_ms is None:
            member.away_ms = self._clock_ms() if member.heard_ms is None else member.heard_ms

    @contextmanager
    def noting(self, member: Member) -> Iterator[None]:
        """Note, by how the block ends, whether a broker has answered. Raises what the block raises.

        One that could not be connected to is reported as BrokerError (NOT_READY).
        """
        from reput_client.errors import ConnectFailed, RequestTimeout

        try:
            yield
        except ConnectFailed as error:
            self.missed(member, error.reason)
            raise _unavailable(member) from error
        except RequestTimeout as error:
            self.missed(member, str(error))
            raise
        self.heard(member)

    # What name services list

    async def _list(self) -> None:
        try:
            info = await self._list_own()
        except ReputError:
            return  # it does not serve now; the others are still where they were
        self._listed_at = trio.current_time()
        self._take(info, is_proven=True)

    async def _ask_name_server(self, address: str) -> None:
        try:
            answer = await self._remote(address).call(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=TIMEOUT_S)
            if answer.code == ResponseCode.SUCCESS:
                self._take(ClusterInfo.from_json(answer.body, is_trusted=True), is_proven=self._asks_all)
        except ReputError:
            pass  # the page of the cluster shows which name servers answer

    def _take(self, info: ClusterInfo, *, is_proven: bool) -> None:
        own, now_ms = {*self._own_addresses()}, self._clock_ms()
        own_places = {(one.broker_name, one.broker_id) for one in self._members.values() if one.is_own}
        listed = {
            address: (name, broker_id)
            for name, data in info.broker_addr_table.items()
            if data.cluster == self._config.cluster
            for broker_id, address in data.broker_addrs.items()
        }
        for address, place in listed.items():
            member, is_own = self._members.get(address), address in own
            if member is None:
                if place in own_places and not is_own:
                    continue  # this broker, under an address that it does not know
                self._forget_moved(place, listed)
                if len(self._members) >= _MEMBERS_MAX:
                    continue
                member = Member(address, self._config.cluster, *place, is_own, now_ms, not_asked=_UNPROVEN)
                self._members[address] = member
            if is_proven or is_own or address in self._config.name_servers:
                member.not_asked = ""
            member.broker_name, member.broker_id = place
            member.listed_ms = now_ms

    def _forget_moved(self, place: tuple[str, int], listed: Collection[str]) -> None:
        """Forget a broker that is at a new address."""
        for address, member in [*self._members.items()]:
            is_there = member.is_own or address in listed
            if (member.broker_name, member.broker_id) == place and member.away_ms is not None and not is_there:
                self._drop(address)

    def _forget(self) -> None:
        now_ms = self._clock_ms()
        for address, member in [*self._members.items()]:
            if now_ms - member.listed_ms > 1000 * _FORGOTTEN_AFTER_S:
                self._drop(address)

    def _drop(self, address: str) -> None:
        del self._members[address]
        remote = self._remotes.pop(address, None)
        if remote is not None:
            remote.close()

    # Whether they answer

    async def _ask(self, member: Member) -> None:
        try:
            # Whatever the answer is, it is there.
            await self._remote(member.address).call(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=TIMEOUT_S)
        except RemoteUnreachable as error:
            self.missed(member, error.reason)
        except ReputError as error:
            self.missed(member, str(error))
        else:
            self.heard(member)

    def _remote(self, address: str) -> RemotingClient:
        remote = self._remotes.get(address)
        if remote is None:
            config = self._config
            remote = self._remotes[address] = RemotingClient(
                address, tls=config.tls, credentials=config.access.credentials()
            )
        return remote


class AskedCluster:
    """The brokers of the cluster, asked with the rights of a page's user; None: without access control."""

    def __init__(self, members: Members, config: BrokerConfig, user: Account | None) -> None:
        self._config = config
        self._user = user
        self.all, self.heard, self.missed = members.all, members.heard, members.missed

    async def admin(self, member: Member) -> Admin:
        """Return a client of another broker, which connects when it is entered."""
        from reput_broker.console.own_client import member_admin
        from reput_client.security import TLS, Credentials

        user, options = self._user, self._config.tls
        credentials = None
        if user is not None:
            # RocketMQ's form could be used for other requests, and no broker that has these pages needs it.
            credentials = Credentials(user.name, user.secret.decode(), rocketmq_signatures=False)
        tls = None
        if options.connect:
            tls = TLS(
                ca=options.ca or None,
                cert=options.cert or None,
                key=(options.key or None) if options.cert else None,
                server_name=options.server_name or None,
            )
        return member_admin(member.address, member.broker_name, TIMEOUT_S, credentials, tls)


def _unavailable(member: Member) -> BrokerError:
    return BrokerError(ErrorCode.NOT_READY, f"{member.broker_name} at {member.address} is unavailable: {member.error}")
