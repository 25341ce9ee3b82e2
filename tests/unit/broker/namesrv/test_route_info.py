"""The table of brokers and topics: who is registered, until when, and what clients are told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reput_broker.config.model import BrokerConfig
from reput_broker.namesrv.registration import OwnBroker
from reput_broker.namesrv.route_info import BrokerIdTaken, RouteInfoManager, has_unit
from reput_broker.tables.tables import Tables
from reput_broker.tenure.core import Master, Role, Tenure
from reput_protocol.commands.namesrv import RegisterBrokerAnswer, RegisterBrokerHeader, UnregisterBrokerHeader
from reput_protocol.commands.replica import MemberBroker
from reput_protocol.commands.topic import BrokerData, QueueData, TopicConfig, TopicConfigTable
from support.member_fakes import FakeClient

OWN = "own:10911"


class Names:
    """A table of routes, its clock, and brokers that register."""

    def __init__(self, own: OwnBroker | None = None) -> None:
        self.now = 1000.0
        self.routes = RouteInfoManager(own, lambda: self.now)

    def register(
        self,
        address: str,
        name: str = "broker-a",
        broker_id: int = 0,
        *,
        topics: tuple[str, ...] = ("T",),
        counter: int = 1,
        epoch: int = 0,
        client: FakeClient | None = None,
        perm: int = 6,
        cluster: str = "c",
        **header: Any,
    ) -> RegisterBrokerAnswer:
        table = TopicConfigTable(
            {topic: TopicConfig(topic, 4, 4, perm) for topic in topics},
            {"counter": counter, "stateVersion": epoch, "timestamp": 5},
        )
        asked = RegisterBrokerHeader(name, address, cluster, f"ha-{address}", broker_id, **header)
        return self.routes.register(asked, table, client or FakeClient(), OWN)

    def addresses(self, topic: str = "T") -> dict[str, dict[int, str]] | None:
        route = self.routes.route(topic, OWN)
        return None if route is None else {data.broker_name: data.broker_addrs for data in route.broker_datas}

    def own_group(self) -> tuple[dict[int, str], dict[int, str]]:
        """The members of the own broker's group in routes, and in the list of the cluster."""
        routed = self.addresses() or {}
        return routed["broker-a"], self.routes.cluster_info(OWN).broker_addr_table["broker-a"].broker_addrs

    def perms(self, topic: str = "T") -> dict[str, int]:
        route = self.routes.route(topic, OWN)
        return {} if route is None else {data.broker_name: data.perm for data in route.queue_datas}


def own_broker(path: Path, tenure: Tenure | None = None, **config: Any) -> OwnBroker:
    options = BrokerConfig(data_dir=path, cluster="c", **config)
    current = tenure or Tenure(Role.ASYNC_MASTER, 0)
    return OwnBroker(options, Tables(path, options, lambda: 7, lambda _name, _error: None), lambda: current)


def test_a_topic_lies_on_every_broker_that_registered_it() -> None:
    names = Names()
    assert names.addresses() is None
    names.register("a:1", "broker-a")
    names.register("b:1", "broker-b", topics=("T", "U"))
    assert names.addresses() == {"broker-a": {0: "a:1"}, "broker-b": {0: "b:1"}}
    assert names.addresses("U") == {"broker-b": {0: "b:1"}}
    assert names.routes.topics() == ["T", "U"]
    assert names.routes.topics_of_cluster("c") == ["T", "U"]
    assert names.routes.topics_of_cluster("other") == []
    assert names.routes.system_topics() == ["broker-a", "broker-b", "c"]
    info = names.routes.cluster_info(OWN)
    assert info.cluster_addr_table == {"c": ["broker-a", "broker-b"]}
    assert info.broker_addr_table["broker-b"] == BrokerData("c", "broker-b", {0: "b:1"})


def test_a_slave_learns_where_its_master_is_and_brings_no_topics() -> None:
    names = Names()
    assert names.register("s:1", broker_id=1, topics=("OnlyHere",)) == RegisterBrokerAnswer()
    assert names.addresses("OnlyHere") is None
    assert names.register("m:1") == RegisterBrokerAnswer(), "a master follows no one"
    assert names.register("s:1", broker_id=1) == RegisterBrokerAnswer("ha-m:1", "m:1")
    assert names.addresses() == {"broker-a": {0: "m:1", 1: "s:1"}}
    assert names.routes.member_group("c", "broker-a", OWN).broker_addrs == {0: "m:1", 1: "s:1"}
    assert names.routes.member_group("other", "broker-a", OWN).broker_addrs == {}


