"""Routes: which queues can be written and read, where, and for how long an answer is valid."""

from __future__ import annotations

from reput_client.transport.address import Address
from reput_client.transport.routing import BrokerTable, Route, RouteTable
from reput_protocol.commands.topic import BrokerData, QueueData, TopicRoute
from reput_protocol.record.message import MessageQueue

BODY = TopicRoute(
    queue_datas=[
        QueueData("b2", read_queue_nums=1, write_queue_nums=3, perm=6),
        QueueData("b1", read_queue_nums=2, write_queue_nums=2, perm=4),
        QueueData("b3", read_queue_nums=1, write_queue_nums=1, perm=2),
    ],
    broker_datas=[
        BrokerData("c", "b1", {0: "h1:1", 1: "h1:2"}),
        BrokerData("c", "b2", {0: "h2:1"}),
        BrokerData("c", "b3", {1: "h3:2"}),
    ],
)


def test_permissions_and_numbers_choose_the_queues() -> None:
    route = Route.from_body("t", BODY)
    assert route.writable == (
        MessageQueue("t", "b2", 0),
        MessageQueue("t", "b2", 1),
        MessageQueue("t", "b2", 2),
        MessageQueue("t", "b3", 0),
    )
    assert route.readable == (MessageQueue("t", "b1", 0), MessageQueue("t", "b1", 1), MessageQueue("t", "b2", 0))
    assert route.brokers == ("b1", "b2", "b3")


def test_brokers_are_known_by_name_and_id() -> None:
    table = BrokerTable()
    for data in BODY.broker_datas:
        table.learn(data)
    assert [table.masters.get(name) for name in ("b1", "b3", "b4")] == [Address("h1", 1), None, None]
    assert table.slaves["b1"] == {1: Address("h1", 2)}
    assert table.address("b3", 1) == Address("h3", 2)
    table.learn(BrokerData("c", "b1", {0: "h1:2"}))
    assert (table.masters["b1"], table.slaves["b1"]) == (Address("h1", 2), {}), "a failover"
    home = Address("here", 3)
    table.learn(BrokerData("c", "b1", {0: "h1:2", 1: "h1:1"}), home)
    assert table.names_at(home) == ["b1"]
    assert table.address("b1", 1) == Address("h1", 1), "only the master was asked there"


def test_of_topics_that_do_not_exist_only_the_latest_are_remembered() -> None:
    body = TopicRoute([QueueData("b", 8, 8, 7)], [BrokerData("c", "b", {0: "h:1"})])
    template, table = Route.from_body("TBW102", body), RouteTable()
    table.put(Route.from_body("real", body), 0.0)
    for number in range(3000):
        table.put(template.as_template_for(f"new{number}"), 0.0)
    known = [number for number in range(3000) if table.get(f"new{number}") is not None]
    assert known == [*range(2000, 3000)]
    assert table.brokers_of("new0") is None
    assert table.get("real") is not None


def test_the_template_gives_a_new_topic_at_most_four_queues() -> None:
    body = TopicRoute([QueueData("b", 8, 8, 7)], [BrokerData("c", "b", {0: "h:1"})])
    route = Route.from_body("TBW102", body).as_template_for("new")
    assert route.template
    assert route.writable == tuple(MessageQueue("new", "b", number) for number in range(4))


def test_a_route_grows_stale_but_stays_known() -> None:
    table = RouteTable(refresh_s=30.0)
    assert table.get("t") is None
    assert table.is_stale("t", 0.0)
    route = Route.from_body("t", BODY)
    table.put(route, 100.0)
    assert table.get("t") is route
    assert not table.is_stale("t", 129.9)
    assert table.is_stale("t", 130.0)
    table.put(route, 100.0, is_complete=False)
    assert not table.is_stale("t", 100.9)
    assert table.is_stale("t", 101.0), "a broker has no master"
    table.refresh_at("t", 140.0)
    assert table.is_stale("t", 140.0)
    assert table.get("t") is route
    table.forget("t")
    assert table.get("t") is None


def test_a_route_to_send_by_without_asking_is_known_not_stale_and_no_template() -> None:
    table = RouteTable(refresh_s=30.0)
    assert table.fresh("t", 0.0) is None
    route = Route.from_body("t", BODY)
    table.put(route, 100.0)
    for now in (100.0, 129.9, 130.0, 500.0):
        assert table.fresh("t", now) is (None if table.is_stale("t", now) else route)
    table.put(route.as_template_for("new"), 100.0)
    assert table.fresh("new", 100.0) is None
