"""Which brokers are registered, and which topics they have (RocketMQ: RouteInfoManager).

A broker registers with all its topics, again at intervals. It is dropped when it leaves, when the connection of its
last registration ends, and when it has been silent for as long as it announced, or 120 s. The broker that the name
service runs in is listed without a registration, and so are the other members of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from reput_broker.namesrv.members import GroupMembers
from reput_broker.namesrv.registration import OwnBroker
from reput_broker.remoting.request import Client
from reput_broker.tables.config_file import DataVersion
from reput_protocol.codes import Perm
from reput_protocol.commands.namesrv import RegisterBrokerAnswer, RegisterBrokerHeader, UnregisterBrokerHeader
from reput_protocol.commands.topic import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicRoute,
)
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

SILENCE_S: Final = 120.0
"""After so long without a registration or heartbeat a broker is dropped, unless it announced another time."""
_ROUTED_S: Final = 30.0
"""Routes, which clients follow, have members of the own group that were there so lately, and no master that this broker
has lost; operators see the others too.
"""
_UNIT = 0x1
_UNIT_SUB = 0x2


class BrokerIdTaken(ReputError):
    """Another broker has the name and id of one that registers. Nothing was changed."""

    def __init__(self, header: RegisterBrokerHeader, holder: str) -> None:
        super().__init__(
            f"broker {header.broker_name} of cluster {header.cluster_name} has its id {header.broker_id} at {holder} "
            f"already, and {header.broker_addr} wants it too; give one of them another id or name"
        )


class _Live(Struct, eq=False):
    """A registration."""

    header: RegisterBrokerHeader
    version: DataVersion
    client: Client | None
    """Its connection; None if this broker has closed it."""
    seen_at: float
    timeout_s: float


class _Broker(Struct):
    """The registered members of one broker name."""

    cluster: str
    addresses: dict[int, str]
    acts_for_master: bool


class RouteInfoManager:
    """The table. One owner; nothing in it waits.

    Args:
        own: the broker around the name service; None if it runs alone.
        clock: seconds of a monotonic clock.
    """

    def __init__(self, own: OwnBroker | None, clock: Callable[[], float]) -> None:
        self.own = own
        self.members = GroupMembers(clock)
        """Of the group of the broker around the name service."""
        self._clock = clock
        self._live: dict[str, _Live] = {}  # by address
        self._brokers: dict[str, _Broker] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}  # by topic and broker name
        self._keeps = False

    # Registration

    def register(
        self, header: RegisterBrokerHeader, table: TopicConfigTable, client: Client, own_address: str
    ) -> RegisterBrokerAnswer:
        """Take a registration; return where the master of a slave is.

        Args:
            own_address: where it reaches the broker around this name service.

        Raises:
            BrokerIdTaken: another broker has this name and id, and its epoch (the state version) is later.
        """
        version = DataVersion.from_json(table.data_version)
        if self._is_own(header):
            return RegisterBrokerAnswer()
        before = self._live.get(header.broker_addr)
        if before is not None and before.client is not None and client.opened_at < before.client.opened_at:
            # A partition held it up, with perhaps another role, while the broker connected again.
            return RegisterBrokerAnswer()
        self._check_id_is_free(header, version)
        if before is not None and before.header.broker_name != header.broker_name:
            self._drop(before, f"it is {header.broker_name} now")
            before = None
        broker = self._brokers.get(header.broker_name)
        if broker is None:
            broker = self._brokers[header.broker_name] = _Broker(header.cluster_name, {}, False)
        broker.cluster = header.cluster_name
        broker.acts_for_master = bool(header.enable_acting_master)
        self._take_address(broker, header)
        timeout_ms = header.heartbeat_timeout_millis
        timeout_s = SILENCE_S if timeout_ms is None else timeout_ms / 1000
        self._live[header.broker_addr] = _Live(header, version, client, self._clock(), timeout_s)
        is_master = header.broker_id == MASTER_ID
        if is_master or (broker.acts_for_master and header.broker_id == min(broker.addresses)):
            is_new = before is None or before.version != version
            self._take_topics(header, table, is_new=is_new, may_write=is_master)
        if before is None or before.header.broker_id != header.broker_id:
            log.info(
                "broker_registered",
                broker=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_addr,
                cluster=header.cluster_name,
                topics=len(table.topics),
            )
        return RegisterBrokerAnswer() if is_master else self._master_of(header, own_address)

    def _is_own(self, header: RegisterBrokerHeader) -> bool:
        """Tell whether the broker around this name service registers with it; it is listed anyway."""
        return self.own is not None and header.start_id == self.own.start_id

    def _check_id_is_free(self, header: RegisterBrokerHeader, version: DataVersion) -> None:
        own = self.own
        if (
            own is not None
            and own.name == header.broker_name
            and own.tenure.broker_id == header.broker_id
            and own.tenure.epoch >= version.state_version
        ):
            raise BrokerIdTaken(header, "the broker of this name server")
        broker = self._brokers.get(header.broker_name)
        holder = broker.addresses.get(header.broker_id) if broker is not None else None
        if broker is None or holder in (None, header.broker_addr):
            return
        live = self._live.get(str(holder))
        if live is not None and live.version.state_version > version.state_version:
            raise BrokerIdTaken(header, str(holder))

    def _take_address(self, broker: _Broker, header: RegisterBrokerHeader) -> None:
        """Note the id of an address: what had either before is replaced."""
        address = header.broker_addr
        addresses = {number: known for number, known in broker.addresses.items() if known != address}
        replaced = addresses.get(header.broker_id)
        if replaced is not None:
            self._live.pop(replaced, None)
            log.warning(
                "broker_replaced",
                broker=header.broker_name,
                broker_id=header.broker_id,
                address=address,
                before=replaced,
            )
        addresses[header.broker_id] = address
        broker.addresses = addresses

    def _take_topics(
        self, header: RegisterBrokerHeader, table: TopicConfigTable, *, is_new: bool, may_write: bool
    ) -> None:
        name = header.broker_name
        if header.is_complete:
            for topic in [topic for topic, at in self._topics.items() if name in at and topic not in table.topics]:
                self._forget(topic, name)
        for topic, config in table.topics.items():
            known = self._topics.get(topic)
            # What an administrator changed here stays until the broker changes a topic.
            if is_new or known is None or name not in known:
                data = _queue_data(name, config)
                if not may_write:
                    data = replace(data, perm=data.perm & ~Perm.WRITE)
                self._topics.setdefault(topic, {})[name] = data

    def _master_of(self, header: RegisterBrokerHeader, own_address: str) -> RegisterBrokerAnswer:
        broker = self._brokers[header.broker_name]
        address = broker.addresses.get(MASTER_ID)
        live = None if address is None else self._live.get(address)
        if live is not None:
            return RegisterBrokerAnswer(live.header.ha_server_addr, address)
        own = self.own
        if own is None or own.name != header.broker_name:
            return RegisterBrokerAnswer()
        tenure = own.tenure
        if tenure.is_master:
            return RegisterBrokerAnswer(own.ha_address(own_address), own_address)
        master = tenure.master
        return RegisterBrokerAnswer() if master is None else RegisterBrokerAnswer(master.ha_address, master.address)

    def heartbeat(self, address: str) -> None:
        """Note that a registered broker is alive; others are ignored, and will register."""
        live = self._live.get(address)
        if live is not None:
            live.seen_at = self._clock()

    def unregister(self, header: UnregisterBrokerHeader) -> None:
        """Drop a broker that leaves."""
        live = self._live.get(header.broker_addr)
        if live is not None:
            self._drop(live, "it unregistered", is_orderly=True)

    def client_gone(self, client: Client) -> None:
        """Drop the broker whose last registration came from a connection that has ended."""
        for live in [live for live in self._live.values() if live.client is client]:
            if self._keeps:
                live.client = None
            else:
                self._drop(live, "its connection ended")

    @contextmanager
    def kept_without_connections(self) -> Iterator[None]:
        """Keep the registered brokers although this one closes all connections, because its role changes: they connect
        again, or are dropped as silent.
        """
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            for live in self._live.values():
                live.client = None  # closed by now, and perhaps not reported as gone yet

    def drop_silent(self) -> None:
        """Drop the brokers that have been silent for too long."""
        now = self._clock()
        for live in [live for live in self._live.values() if now - live.seen_at > live.timeout_s]:
            self._drop(live, f"it was silent for {live.timeout_s:g} s")
            if live.client is not None:
                live.client.close("idle")

    def _drop(self, live: _Live, reason: str, *, is_orderly: bool = False) -> None:
        header = live.header
        say = log.info if is_orderly else log.warning
        say(
            "broker_dropped",
            broker=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            reason=reason,
        )
        del self._live[header.broker_addr]
        broker = self._brokers[header.broker_name]
        if broker.addresses.get(header.broker_id) == header.broker_addr:
            del broker.addresses[header.broker_id]
        if not broker.addresses:
            del self._brokers[header.broker_name]
            for topic in [topic for topic, at in self._topics.items() if header.broker_name in at]:
                self._forget(topic, header.broker_name)
        elif broker.acts_for_master and MASTER_ID not in broker.addresses:
            self._change_perm(header.broker_name, lambda perm: perm & ~Perm.WRITE)

    # Queries

    def route(self, topic: str, own_address: str) -> TopicRoute | None:
        """Return the brokers that have a topic and its queues there; None if no broker has it.

        Args:
            own_address: where the client reaches the broker around this name service.
        """
        queues = dict(self._topics.get(topic, {}))
        own = self.own
        if own is not None and self._speaks_for(own):
            config = own.topics.get(topic)
            queues.pop(own.name, None)
            if config is not None:
                queues[own.name] = own.queue_data(config)
        return self.route_over(queues, own_address) if queues else None

    def _speaks_for(self, own: OwnBroker) -> bool:
        """Tell whether the own broker's table of topics counts: it is the master, or no master is registered."""
        if own.tenure.is_master:
            return True
        group = self._brokers.get(own.name)
        return group is None or MASTER_ID not in group.addresses

    def route_over(self, queues: dict[str, QueueData], own_address: str) -> TopicRoute:
        """Return the route over these queues by broker name."""
        names = sorted(queues)
        return TopicRoute(
            [queues[name] for name in names], [self._broker_data(name, own_address, is_route=True) for name in names]
        )

    def cluster_info(self, own_address: str) -> ClusterInfo:
        """Return all brokers by name, and the names by cluster."""
        brokers = {name: self._broker_data(name, own_address) for name in sorted(self._names())}
        clusters: dict[str, list[str]] = {}
        for name, data in brokers.items():
            clusters.setdefault(data.cluster, []).append(name)
        return ClusterInfo(brokers, clusters)

    def member_group(self, cluster: str, name: str, own_address: str) -> BrokerData:
        """Return the members of a broker name; none if there is no such broker in this cluster."""
        if name in self._names():
            data = self._broker_data(name, own_address)
            if data.cluster == cluster:
                return data
        return BrokerData(cluster, name, {})

    def any_address(self, own_address: str) -> str | None:
        """Return the address of one broker; None if there is none."""
        if self.own is not None:
            return own_address
        return next((address for broker in self._brokers.values() for address in broker.addresses.values()), None)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        own = () if self.own is None else self.own.topics.all()
        return sorted({*self._topics, *own})

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the names of the topics of a cluster."""
        found = {
            topic
            for topic, at in self._topics.items()
            if any(name in self._brokers and self._brokers[name].cluster == cluster for name in at)
        }
        if self.own is not None and self.own.cluster == cluster:
            found.update(self.own.topics.all())
        return sorted(found)

    def topics_with_flags(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the names of the topics one of whose system flags is wanted."""
        found = {
            topic for topic, at in self._topics.items() if any(wanted(data.topic_sys_flag) for data in at.values())
        }
        if self.own is not None:
            found.update(topic for topic, config in self.own.topics.all().items() if wanted(config.topic_sys_flag))
        return sorted(found)

    def system_topics(self) -> list[str]:
        """Return the names of clusters and brokers, which are names of topics too."""
        names = self._names()
        return sorted({*names, *(self._cluster_of(name) for name in names)})

    def version_of(self, address: str) -> DataVersion | None:
        """Return the version of a registered broker's topics; None if it is not registered."""
        live = self._live.get(address)
        return None if live is None else live.version

    @property
    def registered(self) -> int:
        """How many brokers are registered."""
        return len(self._live)

    def _names(self) -> set[str]:
        own = () if self.own is None else (self.own.name,)
        return {*self._brokers, *own}

    def _cluster_of(self, name: str) -> str:
        if self.own is not None and self.own.name == name:
            return self.own.cluster
        return self._brokers[name].cluster

    def _broker_data(self, name: str, own_address: str, *, is_route: bool = False) -> BrokerData:
        broker, own = self._brokers.get(name), self.own
        addresses = dict(broker.addresses) if broker is not None else {}
        if own is not None and own.name == name:
            tenure = own.tenure
            if tenure.broker_id not in addresses:  # else a later master has registered
                addresses[tenure.broker_id] = own_address
            lost = own.lost_master() if is_route else None
            if tenure.master is not None and tenure.master != lost:
                addresses.setdefault(MASTER_ID, tenure.master.address)
            for member in self.members.others():
                is_away = is_route and (
                    member.age_s >= _ROUTED_S or (lost is not None and member.address == lost.address)
                )
                if not is_away and member.address not in addresses.values():
                    addresses.setdefault(member.slave_id, member.address)
        cluster = self._cluster_of(name)
        return BrokerData(
            cluster,
            name,
            {number: addresses[number] for number in sorted(addresses)},
            broker is not None and broker.acts_for_master,
        )

    # Changes by administrators

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forget a topic of the registered brokers, of one cluster or of all."""
        for name in list(self._topics.get(topic, ())):
            if not cluster or (name in self._brokers and self._brokers[name].cluster == cluster):
                self._forget(topic, name)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Note a topic on registered brokers, until they register it themselves."""
        for data in queues:
            if data.broker_name in self._brokers:
                self._topics.setdefault(topic, {})[data.broker_name] = data

    def wipe_write_perm(self, name: str) -> int:
        """Take write permission from all topics of a broker; return how many."""
        count = self._change_perm(name, lambda perm: perm & ~Perm.WRITE)
        return count + (self.own.wipe_write_perm() if self.own is not None and self.own.name == name else 0)

    def add_write_perm(self, name: str) -> int:
        """Give read and write permission to all topics of a broker; return how many."""
        count = self._change_perm(name, lambda _: Perm.READ_WRITE)
        return count + (self.own.add_write_perm() if self.own is not None and self.own.name == name else 0)

    def _change_perm(self, name: str, change: Callable[[int], int]) -> int:
        found = list(self._queues_of(name))
        for topic, data in found:
            self._topics[topic][name] = replace(data, perm=change(data.perm))
        return len(found)

    def _queues_of(self, name: str) -> Iterator[tuple[str, QueueData]]:
        return ((topic, at[name]) for topic, at in self._topics.items() if name in at)

    def _forget(self, topic: str, name: str) -> None:
        at = self._topics[topic]
        del at[name]
        if not at:
            del self._topics[topic]


def _queue_data(name: str, config: TopicConfig) -> QueueData:
    return QueueData(name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)


def has_unit(flags: int) -> bool:
    """Tell whether a topic belongs to a unit (RocketMQ: TopicSysFlag)."""
    return bool(flags & _UNIT)


def has_unit_subscription(flags: int) -> bool:
    """Tell whether units subscribe to a topic."""
    return bool(flags & _UNIT_SUB)
