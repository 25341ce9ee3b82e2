"""Membership of a group: heartbeats, the list of members, change notifications, requests of administrators, leaving.

A broker identifies a member by its connection. On a new connection the member has to join again; until then its queues
may not be its own.

A member joins at the master and at the slaves of each broker of its topics, as RocketMQ's consumers do. While the
master is away, its queues are read from a slave (not in order: only a master grants locks).

A broker forwards requests of administrators to a member: it reports what it is doing (307) and its progress (221), and
continues at offsets set for the group (220).
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from typing_extensions import override

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.fetcher import Fetcher
from reput_client.consume.group.options import ConsumerOptions
from reput_client.consume.group.subscriptions import consume_from_where
from reput_client.errors import BrokerNotFound, ConnectFailed
from reput_client.transport.address import Address
from reput_client.transport.background import Chore
from reput_client.transport.broker_requests import BrokerRequest, RequestHandlers
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.session import Session
from reput_client.transport.unregistration import unregister
from reput_protocol.codes import ConsumeType, RequestCode
from reput_protocol.commands import consumers
from reput_protocol.commands.group import (
    ConsumerData,
    ConsumerIdsChangedHeader,
    ConsumerList,
    ConsumerListHeader,
    HeartbeatData,
    UnregisterClientHeader,
)
from reput_protocol.commands.offset import ConsumerStatusBody, ConsumerStatusHeader, ResetOffsetBody, ResetOffsetHeader
from reput_protocol.errors import BrokerError, ErrorCode, ReputError

_RETRY_S: Final = 0.25
_SEVERAL_ADDRESSES_S: Final = 5.0
_SLAVE_AFTER_S: Final = 1.0
"""How long a master may be away before a slave is read."""

log = logging.getLogger("reput_client")


class _Source(NamedTuple):
    """Where a broker's queues are read. A slave that becomes the master is another source: it has all commits."""

    address: Address
    is_master: bool


@dataclass(slots=True)
class _Registration:
    """The registration with the broker at one address, which heartbeats renew.

    `epoch`: of the connection by which the broker knows this member, or None; `refusal`: why it was refused.
    """

    due_at: float = 0.0
    failures: int = 0
    epoch: int | None = None
    refusal: BrokerError | None = None


