"""Consumer groups over the wire: members that come and go, what they may pull and commit, locks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from reput_client.blocking import Admin, Message, Producer
from reput_protocol.codes import MessageModel, PullSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.group import (
    ConsumerData,
    GroupForbiddenHeader,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from reput_protocol.record.record import record_views
from reput_protocol.wire.header import HeaderType
from support.broker_process import BrokerProcess
from support.group_client import Connect, GroupClient, group_clients
from support.waiting import wait_until

pytestmark = pytest.mark.process

TYPES = pytest.mark.parametrize("kind", list(HeaderType))
_numbers = count()


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"topic{next(_numbers)}"
    with Admin(broker.address, timeout_s=30.0) as admin:
        admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def group() -> str:
    return f"group{next(_numbers)}"


@pytest.fixture
def connect(broker: BrokerProcess, group: str) -> Iterator[Connect]:
    with group_clients(broker.address, group, HeaderType.MSGPACK) as connect:
        yield connect


def send(broker: BrokerProcess, topic: str, *bodies: bytes, tag: str | None = None) -> None:
    with Producer(broker.address, group="p") as producer:
        for body in bodies:
            producer.send(Message(topic, body, tag=tag), queue_id=0)


def bodies(data: bytes) -> list[bytes]:
    return [view.body for view in record_views(data)]


@TYPES
def test_members_hear_of_each_other(connect: Connect, topic: str, kind: HeaderType) -> None:
    a, b = connect("a", kind), connect("b", HeaderType.JSON)
    assert a.heartbeat(topic).code == 0
    assert a.members() == ["a"], "a member is in the list as soon as its heartbeat is answered"
    header, _ = a.next_asked(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert header.ext == {"consumerGroup": a.group}
    assert header.is_oneway
    started_at = time.monotonic()
    b.heartbeat(topic)
    a.next_asked(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1.0)
    assert time.monotonic() - started_at < 1.0
    assert a.members() == b.members() == ["a", "b"]
    a.leave()
    b.next_asked(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1.0)
    assert b.members() == ["b"]
    a.leave()


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_member_is_gone_however_its_connection_ends(connect: Connect, topic: str, how: str) -> None:
    a, b = connect("a"), connect("b")
    a.heartbeat(topic)
    b.heartbeat(topic)
    while a.is_asked(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0.3):
        pass
    getattr(b, how)()
    a.next_asked(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1.0)
    assert a.members() == ["a"]


def test_a_member_that_falls_silent_is_gone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", environment={"REPUT_LIMITS__IDLE_TIMEOUT": "2s"}) as broker:
        a, b = GroupClient(broker.address, "a"), GroupClient(broker.address, "b")
        b.heartbeat("T")
        a.heartbeat("T")
        wait_until(lambda: a.members() == ["a"])
        assert b.is_closed_by_peer()
        a.close()
        b.close()


def test_a_group_without_members(connect: Connect, group: str) -> None:
    for kind in (HeaderType.JSON, HeaderType.MSGPACK):
        client = connect("x", kind)
        header, _ = client.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        assert header.code == 1
        words = {HeaderType.JSON: f"no consumer for this group, {group}", HeaderType.MSGPACK: "NOT_FOUND: "}
        assert str(header.remark).startswith(words[kind])
    client.leave()


def test_a_heartbeat_makes_the_group_and_its_retry_topic(
    broker: BrokerProcess, connect: Connect, topic: str, group: str
) -> None:
    connect("a").heartbeat(topic)
    with Admin(broker.address, timeout_s=30.0) as admin:
        retry = admin.topic_config(f"%RETRY%{group}")
        assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
    file = broker.data_dir / "config" / "subscriptionGroup.json"
    wait_until(lambda: file.exists() and group in json.loads(file.read_text())["subscriptionGroupTable"], 5)


def test_an_invalid_heartbeat(connect: Connect, topic: str) -> None:
    client = connect("a")
    for body in (b"", b"[]", b"{", b'{"clientID":7}', b'{"clientID":""}', b'{"clientID":"a","withoutSub":true}'):
        header, _ = client.request(RequestCode.HEART_BEAT, {}, body)
        assert header.code == ResponseCode.INVALID_PARAMETER, body
    huge = b'{"clientID":"' + b"a" * (1 << 20) + b'"}'
    assert client.request(RequestCode.HEART_BEAT, {}, huge)[0].code == ResponseCode.MESSAGE_ILLEGAL
    client.group = "no spaces"
    assert client.heartbeat(topic).code == ResponseCode.INVALID_PARAMETER


def test_a_group_that_cannot_be_joined_does_not_stand_in_the_way_of_the_others(
    connect: Connect, topic: str, group: str
) -> None:
    client = connect("a")
    subscriptions = [SubscriptionData.of(topic, "*", 1)]
    consumers = [ConsumerData(name, subscriptions=subscriptions) for name in ("no spaces", group)]
    header, _ = client.request(RequestCode.HEART_BEAT, {}, HeartbeatData("a", consumers).to_json())
    assert header.code == ResponseCode.INVALID_PARAMETER
    assert client.members() == ["a"]


@TYPES
def test_a_group_s_own_subscription_filters_its_pulls(
    broker: BrokerProcess, connect: Connect, topic: str, kind: HeaderType
) -> None:
    send(broker, topic, b"1", b"2", tag="paid")
    send(broker, topic, b"3", tag="open")
    send(broker, topic, b"4", tag="paid")
    client = connect("a", kind)
    client.heartbeat(expressions={topic: "paid"})
    header, data = client.pull(topic, 0)
    assert (header.code, bodies(data)) == (0, [b"1", b"2", b"4"])
    waiting = client.hold(topic, 4)
    send(broker, topic, b"5", tag="open")
    send(broker, topic, b"6", tag="paid")
    header, data = client.answer_to(waiting)
    assert bodies(data) == [b"6"]


@TYPES
def test_reasons_to_refuse_a_pull_and_their_order(
    broker: BrokerProcess, connect: Connect, topic: str, group: str, kind: HeaderType
) -> None:
    send(broker, topic, b"1")
    client = connect("a", kind)

    def refused(topic: str = topic, queue_id: int = 0, **more: object) -> int:
        header = client.pull_header(topic, 0, **more)
        header.queue_id = queue_id
        return client.ask(header)[0].code

    with Admin(broker.address, timeout_s=30.0) as admin:
        admin.put_group(SubscriptionGroupConfig(group, consume_enable=False))
        assert refused("no_such_topic", 99) == ResponseCode.NO_PERMISSION, "the group comes before the topic"
        admin.put_group(SubscriptionGroupConfig(group, consume_broadcast_enable=False))
        assert refused("no_such_topic", 99) == ResponseCode.TOPIC_NOT_EXIST
        admin.alter_topic(topic, read_queues=2, write_queues=2, perm=2)
        assert refused(queue_id=99) == ResponseCode.NO_PERMISSION
        admin.alter_topic(topic, read_queues=2, write_queues=2, perm=6)
    assert refused(queue_id=99) == ResponseCode.INVALID_PARAMETER
    flag = PullSysFlag.SUBSCRIPTION
    assert refused(sys_flag=flag, subscription="||") == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert refused(sys_flag=flag, subscription="*") == 0
    assert refused() == ResponseCode.SUBSCRIPTION_NOT_EXIST, "no heartbeat yet"
    client.heartbeat("another", version=5, model=MessageModel.BROADCASTING)
    assert refused() == ResponseCode.NO_PERMISSION
    client.heartbeat("another", version=5)
    assert refused() == ResponseCode.SUBSCRIPTION_NOT_EXIST, "not this topic"
    client.heartbeat(topic, version=5)
    assert refused(sub_version=6) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert refused(sub_version=5) == refused(sub_version=0) == 0
    assert client.ask(GroupForbiddenHeader(group, topic, False))[0].code == 0
    assert refused() == refused(sys_flag=flag) == ResponseCode.NO_PERMISSION
    client.ask(GroupForbiddenHeader(group, topic, True))
    assert refused() == 0


@TYPES
def test_offsets_are_committed_for_groups_and_topics_that_exist(connect: Connect, topic: str, kind: HeaderType) -> None:
    client = connect("a", kind)
    if kind is not HeaderType.MSGPACK:
        assert client.commit(topic, 1).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert client.commit("no_such_topic", 1).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    client.heartbeat(topic)
    assert client.commit("no_such_topic", 1).code == ResponseCode.TOPIC_NOT_EXIST
    assert client.commit(topic, 1, queue_id=2).code == ResponseCode.INVALID_PARAMETER
    assert client.commit(topic, 7).code == 0
    assert client.commit(topic, -1).code == 0
    assert client.committed(topic) == 7
    client.leave()
    assert client.commit(topic, 8).code == 0, "RocketMQ's Java client commits last of all"
    header = client.pull_header(topic, 0, sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.COMMIT_OFFSET)
    header.commit_offset = 5
    client.ask(header)
    # A pull of our own client may be on its way while its queue changes hands.
    assert client.committed(topic) == (8 if kind is HeaderType.MSGPACK else 5)


def test_a_queue_is_one_member_s_at_a_time(connect: Connect, topic: str) -> None:
    a, b = connect("a"), connect("b", HeaderType.JSON)
    assert a.lock(topic, 0, 1, 7) == [0, 1], "a queue that does not exist cannot be locked"
    assert a.lock("no_such_topic", 0) == []
    assert b.lock(topic, 0, 1) == []
    b.unlock(topic, 0)
    assert b.lock(topic, 0) == []
    a.unlock(topic, 0)
    assert b.lock(topic, 0, 1) == [0]
    a.heartbeat(topic)
    a.leave()
    assert b.lock(topic, 0, 1) == [0, 1]
    header, _ = a.request(RequestCode.LOCK_BATCH_MQ, {}, b"{}")
    assert header.code == ResponseCode.INVALID_PARAMETER


def test_groups_are_not_made_where_that_is_switched_off_and_are_there_after_a_restart(tmp_path: Path) -> None:
    options = {"REPUT_GROUPS__AUTO_CREATE": "false"}
    broker = BrokerProcess(tmp_path / "store", environment=options)
    with broker:
        with Admin(broker.address, timeout_s=30.0) as admin:
            admin.create_topic("T")
            admin.put_group(SubscriptionGroupConfig("known", retry_queue_nums=3))
        for kind in HeaderType:
            client = GroupClient(broker.address, "a", "unknown", kind)
            assert client.heartbeat("T").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            header = client.pull("T", 0, sys_flag=PullSysFlag.SUBSCRIPTION)[0]
            assert header.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert client.commit("T", 1).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            client.close()
        broker.kill()
        broker.start()
        broker.wait_ready()
        client = GroupClient(broker.address, "a", "known")
        assert client.heartbeat("T").code == 0
        with Admin(broker.address, timeout_s=30.0) as admin:
            assert admin.topic_config("%RETRY%known").read_queue_nums == 3
        client.close()


def test_members_that_do_not_agree_are_refused_where_that_is_switched_on(tmp_path: Path) -> None:
    options = {"REPUT_GROUPS__REFUSE_SUBSCRIPTION_CONFLICTS": "true"}
    with BrokerProcess(tmp_path / "store", environment=options) as broker:
        with Admin(broker.address, timeout_s=30.0) as admin:
            admin.create_topic("T")
        a, b = GroupClient(broker.address, "a"), GroupClient(broker.address, "b")
        assert a.heartbeat(expressions={"T": "x"}).code == 0
        header = b.heartbeat(expressions={"T": "y"})
        assert header.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        for word in ("SUBSCRIPTION_CONFLICT: ", "'y'", "member 'a'", "'x'"):
            assert word in str(header.remark)
        assert a.members() == ["a"]
        a.close()
        wait_until(lambda: b.heartbeat(expressions={"T": "y"}).code == 0)
        assert b.members() == ["b"]
        b.close()


def test_a_directory_without_the_table_gets_its_groups_from_the_offsets(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "store")
    with broker:
        with Admin(broker.address, timeout_s=30.0) as admin:
            admin.create_topic("T")
        client = GroupClient(broker.address, "a", "g")
        client.commit("T", 3)
        client.close()
        broker.terminate()
        (broker.data_dir / "config" / "subscriptionGroup.json").unlink()
        broker.start()
        broker.wait_ready()
        client = GroupClient(broker.address, "a", "g", HeaderType.JSON)
        assert client.commit("T", 4).code == 0
        client.close()