def test_a_slave_that_is_promoted_keeps_its_address_under_the_new_id() -> None:
    names = Names()
    old = FakeClient()
    names.register("a:1", client=old, epoch=1)
    names.register("b:1", broker_id=2, epoch=1)
    names.register("b:1", broker_id=0, epoch=2)
    assert names.addresses() == {"broker-a": {0: "b:1"}}
    names.routes.client_gone(old)
    assert names.addresses() == {"broker-a": {0: "b:1"}}, "what the old master held is not the new one's"
    with pytest.raises(BrokerIdTaken, match="has its id 0 at b:1 already, and a:1 wants it too"):
        names.register("a:1", epoch=1)
    names.register("a:1", broker_id=1, epoch=1)
    assert names.addresses() == {"broker-a": {0: "b:1", 1: "a:1"}}


def test_without_an_epoch_the_last_one_to_register_has_the_id() -> None:
    names = Names()
    names.register("a:1")
    names.register("a:2")
    assert names.addresses() == {"broker-a": {0: "a:2"}}


def test_a_broker_is_dropped_when_its_connection_ends() -> None:
    names = Names()
    first, second = FakeClient(), FakeClient()
    names.register("a:1", client=first)
    names.register("b:1", "broker-b", client=second)
    names.routes.client_gone(FakeClient())
    names.routes.client_gone(first)
    assert names.addresses() == {"broker-b": {0: "b:1"}}
    names.register("b:1", "broker-b", client=FakeClient())
    names.routes.client_gone(second)
    assert names.addresses() == {"broker-b": {0: "b:1"}}, "it has registered over another connection since"


def test_a_registration_that_comes_late_over_an_earlier_connection_does_not_count() -> None:
    names, earlier, later = Names(), FakeClient(), FakeClient()
    later.opened_at = 1.0
    names.register("a:1", broker_id=0, epoch=3, client=later)
    names.register("a:1", broker_id=2, topics=(), client=earlier)
    names.routes.client_gone(earlier)
    assert names.addresses() == {"broker-a": {0: "a:1"}}
    names.register("a:1", broker_id=2, topics=(), client=later)
    assert names.addresses() == {"broker-a": {2: "a:1"}}


def test_a_broker_is_dropped_when_it_leaves() -> None:
    names = Names()
    names.register("a:1")
    names.routes.unregister(UnregisterBrokerHeader("broker-a", "other:1", "c", 0))
    assert names.addresses() is not None
    names.routes.unregister(UnregisterBrokerHeader("broker-a", "a:1", "c", 0))
    assert names.addresses() is None
    assert names.routes.topics() == []
    assert names.routes.cluster_info(OWN).broker_addr_table == {}


def test_topics_stay_while_a_member_of_the_broker_is_left() -> None:
    names = Names()
    names.register("m:1")
    names.register("s:1", broker_id=1)
    names.routes.unregister(UnregisterBrokerHeader("broker-a", "m:1", "c", 0))
    assert names.addresses() == {"broker-a": {1: "s:1"}}, "consumers may read from the slave"


@pytest.mark.parametrize(("announced_ms", "silence_s"), [(None, 120), (10_000, 10)])
def test_a_silent_broker_is_dropped(announced_ms: int | None, silence_s: int) -> None:
    names, client = Names(), FakeClient()
    names.register("a:1", client=client, heartbeat_timeout_millis=announced_ms)
    names.now += silence_s
    names.routes.drop_silent()
    assert names.addresses() is not None
    names.routes.heartbeat("a:1")
    names.now += silence_s
    names.routes.drop_silent()
    assert names.addresses() is not None
    names.now += 0.1
    names.routes.drop_silent()
    assert names.addresses() is None
    assert client.closed_for == "idle", "so that the broker notices, and registers again"
    names.routes.heartbeat("a:1")
    assert names.addresses() is None, "a heartbeat has no topics"


def test_a_registration_replaces_what_an_administrator_changed_only_if_the_broker_changed_a_topic() -> None:
    names = Names()
    names.register("a:1")
    names.register("b:1", "broker-b")
    assert names.routes.wipe_write_perm("broker-a") == 1
    assert names.routes.wipe_write_perm("nowhere") == 0
    assert names.perms() == {"broker-a": 4, "broker-b": 6}
    names.register("a:1")
    assert names.perms() == {"broker-a": 4, "broker-b": 6}
    assert names.routes.add_write_perm("broker-a") == 1
    assert names.perms() == {"broker-a": 6, "broker-b": 6}
    names.routes.wipe_write_perm("broker-a")
    names.register("a:1", counter=2)
    assert names.perms() == {"broker-a": 6, "broker-b": 6}