class Membership(Chore):
    """One client's membership of one group, at every broker of its topics; a background chore.

    Attributes:
        client_id: the member's id in the group.
    """

    def __init__(
        self,
        session: Session,
        options: ConsumerOptions,
        *,
        on_change: Callable[[], None],
        on_lost: Callable[[str], None],
        on_failure: Callable[[], None],
    ) -> None:
        """`on_change`: members have changed; `on_lost`: the source of a broker's queues; `on_failure`: `failure`."""
        self.client_id = ""
        self._session = session
        self._options = options
        self._on_change = on_change
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._registrations: dict[Address, _Registration] = {}
        self._sources: dict[str, _Source] = {}
        self._away_since: dict[str, float] = {}
        session.requests.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._ids_changed)
        session.on_lost = self._connection_lost

    @property
    def failure(self) -> BrokerError | None:
        """Why a broker refuses this member, or None. Every heartbeat tries again."""
        for registration in self._registrations.values():
            if registration.refusal is not None and not registration.refusal.retryable:
                return registration.refusal
        return None

    # -- heartbeats --------------------------------------------------------------------------------------------

    @override
    def next_due(self) -> float:
        new = _Registration()
        due_at = min((self._registrations.get(address, new).due_at for address in self._addresses()), default=math.inf)
        for since in self._away_since.values():
            if self._session.runtime.now() < since + _SLAVE_AFTER_S:
                due_at = min(due_at, since + _SLAVE_AFTER_S)
        return due_at

    @override
    async def do(self) -> None:
        """Send the heartbeats that are due; failed ones are repeated soon."""
        try:
            await self.heartbeat()
        except ReputError as error:
            log.warning("group %s: no heartbeat: %s", self._options.group, error)

    async def enter(self, deadline: float) -> None:
        """Register for the first time: while a master is away, wait until there is another, or a slave may be read.

        Raises like `heartbeat`, after the deadline if no broker can be reached.
        """
        failure: ReputError | None = None
        while True:
            try:
                await self.heartbeat()
            except ConnectFailed as error:
                failure = error
            if failure is None or self._sources:
                return
            if not await self._session.look_for_master("", deadline):
                raise failure

    async def heartbeat(self) -> None:
        """Register with the brokers of the topics whose heartbeat is due.

        Raises:
            BrokerError: a broker refuses.
            ConnectFailed, RequestTimeout: no broker can be reached.
        """
        session = self._session
        addresses = self._addresses()
        for address in [address for address in self._registrations if address not in addresses]:
            del self._registrations[address]
        body, group = self._heartbeat_body(), self._options.group
        failure: ReputError | None = None
        for address, name in addresses.items():
            registration = self._registrations.setdefault(address, _Registration())
            if registration.due_at > session.runtime.now():
                continue
            try:
                await self._beat(address, name, registration, body, patient=len(addresses) == 1)
            except ReputError as error:
                session.check_open()
                registration.failures += 1
                retry_s = _RETRY_S if len(addresses) == 1 else _RETRY_S * 2 ** min(registration.failures - 1, 3)
                registration.due_at = session.runtime.now() + retry_s
                if address != session.brokers.masters.get(name):
                    log.info("group %s: no heartbeat to slave %s of %s: %s", group, address, name, error)
                    continue
                failure = failure or error
                if isinstance(error, BrokerError):
                    registration.refusal = error
                log.info("group %s: no heartbeat to broker %s: %s", group, name, error)
        self._update_sources()
        if self.failure is not None:
            self._on_failure()
            raise self.failure
        if failure is not None and (isinstance(failure, BrokerError) or not self._sources):
            raise failure

    async def _beat(
        self, address: Address, name: str, registration: _Registration, body: bytes, *, patient: bool
    ) -> None:
        session = self._session
        deadline = session.deadline(None)
        if not patient:
            await session.try_to_open(address, deadline, name)
        await session.ask_ok(
            RequestCode.HEART_BEAT,
            {},
            what=f"heartbeat of {self._options.group}",
            address=address,
            deadline=deadline,
            body=body,
        )
        registration.failures, registration.refusal = 0, None
        if address == session.brokers.masters.get(name) and not session.connection_to(address).is_master:
            session.master_is_stale(name)
        # So that a silent broker is noticed and looked for elsewhere.
        is_alone = patient and not session.home.others
        interval_s = self._options.heartbeat_interval_s
        if not is_alone:
            interval_s = min(interval_s, _SEVERAL_ADDRESSES_S)
        registration.due_at = session.runtime.now() + interval_s
        epoch = session.connection_to(address).epoch
        if registration.epoch != epoch:
            registration.epoch = epoch
            self._update_sources()

    def soon(self) -> None:
        """Send the next heartbeats now: a broker seems not to know this member."""
        for registration in self._registrations.values():
            registration.due_at = self._session.runtime.now()

    # -- brokers -----------------------------------------------------------------------------------------------

    def _addresses(self) -> dict[Address, str]:
        """Return the masters of all topics with known routes, and after them the slaves, with their brokers' names."""
        routes = map(self._session.routes.get, self._options.subscriptions.all_topics)
        names = sorted({name for route in routes if route is not None for name in route.brokers})
        masters = {self._session.brokers.masters.get(name): name for name in names}
        addresses = {address: name for address, name in masters.items() if address is not None}
        for name in names:
            for _, address in sorted(self._session.brokers.slaves.get(name, {}).items()):
                addresses.setdefault(address, name)
        return addresses

    def _is_registered(self, address: Address) -> bool:
        """Whether the broker there knows this member by the present connection."""
        registration = self._registrations.get(address)
        connection = self._session.connection_to(address)
        return connection.is_open and registration is not None and registration.epoch == connection.epoch

    def source(self, broker_name: str) -> Address | None:
        """Return where the queues of a broker are this member's to read: its master, or a slave if that is away."""
        source = self._sources.get(broker_name)
        return source.address if source is not None and self._is_registered(source.address) else None

    def at_master(self, broker_name: str) -> bool:
        """Whether the master of a broker knows this member, and can take its commits."""
        source = self._sources.get(broker_name)
        return (
            source is not None
            and source.is_master
            and source.address == self._session.brokers.masters.get(broker_name)
            and self._is_registered(source.address)
        )

    def connected_address(self, broker_name: str) -> Address | None:
        """Return where the connection to the source is open: `source` may stand for several addresses to try."""
        address = self.source(broker_name)
        return None if address is None else self._session.connection_to(address).place

    def _update_sources(self) -> None:
        """Determine the sources again, and report those that have changed."""
        now, changed = self._session.runtime.now(), False
        for name in {*self._addresses().values(), *self._sources}:
            found = self._find_source(name, now)
            before = self._sources.get(name)
            if found == before:
                continue
            if before is not None:
                del self._sources[name]
                self._on_lost(name)
            if found is not None:
                self._sources[name] = found
                changed = True
        if changed:
            self._on_change()

    def _find_source(self, name: str, now: float) -> _Source | None:
        session = self._session
        master = session.brokers.masters.get(name)
        if master is not None and self._is_registered(master) and session.connection_to(master).is_master:
            self._away_since.pop(name, None)
            return _Source(master, is_master=True)
        since = self._away_since.setdefault(name, now)
        if not self._options.orderly and now >= since + _SLAVE_AFTER_S:
            for _, address in sorted(session.brokers.slaves.get(name, {}).items()):
                if not self._is_registered(address):
                    continue
                connection = session.connection_to(address)
                if connection.has_alternative and connection.is_master:
                    session.master_is_stale(name)  # it leads now, which the route does not say yet
                else:
                    return _Source(address, is_master=False)
        return None

    def _connection_lost(self, connection: BrokerConnection) -> None:
        registration = self._registrations.get(connection.address)
        if registration is None or registration.epoch is None or self._session.closed:
            return
        registration.epoch, registration.failures, registration.due_at = None, 0, self._session.runtime.now()
        for name in [name for name, source in self._sources.items() if source.address == connection.address]:
            self._session.master_is_stale(name)
            del self._sources[name]
            self._away_since.setdefault(name, self._session.runtime.now())
            self._on_lost(name)

    def _heartbeat_body(self) -> bytes:
        return HeartbeatData(
            self.client_id,
            [
                ConsumerData(
                    self._options.group,
                    ConsumeType.CONSUME_PASSIVELY,
                    self._options.model,
                    consume_from_where(self._options.start),
                    self._options.subscriptions.data(),
                )
            ],
        ).to_json()

    # -- members -----------------------------------------------------------------------------------------------

    async def members(self, address: Address) -> list[str]:
        """Return the client ids of the group's members, as one broker knows them.

        Raises `ReputError` if it does not answer, or knows no member.
        """
        call = await self._session.ask_ok(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            ConsumerListHeader(self._options.group).to_ext(),
            what=f"members of {self._options.group}",
            address=address,
        )
        return ConsumerList.from_json(call.body).consumer_ids

    async def any_members(self) -> list[str]:
        """Return the client ids of the group's members as one of its brokers knows them; raises `ReputError`."""
        failure: ReputError = BrokerNotFound("", "")
        for source in list(self._sources.values()):
            try:
                return await self.members(source.address)
            except ReputError as error:
                self._session.check_open()
                failure = error
        raise failure

    async def leave(self, timeout_s: float) -> None:
        """Unregister from the brokers over open connections; never raises."""
        header = UnregisterClientHeader(self.client_id, consumer_group=self._options.group)
        registered = [address for address in self._registrations if self._is_registered(address)]
        await unregister(self._session, header, zip(registered, registered, strict=True), timeout_s)
        self._registrations.clear()
        self._sources.clear()

    def _ids_changed(self, request: BrokerRequest) -> None:
        if ConsumerIdsChangedHeader.from_ext(request.ext).consumer_group == self._options.group:
            self._on_change()
        request.answer()

    def forget(self) -> None:
        """In a forked child: not a member yet, and distinct from its parent."""
        self._registrations.clear()
        self._sources.clear()
        self._away_since.clear()
        self.client_id = ""


