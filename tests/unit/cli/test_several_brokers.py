"""Commands about topics and groups that are on two brokers: both are covered, and named where it matters."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from reput_broker.background import BackgroundBroker
from reput_cli.broker import command as broker
from reput_cli.consume import command as consume
from reput_cli.dlq import command as dlq
from reput_cli.group import command as group
from reput_cli.topic import command as topic
from reput_client.blocking import Admin, Consumer, Message, Producer
from reput_client.errors import BrokerNotFound
from support.dead_letters import give_up

pytestmark = pytest.mark.usefixtures("slow_is_not_faulty")


@pytest.fixture
def address(new_reput_broker: Callable[..., BackgroundBroker]) -> str:
    """Of a broker with which another one is registered; topic `t` has a queue and three messages on each."""
    first = new_reput_broker()
    new_reput_broker(broker_name="broker-b", name_servers=[first.address])
    with Admin(first.address) as admin:
        while len(admin.cluster_info().masters) < 2:
            time.sleep(0.02)
        run(topic, "create", "t", "--queues", "1", server=first.address)
        while len(admin.route("t").queue_datas) < 2:
            time.sleep(0.02)  # until the second broker has registered it
    with Producer(first.address) as producer:
        for number in range(6):
            producer.send(Message("t", b"%d" % number))
    return first.address


def run(command: click.Command, *arguments: str, server: str) -> list[str]:
    done = CliRunner().invoke(command, [*arguments, "--server", server, "--output", "plain"], catch_exceptions=False)
    return done.output.splitlines()


def test_topics_of_two_brokers(address: str) -> None:
    assert run(topic, "describe", "t", server=address) == [
        "topic\tqueue\tstart\tend\tmessages\tbroker",
        "t\t0\t0\t3\t3\tbroker-a",
        "t\t0\t0\t3\t3\tbroker-b",
    ]
    run(topic, "create", "one", "--broker", "broker-b", server=address)
    with Admin(address) as admin:
        while "one" not in admin.list_topics():
            time.sleep(0.02)  # until the second broker has registered it
    assert [line for line in run(topic, "list", server=address) if not line.startswith("t\t")] == [
        "topic\tread_queues\twrite_queues\tpermission\tmessages\tmessages_in_per_s\tmessages_out_per_s\tsize_bytes\tbroker",
        "one\t4\t4\trw\t0\t0.0\t0.0\t0\tbroker-b",
    ]
    assert "already exists" in run(topic, "create", "t", "--queues", "1", server=address)[0]
    assert "deleted" in run(topic, "delete", "one", "--yes", server=address)[-1]


def test_messages_and_progress_of_two_brokers(address: str) -> None:
    lines = run(consume, "t", "-e", "-f", "%v", server=address)
    assert sorted(lines) == [str(number) for number in range(6)]
    with Consumer(address, group="g", topic="t", commit_interval_s=0) as consumer:
        for _ in range(6):
            assert consumer.receive(10.0)
    described = run(group, "describe", "g", "--topic", "t", server=address)
    assert [line.split("\t")[0:5] + line.split("\t")[-1:] for line in described[-2:]] == [
        ["t", "0", "0", "3", "3", "broker-a"],
        ["t", "0", "0", "3", "3", "broker-b"],
    ]
    shown = run(group, "reset", "g", "t", "--to", "earliest", "--dry-run", server=address)
    assert "t\t0\t3\t0\t-3\tbroker-b" in shown


def test_dead_letters_of_two_brokers(address: str) -> None:
    with Admin(address) as admin:
        admin.create_topic("%DLQ%g", queues=1)
        while len(admin.route("%DLQ%g").queue_datas) < 2:
            time.sleep(0.02)
        admin.create_topic("failed", queues=1)
        while len(admin.route("failed").queue_datas) < 2:
            time.sleep(0.02)
    with Producer(address) as producer:
        for number in range(4):
            producer.send(Message("failed", b"l%d" % number))  # to one after the other
            time.sleep(0.002)
    give_up(address, "g", "failed")
    (_, listed) = run(dlq, "list", server=address)
    assert listed.split("\t")[:2] == ["g", "4"]
    # In the order in which the brokers have put them aside.
    assert sorted(run(dlq, "peek", "g", "-f", "%v", server=address)) == ["l0", "l1", "l2", "l3"]
    assert sorted(run(dlq, "peek", "g", "-o", "-1", "-f", "%v", server=address)) == ["l2", "l3"]
    assert run(dlq, "replay", "g", "-n", "3", "--yes", server=address) == [
        "3 dead letters of g sent to failed",
        "1 not looked at: the same command sends them",
    ]
    again = run(dlq, "replay", "g", "--yes", server=address)
    assert again[0] == "1 dead letter of g sent to failed"
    assert again[1].startswith("3 were replayed before; ")
    replayed = [line for line in run(consume, "failed", "-e", "-f", "%v", server=address) if line.startswith("l")]
    assert sorted(replayed) == ["l0", "l0", "l1", "l1", "l2", "l2", "l3", "l3"]
    assert run(dlq, "purge", "g", "--yes", server=address) == [
        "topic %DLQ%g: 4 dead letters, 0 not replayed yet",
        "topic %DLQ%g deleted",
    ]


def test_status_of_two_brokers(address: str) -> None:
    both = run(broker, "status", server=address)
    assert [line for line in both if line.startswith("broker\t")] == ["broker\tbroker-a", "broker\tbroker-b"]
    one = run(broker, "status", "--broker", "broker-b", server=address)
    assert "broker_name\tbroker-b" in one
    assert "broker_name\tbroker-a" not in one
    with pytest.raises(BrokerNotFound):
        run(broker, "status", "--broker", "broker-c", server=address)


def test_a_change_of_a_topic_leaves_the_rest_to_each_broker(address: str) -> None:
    """It was made with the settings of the first broker, also on brokers that did not have the topic."""
    with Admin(address) as admin:
        admin.create_topic("uneven", queues=1, brokers=["broker-a"])
        admin.create_topic("uneven", queues=3, message_type="FIFO", brokers=["broker-b"])
        admin.create_topic("one", queues=2, brokers=["broker-b"])
        while len(admin.route("uneven").queue_datas) < 2 or "one" not in admin.list_topics():
            time.sleep(0.02)  # until the second broker has registered them
        run(topic, "alter", "uneven", "--permission", "r", server=address)
        run(topic, "alter", "one", "--queues", "4", server=address)
        found = {
            name: (config.read_queue_nums, config.write_queue_nums, config.perm, config.message_type)
            for name, config in admin.topic_configs("uneven").items()
        }
        assert found == {"broker-a": (1, 1, 4, ""), "broker-b": (3, 3, 4, "FIFO")}
        assert {name: config.read_queue_nums for name, config in admin.topic_configs("one").items()} == {"broker-b": 4}
    said = run(topic, "alter", "uneven", "--queues", "2", "--dry-run", server=address)
    assert said == [
        "topic uneven: 1 queue become 2, 3 queues become 2",
        "queues 2 to 2 of uneven can then no longer be read",
    ]
