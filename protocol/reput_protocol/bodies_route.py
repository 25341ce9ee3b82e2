"""JSON bodies that say where things are: a topic's route (105), the cluster (106) (RocketMQ: TopicRouteData)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

from reput_protocol.body_members import (
    as_object,
    flag_member,
    integer_member,
    list_member,
    map_member,
    text_list_member,
    text_map_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.codes import Perm
from reput_protocol.errors import BodyMalformed
from reput_protocol.loose_json import read_json, write_json

_MASTER_ID: Final = 0


@dataclass(slots=True)
class QueueData:
    """How many queues of a topic one broker has, and what may be done with them (bits of `Perm`)."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = Perm.READ_WRITE
    topic_sys_flag: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            text_member(members, "brokerName"),
            integer_member(members, "readQueueNums"),
            integer_member(members, "writeQueueNums"),
            integer_member(members, "perm"),
            integer_member(members, "topicSysFlag"),
        )


@dataclass(slots=True)
class BrokerData:
    """The addresses of one broker by id ("host:port"); id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object; ids are quoted, which every client takes."""
        return {
            "brokerAddrs": {
                str(broker_id): address for broker_id, address in sorted(self.broker_addrs.items())
            },
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        try:
            addresses = {
                int(key): address for key, address in text_map_member(members, "brokerAddrs").items()
            }
        except ValueError:
            raise BodyMalformed("member 'brokerAddrs' has a broker id that is no number") from None
        return cls(
            text_member(members, "cluster"),
            text_member(members, "brokerName"),
            addresses,
            flag_member(members, "enableActingMaster"),
        )


@dataclass(slots=True)
class TopicRoute:
    """Answer body of 105. Addresses are those that the asking client can reach."""

    queue_datas: list[QueueData]
    broker_datas: list[BrokerData]
    order_topic_conf: str | None = None

    def to_json(self) -> bytes:
        """Return the body."""
        members: dict[str, Any] = {
            "brokerDatas": [data.to_members() for data in self.broker_datas],
            "filterServerTable": {},
            "queueDatas": [data.to_members() for data in self.queue_datas],
        }
        if self.order_topic_conf is not None:
            members["orderTopicConf"] = self.order_topic_conf
        return write_json(members)

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data, loose_bytes_max=len(data))
        return cls(
            [
                QueueData.from_members(as_object(item, "an item of 'queueDatas'"))
                for item in list_member(members, "queueDatas")
            ],
            [
                BrokerData.from_members(as_object(item, "an item of 'brokerDatas'"))
                for item in list_member(members, "brokerDatas")
            ],
            text_member(members, "orderTopicConf") or None,
        )


@dataclass(slots=True)
class ClusterInfo:
    """Answer body of 106: all brokers by name, and the brokers of each cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)

    @property
    def masters(self) -> dict[str, str]:
        """The address of every master by the name of its broker, as `host:port`."""
        return {
            name: data.broker_addrs[_MASTER_ID]
            for name, data in self.broker_addr_table.items()
            if _MASTER_ID in data.broker_addrs
        }

    @property
    def own_names(self) -> set[str]:
        """The names of the brokers and clusters, which have topics of these names."""
        return {*self.broker_addr_table, *self.cluster_addr_table}

    def to_json(self) -> bytes:
        """Return the body."""
        brokers = {name: data.to_members() for name, data in self.broker_addr_table.items()}
        return write_json({"brokerAddrTable": brokers, "clusterAddrTable": self.cluster_addr_table})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data, loose_bytes_max=len(data))
        brokers = map_member(members, "brokerAddrTable")
        clusters = map_member(members, "clusterAddrTable")
        return cls(
            {
                str(name): BrokerData.from_members(as_object(item, "a value of 'brokerAddrTable'"))
                for name, item in brokers.items()
            },
            {str(name): text_list_member(clusters, name) for name in clusters},
        )
