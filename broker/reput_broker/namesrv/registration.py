"""What name services list of this broker, and announcing it to name servers, Reput's or RocketMQ's (RocketMQ:
BrokerOuterAPI.registerBrokerAll).

Every name server has a task of its own, so that one that is down or slow delays nothing. The broker registers when it
begins to serve, when a topic or its role changes, at intervals, and when a connection to the name server has ended,
because the name server has dropped the broker then. In between it sends heartbeats. A slave registers instead of each
heartbeat, without topics, because the answer names its master.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.config.value_types import is_address
from reput_broker.observe.counters import Counters, NameServerTraffic
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_broker.remoting.request import ClientAnswer, write_in_turns
from reput_broker.tables.config_file import DataVersion
from reput_broker.tables.tables import Tables
from reput_broker.tenure.core import Master, Tenure
from reput_protocol.codes import Perm, RequestCode, ResponseCode
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.namesrv import (
    BrokerHeartbeatHeader,
    RegisterBrokerAnswer,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    UnregisterBrokerHeader,
    body_crc32,
)
from reput_protocol.commands.topic import KVTable, QueueData, TopicConfig, TopicConfigTable
from reput_protocol.errors import InvalidName, ReputError
from reput_protocol.names import group_of_retry_topic
from reput_protocol.wire.header import HeaderType

log = structlog.get_logger(__name__)

_HEARTBEAT_S: Final = 5.0
_RETRY_S: Final = 2.0
_PAUSE_S: Final = 0.1
"""Changes within this time are announced together."""
_TIMEOUT_S: Final = 6.0
_LEAVE_TIMEOUT_S: Final = 1.0
_JSON_BYTES_MAX: Final = 4 << 20
"""A larger list of topics is sent in RocketMQ's compressed form, so that it fits a frame."""
_SILENCE_MS: Final = 30_000
"""After so long without a heartbeat a name server may drop this broker."""


class OwnBroker:
    """What name services list of this broker: the one in it, without a registration, and those that it registers with.

    Args:
        tenure: returns its role now.
    """

    def __init__(self, config: BrokerConfig, tables: Tables, tenure: Callable[[], Tenure]) -> None:
        self.cluster = config.cluster
        self.name = config.broker_name
        self.topics = tables.topics
        self.start_id = secrets.token_hex(8)
        """Tells this start from another broker of the same name behind the advertised address."""
        self.ha_port: int | None = None
        """Where it serves its log; None if it does not."""
        self.lost_master: Callable[[], Master | None] = lambda: None
        """Of a slave: returns the master that it cannot reach any more."""
        self._tables = tables
        self._tenure = tenure
        self._wiped_at: DataVersion | None = None

    @property
    def tenure(self) -> Tenure:
        """Its role now."""
        return self._tenure()

    @property
    def knows_master(self) -> bool:
        """Whether it is the master, or can reach it."""
        tenure = self.tenure
        return tenure.is_master or tenure.master not in (None, self.lost_master())

    def ha_address(self, address: str) -> str:
        """Return where slaves reach its log, if clients reach it at `address`; empty if it serves none."""
        return "" if self.ha_port is None else f"{address.rpartition(':')[0]}:{self.ha_port}"

    def set_ordered(self, ordered: Collection[str]) -> None:
        """Mark these topics as ordered, and no others."""
        self.topics.set_ordered(ordered)
        self._tables.topics_soon.changed()

    def make_retry_topic(self, topic: str) -> bool:
        """Create a group and its retry topic `topic` if that is allowed; return whether the topic exists now."""
        group = group_of_retry_topic(topic)
        if group is None or not self.tenure.is_master:
            return False
        with suppress(InvalidName):
            config = self._tables.groups.find_or_create(group)
            if config is not None:
                self._tables.groups_soon.changed()
                self._tables.make_retry_topic(config)
        return self.topics.get(topic) is not None

    def queue_data(self, config: TopicConfig) -> QueueData:
        """Return the queues of one of its topics as a route has them."""
        perm = config.perm & ~Perm.WRITE if self.is_wiped else config.perm
        return QueueData(self.name, config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag)

    @property
    def is_wiped(self) -> bool:
        """Whether routes show its topics without write permission, until the next change of any topic (RocketMQ: a
        registration with another version).
        """
        return self._wiped_at == self.topics.version

    def wipe_write_perm(self) -> int:
        """Show its topics without write permission; return how many."""
        self._wiped_at = self.topics.version
        return len(self.topics.all())

    def add_write_perm(self) -> int:
        """Show its topics as they are again; return how many."""
        self._wiped_at = None
        return len(self.topics.all())