_MIB: Final = 1 << 20


class ForwardedRequests:
    """Answers forwarded requests for one member."""

    def __init__(self, options: ConsumerOptions, fetcher: Fetcher, started_ms: int) -> None:
        self._options = options
        self._fetcher = fetcher
        self._properties = {
            consumers.PROP_CONSUME_ORDERLY: str(options.orderly).lower(),
            consumers.PROP_CONSUME_TYPE: ConsumeType.CONSUME_PASSIVELY.value,
            consumers.PROP_CONSUMER_START_TIMESTAMP: str(started_ms),
        }

    def register(self, requests: RequestHandlers) -> None:
        """Register the handlers."""
        requests.register(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset)
        requests.register(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)
        requests.register(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._status)

    def _reset(self, request: BrokerRequest) -> None:
        """Continue at the new offsets, and drop what was pulled of these queues.

        The next pull would report the same. Messages in flight are finished; those before the new offset count.
        """
        if ResetOffsetHeader.from_ext(request.ext).group == self._options.group:
            for queue, offset in ResetOffsetBody.from_json(request.body).offset_table.items():
                assigned = self._fetcher.queues.get(queue)
                if assigned is not None:
                    log.info("queue %s was set to offset %d", queue, offset)
                    self._fetcher.reset_to(assigned, offset)
            self._fetcher.wake()
        request.answer()

    def _running_info(self, request: BrokerRequest) -> None:
        header = consumers.ConsumerRunningInfoHeader.from_ext(request.ext)
        if self._is_ours(request, header.consumer_group):
            info = consumers.ConsumerRunningInfo(
                {**self._properties, consumers.PROP_CLIENT_VERSION: _client_version()},
                self._options.subscriptions.data(),
                {queue: _queue_info(assigned) for queue, assigned in self._fetcher.queues.items()},
                jstack=_stacks() if header.jstack_enable else None,
            )
            request.answer(body=info.to_json())

    def _status(self, request: BrokerRequest) -> None:
        header = ConsumerStatusHeader.from_ext(request.ext)
        if self._is_ours(request, header.group):
            positions = {
                queue: assigned.progress.position
                for queue, assigned in self._fetcher.queues.items()
                if queue.topic == header.topic
            }
            request.answer(body=ConsumerStatusBody(positions).to_json())

    def _is_ours(self, request: BrokerRequest, group: str) -> bool:
        own = self._options.group
        if group != own:
            request.refuse(ErrorCode.NO_GROUP, f"this client is a member of {own}, not of {group}")
        return group == own


def _queue_info(assigned: AssignedQueue) -> consumers.ProcessQueueInfo:
    position = assigned.progress.position
    held = assigned.progress.in_flight + assigned.undelivered
    return consumers.ProcessQueueInfo(
        commit_offset=assigned.committed or 0,
        cached_msg_min_offset=position if held else 0,
        cached_msg_max_offset=assigned.next_offset - 1 if held else 0,
        cached_msg_count=held,
        cached_msg_size_mib=assigned.held_bytes() // _MIB,
        locked=assigned.locked_until < math.inf,
        dropped=not assigned.is_active,
    )


def _client_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and rarely needed

    try:
        return f"reput {version('reput-client')}"
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "reput"


def _stacks() -> str:
    """Return the stack of each thread of this process, as RocketMQ's clients do."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, in spite of its name
    )
