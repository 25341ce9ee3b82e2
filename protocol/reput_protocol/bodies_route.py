"""JSON bodies that say where things are: a topic's route (105), the cluster (106) (RocketMQ: TopicRouteData)."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from reput_protocol.body import I64, LargeBody, Members
from reput_protocol.codes import Perm

_MASTER_ID: Final = 0


class QueueData(Members):
    """How many queues of a topic one broker has, and what may be done with them (bits of `Perm`)."""

    broker_name: str = ""
    read_queue_nums: I64 = 0
    write_queue_nums: I64 = 0
    perm: I64 = Perm.READ_WRITE
    topic_sys_flag: I64 = 0


class BrokerData(LargeBody):
    """The addresses of one broker by id ("host:port"); id 0 is the master."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool = False

    def to_members(self) -> dict[str, Any]:
        """Return the members; ids are quoted, which every client takes."""
        addresses = {str(broker_id): address for broker_id, address in self.broker_addrs.items()}
        return {**super().to_members(), "brokerAddrs": addresses}


class TopicRoute(LargeBody):
    """Answer body of 105. Addresses are those that the asking client can reach."""

    IS_TRUSTED: ClassVar[bool] = True

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    order_topic_conf: str | None = None
    filter_server_table: dict[str, Any] = {}


class ClusterInfo(LargeBody):
    """Answer body of 106: all brokers by name, and the brokers of each cluster."""

    IS_TRUSTED: ClassVar[bool] = True

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}

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