@dataclass(frozen=True, slots=True)
class Announced:
    """What name servers list of this broker."""

    own: OwnBroker
    address: str
    """Where clients reach it, `host:port`."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a name server answered."""

    master: str
    """The address of this slave's master; empty if the name server knows none."""
    master_ha_address: str
    ordered: Mapping[str, str] | None
    """The ordered topics, with their queue numbers; None if there is no such setting."""


class Registration:
    """Keeps this broker registered with the configured name servers.

    Args:
        on_master: called with the master's addresses for clients and for slaves when a name server names them.
    """

    def __init__(self, config: BrokerConfig, counters: Counters, on_master: Callable[[str, str], None]) -> None:
        self._on_master = on_master
        self._announced: Announced | None = None
        self._servers = [_NameServer(address, config, self) for address in config.name_servers]
        for server in self._servers:
            counters.name_servers[server.address] = server.traffic
        self._disagreement: tuple[str, ...] = ()

    def announce(self, announced: Announced) -> None:
        """Register this broker now, in the role that it has now, and from now on."""
        self._announced = announced
        announced.own.topics.on_change = self._wake
        self._wake()

    @property
    def announced(self) -> Announced | None:
        """What is announced; None before the broker serves and after it has left."""
        return self._announced

    def _wake(self) -> None:
        for server in self._servers:
            server.wake()

    async def run(self) -> None:
        """Register until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for server in self._servers:
                    nursery.start_soon(server.run)
        finally:
            for server in self._servers:
                server.close()

    async def leave(self) -> None:
        """Unregister everywhere, because the broker stops; wait a second at most."""
        announced, self._announced = self._announced, None
        if announced is None:
            return
        async with trio.open_nursery() as nursery:
            for server in self._servers:
                nursery.start_soon(server.leave, announced)

    def heard(self) -> None:
        """Use the answers of the name servers: the first one, as configured, that has a master or ordered topics."""
        announced = self._announced
        if announced is None:
            return
        answers = [server.heard for server in self._servers if server.heard is not None]
        if not announced.own.tenure.is_master:
            masters = tuple(dict.fromkeys(answer.master for answer in answers if answer.master))
            if len(masters) > 1 and masters != self._disagreement:
                log.warning("name_servers_disagree", masters=masters, hint="following the first of them")
            self._disagreement = masters if len(masters) > 1 else ()
            for answer in answers:
                if answer.master:
                    self._on_master(answer.master, answer.master_ha_address)
                    break
            return
        for answer in answers:
            if answer.ordered is not None:
                announced.own.set_ordered(answer.ordered)
                break

    def status(self) -> dict[str, object]:
        """Return what /status shows: the state of each name server."""
        return {server.address: server.state for server in self._servers}


class _NameServer:
    """One name server."""

    def __init__(self, address: str, config: BrokerConfig, registration: Registration) -> None:
        self.address = address
        self.traffic = NameServerTraffic()
        self.heard: Heard | None = None
        self._config = config
        self._registration = registration
        self._client = RemotingClient(address, tls=config.tls, credentials=config.access.credentials())
        self._wanted = trio.Event()
        self._registered: tuple[Announced, int, DataVersion] | None = None
        self._registered_at = 0.0
        self._registered_over = 0
        self._trouble: str | None = None
        self._odd: list[str] = []

    @property
    def state(self) -> str:
        """`registered`, or why not."""
        if self._trouble is not None:
            return self._trouble
        return "registered" if self.traffic.is_registered else "not registered yet"

    def wake(self) -> None:
        """Register soon: something has changed."""
        self._wanted.set()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    async def run(self) -> None:
        """Keep the broker registered, until cancelled."""
        await self._wanted.wait()
        while True:
            self._wanted = trio.Event()
            announced = self._registration.announced
            if announced is not None:
                await self._keep(announced)
            await self._wait()

    async def _wait(self) -> None:
        """Return after a change, the end of the connection, or a while."""
        await trio.sleep(_PAUSE_S)
        with trio.move_on_after(_HEARTBEAT_S if self._trouble is None else _RETRY_S):
            if self._trouble is not None:
                await self._wanted.wait()
                return
            async with trio.open_nursery() as nursery:

                async def until_the_connection_ends() -> None:
                    await self._client.disconnected()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(until_the_connection_ends)
                await self._wanted.wait()
                nursery.cancel_scope.cancel()

    async def _keep(self, announced: Announced) -> None:
        try:
            if self._has_to_register(announced) or not await self._send_heartbeat(announced):
                await self._register(announced)
        except ReputError as error:
            self._note_trouble(str(error))
        else:
            self._note_success()
        self._registration.heard()

    def _has_to_register(self, announced: Announced) -> bool:
        own = announced.own
        now = (announced, own.tenure.broker_id, _version(own))
        return (
            self._registered != now
            or not own.tenure.is_master
            or self._client.connections != self._registered_over
            or trio.current_time() - self._registered_at >= self._config.register_interval
        )

    async def _send_heartbeat(self, announced: Announced) -> bool:
        """Return whether the name server still has the registration."""
        own = announced.own
        header = BrokerHeartbeatHeader(own.cluster, announced.address, own.name)
        answer = await self._call(RequestCode.BROKER_HEARTBEAT, header)
        # RocketMQ before 5.0 knows no heartbeats; it drops a broker after 120 s, and registrations come more often.
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            raise _Refused(self.address, "a heartbeat", answer)
        return self._client.connections == self._registered_over

    async def _register(self, announced: Announced) -> None:
        own = announced.own
        tenure, version = own.tenure, _version(own)
        topics = own.topics.all() if tenure.is_master else {}
        table = RegisterBrokerBody(TopicConfigTable(topics, version.to_json()))
        body = await write_in_turns(table)
        is_large = len(body) > _JSON_BYTES_MAX
        if is_large:
            body = await trio.to_thread.run_sync(table.deflated)
        header = RegisterBrokerHeader(
            own.name,
            announced.address,
            own.cluster,
            own.ha_address(announced.address),
            tenure.broker_id,
            _SILENCE_MS,
            compressed=is_large,
            body_crc32=body_crc32(body),
            start_id=own.start_id,
            is_complete=True,
        )
        answer = await self._call(RequestCode.REGISTER_BROKER, header, body)
        if answer.code != ResponseCode.SUCCESS:
            raise _Refused(self.address, "the registration", answer)
        found = RegisterBrokerAnswer.from_ext(answer.ext)
        ordered = KVTable.from_json(answer.body, is_trusted=True).table if answer.body else None
        master, ha_address = self._usable(found.master_addr, found.ha_server_addr)
        self.heard = Heard(master, ha_address, ordered)
        self._registered = announced, tenure.broker_id, version
        self._registered_at = trio.current_time()
        self._registered_over = self._client.connections
        self.traffic.registrations["ok"] += 1

    def _usable(self, *addresses: str | None) -> list[str]:
        """Return the addresses that a name server named, each empty if none can be there."""
        usable = [address if address and is_address(address) else "" for address in addresses]
        odd = [address for address in addresses if address and address not in usable]
        if odd and odd != self._odd:
            log.warning(
                "addresses_not_usable",
                name_server=self.address,
                addresses=odd,
                hint="correct what the master announces (Reput: advertise; RocketMQ: brokerIP1, brokerIP2)",
            )
        self._odd = odd
        return usable

    async def leave(self, announced: Announced) -> None:
        """Unregister; give up if the name server does not answer soon."""
        if not self.traffic.is_registered:
            return
        own = announced.own
        header = UnregisterBrokerHeader(own.name, announced.address, own.cluster, own.tenure.broker_id)
        self.traffic.is_registered = False
        try:
            await self._call(RequestCode.UNREGISTER_BROKER, header, timeout_s=_LEAVE_TIMEOUT_S)
        except RemoteUnreachable as error:
            log.info("not_unregistered", name_server=self.address, detail=str(error))

    async def _call(
        self, code: int, header: CommandHeader, body: bytes = b"", *, timeout_s: float = _TIMEOUT_S
    ) -> ClientAnswer:
        return await self._client.call(code, header.to_ext(HeaderType.JSON), body, timeout_s=timeout_s)

    def _note_success(self) -> None:
        if not self.traffic.is_registered or self._trouble is not None:
            log.info("registered_with_name_server", name_server=self.address)
        self.traffic.is_registered = True
        self._trouble = None

    def _note_trouble(self, detail: str) -> None:
        """Log the first of several failures in a row, and note that the broker is not registered."""
        if self._trouble is None:
            log.warning(
                "not_registered",
                name_server=self.address,
                detail=detail,
                hint="the registration is retried; clients that ask this name server do not find the broker",
            )
        self._trouble = detail
        self._registered = self.heard = None
        self.traffic.is_registered = False
        self.traffic.registrations["failed"] += 1


class _Refused(ReputError):
    """A name server answered with an error."""

    def __init__(self, address: str, what: str, answer: ClientAnswer) -> None:
        super().__init__(f"{address}: rejected {what} with code {answer.code}: {answer.remark or 'no reason given'}")


def _version(own: OwnBroker) -> DataVersion:
    """Return the version of the topics; its first part is the epoch, so that a later master replaces an earlier one."""
    version = own.topics.version
    return DataVersion(own.tenure.epoch, version.counter, version.timestamp_ms)