def test_a_topic_that_is_missing_is_forgotten_only_if_the_registration_says_that_it_is_complete() -> None:
    names = Names()
    names.register("a:1", topics=("T", "U"))
    names.register("b:1", "broker-b", topics=("T", "U"))
    names.register("a:1", topics=("T",), counter=2)
    assert names.addresses("U") == {"broker-a": {0: "a:1"}, "broker-b": {0: "b:1"}}, "RocketMQ may send one topic"
    names.register("a:1", topics=("T",), counter=3, is_complete=True)
    assert names.addresses("U") == {"broker-b": {0: "b:1"}}


def test_a_deleted_topic_is_forgotten_in_one_cluster_or_in_all() -> None:
    names = Names()
    names.register("a:1")
    names.register("b:1", "broker-b", cluster="d")
    names.routes.delete_topic("T", "d")
    assert names.addresses() == {"broker-a": {0: "a:1"}}
    names.routes.delete_topic("T", None)
    assert names.addresses() is None
    names.routes.delete_topic("T", None)


def test_a_topic_may_be_noted_on_registered_brokers() -> None:
    names = Names()
    names.register("a:1")
    names.routes.register_topic("New", [QueueData("broker-a", 2, 2, 6, 0), QueueData("nowhere", 2, 2, 6, 0)])
    assert names.addresses("New") == {"broker-a": {0: "a:1"}}


def test_the_first_of_the_slaves_acts_for_a_master_that_is_gone_if_it_was_asked_to() -> None:
    names = Names()
    master = FakeClient()
    names.register("m:1", client=master, enable_acting_master=True)
    names.register("s:1", broker_id=1, enable_acting_master=True)
    names.routes.client_gone(master)
    assert names.perms() == {"broker-a": 4}
    names.register("s:1", broker_id=1, topics=("T", "New"), counter=2, enable_acting_master=True)
    assert names.perms("New") == {"broker-a": 4}
    route = names.routes.route("T", OWN)
    assert route is not None
    assert route.broker_datas[0].enable_acting_master


def test_a_broker_under_a_new_name_leaves_the_old_one() -> None:
    names = Names()
    names.register("a:1", "broker-a")
    names.register("a:1", "broker-b", topics=("U",))
    assert names.addresses() is None
    assert names.addresses("U") == {"broker-b": {0: "a:1"}}


def test_topics_are_found_by_their_flags() -> None:
    names = Names()
    names.register("a:1")
    names.routes.register_topic("Unit", [QueueData("broker-a", 1, 1, 6, 1)])
    assert names.routes.topics_with_flags(has_unit) == ["Unit"]


# The broker around the name service


def test_the_own_broker_is_listed_with_its_topics_as_they_are_now(tmp_path: Path) -> None:
    own = own_broker(tmp_path)
    names = Names(own)
    names.register("b:1", "broker-b")
    assert names.addresses() == {"broker-b": {0: "b:1"}}
    own.topics.put(TopicConfig("T", 2, 2))
    assert names.addresses() == {"broker-a": {0: OWN}, "broker-b": {0: "b:1"}}
    assert names.routes.cluster_info(OWN).cluster_addr_table == {"c": ["broker-a", "broker-b"]}
    assert names.routes.topics_of_cluster("c") == ["T"]
    assert names.routes.any_address(OWN) == OWN
    own.topics.delete("T")
    assert names.addresses() == {"broker-b": {0: "b:1"}}


def test_the_own_brokers_write_permission_is_wiped_until_a_topic_changes(tmp_path: Path) -> None:
    own = own_broker(tmp_path)
    own.topics.put(TopicConfig("T", 2, 2))
    names = Names(own)
    assert names.routes.wipe_write_perm("broker-a") == 1
    assert names.perms() == {"broker-a": 4}
    assert names.routes.add_write_perm("broker-a") == 1
    assert names.perms() == {"broker-a": 6}
    names.routes.wipe_write_perm("broker-a")
    own.topics.put(TopicConfig("U", 2, 2))
    assert names.perms() == {"broker-a": 6}


def test_slaves_of_the_own_broker_are_listed_with_it(tmp_path: Path) -> None:
    own = own_broker(tmp_path)
    own.topics.put(TopicConfig("T", 2, 2))
    names = Names(own)
    assert names.register("s:1", broker_id=1) == RegisterBrokerAnswer("", OWN)
    own.ha_port = 10912
    assert names.register("s:1", broker_id=1) == RegisterBrokerAnswer("own:10912", OWN)
    assert names.addresses() == {"broker-a": {0: OWN, 1: "s:1"}}


def test_the_own_broker_may_register_with_itself_and_another_of_its_name_and_id_may_not(tmp_path: Path) -> None:
    own = own_broker(tmp_path)
    own.topics.put(TopicConfig("T", 2, 2))
    names = Names(own)
    assert names.register("own.example:10911", start_id=own.start_id) == RegisterBrokerAnswer()
    assert names.addresses() == {"broker-a": {0: OWN}}
    with pytest.raises(BrokerIdTaken, match="at the broker of this name server already"):
        names.register("twin:1")
    names.register("twin:1", epoch=1)
    assert names.addresses() == {"broker-a": {0: "twin:1"}}, "a master of a later epoch is the master"


def test_a_slave_answers_for_its_master(tmp_path: Path) -> None:
    tenure = Tenure(Role.SLAVE, 1, master=Master("m:1", "m:2"))
    own = own_broker(tmp_path, tenure)
    own.topics.put(TopicConfig("T", 2, 2))
    names = Names(own)
    assert names.addresses() == {"broker-a": {0: "m:1", 1: OWN}}
    assert names.register("other:1", broker_id=2) == RegisterBrokerAnswer("m:2", "m:1")
    names.routes.unregister(UnregisterBrokerHeader("broker-a", "other:1", "c", 2))
    master = FakeClient()
    names.register("m:1", topics=("U",), client=master)
    assert names.addresses() is None, "the master has deleted it"
    assert names.addresses("U") == {"broker-a": {0: "m:1", 1: OWN}}
    names.routes.client_gone(master)
    assert names.addresses() == {"broker-a": {0: "m:1", 1: OWN}}


def test_a_slave_routes_no_client_to_a_master_that_it_has_lost(tmp_path: Path) -> None:
    lost, other = Master("m:1", "m:2"), Master("n:1", "n:2")
    tenure = Tenure(Role.SLAVE, 1, master=lost)
    own = own_broker(tmp_path, tenure)
    own.topics.put(TopicConfig("T", 2, 2))
    names = Names(own)
    names.routes.members.learned([MemberBroker(2, "m:1"), MemberBroker(3, "s:1")])
    listed = {0: "m:1", 1: OWN, 3: "s:1"}
    assert names.own_group() == (listed, listed)
    own.lost_master = lambda: lost
    assert names.own_group() == ({1: OWN, 3: "s:1"}, listed), "operators see what is down"
    own.lost_master = lambda: other
    assert names.own_group() == (listed, listed), "the master is another one now"
    own.lost_master = lambda: lost
    names.register("m:1")
    assert names.addresses() == {"broker-a": {0: "m:1", 1: OWN, 3: "s:1"}}, "it has registered here"


def test_brokers_stay_registered_when_this_one_closes_all_connections() -> None:
    """Its role has changed. They connect again, or are dropped as silent."""
    names = Names()
    first, second = FakeClient(), FakeClient()
    names.register("a:1", "broker-a", client=first, heartbeat_timeout_millis=30_000)
    names.register("b:1", "broker-b", client=second, heartbeat_timeout_millis=30_000)
    with names.routes.kept_without_connections():
        names.routes.client_gone(first)
    names.routes.client_gone(second)
    assert names.addresses() == {"broker-a": {0: "a:1"}, "broker-b": {0: "b:1"}}
    again = FakeClient()
    names.register("a:1", "broker-a", client=again, heartbeat_timeout_millis=30_000)
    names.now += 31
    names.routes.heartbeat("a:1")
    names.routes.drop_silent()
    assert names.addresses() == {"broker-a": {0: "a:1"}}
    names.routes.client_gone(again)
    assert names.addresses() is None


def test_a_member_that_is_away_is_in_no_route_and_still_listed(tmp_path: Path) -> None:
    own = own_broker(tmp_path)
    own.topics.put(TopicConfig("T", 4, 4))
    names = Names(own)
    names.routes.members.asked(1, "s:1", "")
    assert names.own_group() == ({0: OWN, 1: "s:1"}, {0: OWN, 1: "s:1"})
    names.now += 31
    assert names.own_group() == ({0: OWN}, {0: OWN, 1: "s:1"})
