"""Groups under administration over the wire: settings, connections, progress, offsets set, requests passed on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from reput_client.blocking import Admin, Message, MessageQueue, Producer
from reput_protocol.codes import ConsumeResult, LanguageCode, MessageModel, RequestCode, ResponseCode
from reput_protocol.commands.consumers import (
    ConsumeDirectlyHeader,
    ConsumeDirectlyResult,
    ConsumerRunningInfoHeader,
    ConsumeStats,
    ConsumeStatsHeader,
    ConsumeTimeSpan,
    ConsumeTimeSpanHeader,
)
from reput_protocol.commands.group import (
    ConsumerSubscriptionHeader,
    ConsumerTopicsHeader,
    DeleteSubscriptionGroupHeader,
    GroupForbiddenHeader,
    GroupList,
    QuerySubscriptionBody,
    SubscriptionGroupConfig,
    SubscriptionGroupHeader,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    SubscriptionGroupTableHeader,
    TopicConsumersHeader,
)
from reput_protocol.commands.group_description import (
    ConsumerConnection,
    ConsumerConnectionHeader,
    ProducerConnection,
    ProducerConnectionHeader,
    ProducerTable,
)
from reput_protocol.commands.offset import CloneGroupOffsetHeader, ResetOffsetBody, ResetOffsetHeader
from reput_protocol.commands.topic import TopicList
from reput_protocol.errors import BrokerBusy, BrokerError, GroupNotFound, NotFound, TopicNotFound
from reput_protocol.record.record import decode_record
from reput_protocol.wire.header import HeaderType
from support.broker_process import BrokerProcess
from support.group_client import Connect, GroupClient, group_clients
from support.waiting import wait_until

pytestmark = pytest.mark.process

_numbers = count()
JSON = HeaderType.JSON


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address, timeout_s=30.0) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"topic{next(_numbers)}"
    admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def group() -> str:
    return f"group{next(_numbers)}"


@pytest.fixture
def connect(broker: BrokerProcess, group: str) -> Iterator[Connect]:
    with group_clients(broker.address, group, JSON) as connect:
        yield connect


def send(broker: BrokerProcess, topic: str, number: int, queue_id: int = 0) -> list[str]:
    with Producer(broker.address, group="p") as producer:
        messages = [Message(topic, b"%d" % position) for position in range(number)]
        return [producer.send(message, queue_id=queue_id).offset_message_id for message in messages]


def queue(topic: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


# Settings


def test_groups_are_created_changed_shown_and_deleted(connect: Connect, group: str) -> None:
    client = connect("x")
    client.request(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, SubscriptionGroupConfig(group, retry_max_times=3).to_json()
    )
    _, body = client.ask(SubscriptionGroupHeader(group))
    assert SubscriptionGroupConfig.from_json(body).retry_max_times == 3
    header, body = client.ask(SubscriptionGroupTableHeader(group_seq=0, max_group_num=1))
    table = SubscriptionGroupTable.from_json(body)
    assert table.groups[group].retry_max_times == 3
    assert "TOOLS_CONSUMER" in table.groups
    assert header.ext["totalGroupNum"] == str(len(table.groups)), "all at once, whatever page is asked for"
    names = [f"{group}-{letter}" for letter in "ab"]
    several = SubscriptionGroupList([SubscriptionGroupConfig(name) for name in names])
    assert client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, several.to_json())[0].code == 0
    bad = SubscriptionGroupList([SubscriptionGroupConfig(f"{group}-c"), SubscriptionGroupConfig("no spaces")])
    header, _ = client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, bad.to_json())
    assert header.code == ResponseCode.INVALID_PARAMETER
    _, body = client.ask(SubscriptionGroupTableHeader())
    assert set(names) <= set(SubscriptionGroupTable.from_json(body).groups)
    assert f"{group}-c" not in SubscriptionGroupTable.from_json(body).groups, "all or none"
    for _ in range(2):
        assert client.ask(DeleteSubscriptionGroupHeader(names[0], clean_offset=True))[0].code == 0
    _, body = client.ask(SubscriptionGroupTableHeader())
    assert names[0] not in SubscriptionGroupTable.from_json(body).groups
    header, _ = client.ask(DeleteSubscriptionGroupHeader("TOOLS_CONSUMER"))
    assert header.code == ResponseCode.INVALID_PARAMETER


def test_asking_for_a_group_creates_it_for_rocketmq_s_tools_and_not_for_ours(
    connect: Connect, admin: Admin, group: str
) -> None:
    with pytest.raises(GroupNotFound):
        admin.group_config(group)
    assert connect("x").ask(SubscriptionGroupHeader(group))[0].code == 0
    assert admin.group_config(group) == SubscriptionGroupConfig(group)


def test_pulls_of_a_disabled_forbidden_or_deleted_group_stop_waiting(
    broker: BrokerProcess, connect: Connect, admin: Admin, topic: str, group: str
) -> None:
    client = connect("a")
    client.heartbeat(topic)
    waiting = client.hold(topic, 0)
    admin.put_group(SubscriptionGroupConfig(group, consume_enable=False))
    assert client.answer_to(waiting)[0].code == ResponseCode.NO_PERMISSION
    admin.put_group(SubscriptionGroupConfig(group))
    waiting = client.hold(topic, 0)
    connect("admin").ask(GroupForbiddenHeader(group, topic, False))
    assert client.answer_to(waiting)[0].code == ResponseCode.NO_PERMISSION
    connect("admin").ask(GroupForbiddenHeader(group, topic, True))
    waiting = client.hold(topic, 0)
    admin.delete_group(group)
    assert client.answer_to(waiting)[0].code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# Connections


def test_connected_clients(connect: Connect, topic: str, group: str) -> None:
    client = connect("a")
    header, _ = client.ask(ConsumerConnectionHeader(group))
    assert header.code == ResponseCode.CONSUMER_NOT_ONLINE
    header, _ = client.ask(ProducerConnectionHeader(f"p-{group}"))
    assert header.code == 1
    client.heartbeat(topic, model=MessageModel.BROADCASTING, producers=(f"p-{group}",))
    _, body = client.ask(ConsumerConnectionHeader(group))
    found = ConsumerConnection.from_json(body)
    (connection,) = found.connections
    assert (connection.client_id, connection.language) == ("a", LanguageCode.PYTHON.name)
    assert connection.client_addr.startswith("127.0.0.1:")
    assert set(found.subscriptions) == {topic, f"%RETRY%{group}"}
    assert found.message_model is MessageModel.BROADCASTING
    _, body = client.ask(ProducerConnectionHeader(f"p-{group}"))
    assert ProducerConnection.from_json(body).connections == [connection]
    _, body = client.request(RequestCode.GET_ALL_PRODUCER_INFO)
    (producer,) = ProducerTable.from_json(body).producers[f"p-{group}"]
    assert producer.remote_ip == f"/{connection.client_addr}"
    assert abs(producer.last_update_timestamp - time.time() * 1000) < 60_000


def test_topics_and_their_consumers(connect: Connect, topic: str, group: str) -> None:
    client, other = connect("a"), connect("b", group=f"{group}-offsets")
    client.heartbeat(expressions={topic: "paid"})
    other.ask(SubscriptionGroupHeader(other.group))
    other.commit(topic, 0)
    _, body = client.ask(TopicConsumersHeader(topic))
    assert GroupList.from_json(body).groups == [group, other.group]
    _, body = client.ask(ConsumerSubscriptionHeader(group, topic))
    subscription = QuerySubscriptionBody.from_json(body).subscription
    assert subscription is not None
    assert subscription.sub_string == "paid"
    _, body = client.ask(ConsumerSubscriptionHeader(other.group, topic))
    assert QuerySubscriptionBody.from_json(body).subscription is None
    _, body = client.ask(ConsumerTopicsHeader(other.group))
    assert TopicList.from_json(body).topics == [topic]


# Progress


def test_a_group_s_progress(broker: BrokerProcess, connect: Connect, topic: str, group: str) -> None:
    send(broker, topic, 10)
    client = connect("a")
    client.heartbeat(topic)
    client.pull(topic, 0)
    client.commit(topic, 4)
    _, body = client.ask(ConsumeStatsHeader(group))
    stats = ConsumeStats.from_json(body)
    wrapper = stats.offset_table[queue(topic)]
    assert (wrapper.broker_offset, wrapper.consumer_offset, wrapper.pull_offset) == (10, 4, 10)
    assert abs(wrapper.last_timestamp - time.time() * 1000) < 60_000
    assert stats.offset_table[queue(topic, 1)].broker_offset == 0
    client.heartbeat("another")
    _, body = client.ask(ConsumeStatsHeader(group))
    assert ConsumeStats.from_json(body).offset_table == {}, "an online group's other topics are left out"
    _, body = client.ask(ConsumeStatsHeader(group, topic))
    assert len(ConsumeStats.from_json(body).offset_table) == 2
    _, body = client.ask(ConsumeTimeSpanHeader(topic, group))
    span, empty = ConsumeTimeSpan.from_json(body).spans
    assert span.min_timestamp <= span.consume_timestamp <= span.max_timestamp
    assert 0 <= span.delay_time < 60_000
    assert (empty.min_timestamp, empty.max_timestamp, empty.delay_time) == (-1, -1, 0)


def test_groups_as_administrators_see_them(
    broker: BrokerProcess, connect: Connect, admin: Admin, topic: str, group: str
) -> None:
    send(broker, topic, 10)
    client, other = connect("a"), connect("b", HeaderType.MSGPACK)
    client.heartbeat(topic)
    other.heartbeat(topic)
    client.pull(topic, 0)
    before = time.time() * 1000
    client.commit(topic, 4)
    client.lock(topic, 1)
    summary = next(found for found in admin.list_groups() if found.group == group)
    assert (summary.members, summary.lag, summary.topics) == (2, 6, sorted({topic, f"%RETRY%{group}"}))
    description = admin.describe_group(group)
    first, second = [found for found in description.queues if found.topic == topic]
    assert (first.start_offset, first.end_offset, first.committed_offset, first.lag) == (0, 10, 4, 6)
    assert (first.in_flight, first.client_id) == (6, "a")
    assert before - 1 <= first.last_commit_timestamp <= time.time() * 1000
    assert 0 < first.lag_age_millis < 60_000
    assert (second.committed_offset, second.client_id, second.last_commit_timestamp) == (-1, "a", -1)
    a, b = description.members
    assert (a.client_id, a.queues, a.locks, b.client_id, b.queues) == ("a", 2, 1, "b", 0)
    assert {found.topic for found in description.subscriptions} == {topic, f"%RETRY%{group}"}
    assert {found.topic for found in admin.describe_group(group, topic).queues} == {topic}
    with pytest.raises(GroupNotFound):
        admin.describe_group("no_such_group")
    assert admin.topic_groups(topic) == [group]
    assert admin.consume_stats(group).lag == 6
    assert admin.consume_time_span(group, topic).spans[0].queue == queue(topic)


def test_nothing_is_in_flight_without_members(
    broker: BrokerProcess, connect: Connect, admin: Admin, topic: str, group: str
) -> None:
    send(broker, topic, 10)
    client = connect("a")
    client.heartbeat(topic)
    client.pull(topic, 0)
    client.commit(topic, 4)

    def in_flight() -> int:
        return admin.describe_group(group, topic).queues[0].in_flight

    assert in_flight() == 6
    client.close()
    wait_until(lambda: not admin.describe_group(group).members)
    assert in_flight() == 0


# Setting offsets


@pytest.mark.parametrize("kind", [JSON, HeaderType.MSGPACK])
def test_a_reset_reaches_members_at_once_and_is_not_overwritten(
    broker: BrokerProcess, connect: Connect, topic: str, group: str, kind: HeaderType
) -> None:
    send(broker, topic, 10)
    client = connect("a", kind)
    client.heartbeat(topic)
    client.commit(topic, 10)
    waiting = client.hold(topic, 10)
    header, body = connect("admin").ask(ResetOffsetHeader(topic, group, 0, is_force=True))
    assert header.code == 0
    expected = {queue(topic): 0, queue(topic, 1): 0}
    assert ResetOffsetBody.from_json(body).offset_table == expected
    header, _ = client.answer_to(waiting)
    assert (header.code, str(header.ext["nextBeginOffset"])) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    told, body = client.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert (told.ext["topic"], told.ext["group"], str(told.ext["isForce"]).lower()) == (topic, group, "true")
    assert ResetOffsetBody.from_json(body).offset_table == expected
    assert client.committed(topic) == 0


def test_a_member_that_does_not_know_of_a_reset_yet_commits_in_vain(
    broker: BrokerProcess, connect: Connect, topic: str, group: str
) -> None:
    send(broker, topic, 10)
    client = connect("a")
    client.heartbeat(topic)
    client.commit(topic, 9)
    connect("admin").ask(ResetOffsetHeader(topic, group, -1, queue_id=0, offset=3))
    assert client.commit(topic, 10).code == 0
    assert client.committed(topic) == 3
    header, _ = client.pull(topic, 10)
    assert (header.code, header.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")
    assert client.pull(topic, 3)[0].code == 0
    assert client.commit(topic, 5).code == 0
    assert client.committed(topic) == 5


def test_a_group_that_pulls_at_its_new_offset_is_not_redirected(
    broker: BrokerProcess, connect: Connect, topic: str, group: str
) -> None:
    send(broker, topic, 10)
    client = connect("a")
    client.ask(SubscriptionGroupHeader(group))
    connect("admin").ask(ResetOffsetHeader(topic, group, -1, queue_id=0, offset=3))
    client.heartbeat(topic)
    assert client.committed(topic) == 3
    assert client.pull(topic, 3)[0].code == 0
    assert client.commit(topic, 4).code == 0
    assert client.committed(topic) == 4


def test_offsets_after_a_reset(broker: BrokerProcess, connect: Connect, admin: Admin, topic: str, group: str) -> None:
    send(broker, topic, 5)
    time.sleep(0.02)
    middle = datetime.now(UTC)
    time.sleep(0.02)
    send(broker, topic, 5)
    client = connect("a")
    client.ask(SubscriptionGroupHeader(group))
    client.commit(topic, 6)

    def plan(**where: object) -> list[int | None]:
        found = admin.plan_reset(group, topic, **where)  # type: ignore[arg-type]
        return [found.get(queue(topic, queue_id)) for queue_id in (0, 1)]

    assert plan(when=0) == [0, 0]
    assert plan(when=-1) == [10, 0]
    assert plan(when=middle) == [5, 0]
    assert plan(offset=7) == [7, 0], "the nearest that there is"
    assert plan(offset=-3) == [7, 0], "from the end"
    assert plan(shift=-2) == [4, None], "the group has no offset in the other queue"
    assert plan(shift=100) == [10, None]
    assert plan(offset=7, queue_id=0) == plan(offset=-3, queue_id=0) == [7, None]
    assert plan(offset=99, queue_id=0) == [10, None]
    assert client.committed(topic) == 6, "a plan changes nothing"
    assert admin.reset_offsets(group, topic, shift=-2) == {queue(topic): 4}
    assert client.committed(topic) == 4
    admin.set_offsets(group, {queue(topic): 99})
    assert client.committed(topic) == 10
    with pytest.raises(ValueError, match="one of"):
        admin.plan_reset(group, topic)
    with pytest.raises(GroupNotFound):
        admin.plan_reset("no_such_group", topic, when=0)
    with pytest.raises(TopicNotFound):
        admin.plan_reset(group, "no_such_topic", when=0)
    with pytest.raises(BrokerError, match="has no queue 7"):
        admin.set_offsets(group, {queue(topic, 7): 0})
    with pytest.raises(BrokerError, match="has no queue 7"):
        admin.plan_reset(group, topic, when=0, queue_id=7)
    header, _ = client.ask(ResetOffsetHeader(topic, group, -1, queue_id=0, offset=12))
    assert header.code == 1
    assert str(header.remark).startswith("OFFSET_OUT_OF_RANGE: ")


def test_an_offset_of_minus_one_is_none_for_rocketmq_s_tools(
    broker: BrokerProcess, connect: Connect, topic: str, group: str
) -> None:
    send(broker, topic, 10)
    client = connect("a")
    client.ask(SubscriptionGroupHeader(group))
    _, body = client.ask(ResetOffsetHeader(topic, group, 0, is_force=True, queue_id=-1, offset=-1))
    assert ResetOffsetBody.from_json(body).offset_table == {queue(topic): 0, queue(topic, 1): 0}
    _, body = client.ask(ResetOffsetHeader(topic, group, -1, is_force=True, queue_id=0, offset=-1))
    assert ResetOffsetBody.from_json(body).offset_table == {queue(topic): 10}


def test_offsets_are_copied_to_another_group(
    broker: BrokerProcess, connect: Connect, admin: Admin, topic: str, group: str
) -> None:
    send(broker, topic, 10)
    source, target = connect("a"), connect("b", group=f"{group}-copy")
    source.heartbeat(topic)
    source.commit(topic, 7)
    assert admin.clone_offsets(group, target.group, dry_run=True) == {queue(topic): 7}
    assert target.committed(topic) is None
    with pytest.raises(GroupNotFound):
        admin.group_config(target.group)
    assert admin.clone_offsets(group, target.group) == {queue(topic): 7}
    assert target.committed(topic) == 7
    admin.group_config(target.group)
    with pytest.raises(NotFound):
        admin.clone_offsets("no_such_group", target.group)
    source.commit(topic, 8)
    source.heartbeat("another")
    target.ask(CloneGroupOffsetHeader(group, target.group))
    assert target.committed(topic) == 7, "an online group's other topics are left out"
    target.ask(CloneGroupOffsetHeader(group, target.group, topic, offline=True))
    assert target.committed(topic) == 8


def test_offsets_that_were_set_are_there_after_a_crash(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "store")
    with broker:
        with Admin(broker.address, timeout_s=30.0) as admin:
            admin.create_topic("T")
            send(broker, "T", 10)
            admin.put_group(SubscriptionGroupConfig("g"))
            admin.reset_offsets("g", "T", offset=4)
        broker.kill()
        broker.start()
        broker.wait_ready()
        client = GroupClient(broker.address, "a", "g")
        assert client.committed("T") == 4
        client.close()


# Questions passed on


def test_a_question_to_a_member_is_passed_on_and_so_is_its_answer(
    broker: BrokerProcess, connect: Connect, topic: str, group: str
) -> None:
    (message_id,) = send(broker, topic, 1)
    member, admin = connect("a"), connect("admin", HeaderType.MSGPACK)
    member.heartbeat(topic)
    asked = ConsumerRunningInfoHeader(group, "a", jstack_enable=True)
    opaque = admin.send(RequestCode.GET_CONSUMER_RUNNING_INFO, asked.to_ext(HeaderType.MSGPACK))
    header, _ = member.next_asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert header.ext == {"consumerGroup": group, "clientId": "a", "jstackEnable": "true"}
    assert not header.is_oneway
    member.reply(header, 0, b'{"properties":{"a":"b"}}')
    answer, body = admin.answer_to(opaque)
    assert (answer.code, body) == (0, b'{"properties":{"a":"b"}}')

    directly = ConsumeDirectlyHeader(group, "a", message_id)
    opaque = admin.send(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly.to_ext(HeaderType.MSGPACK))
    header, body = member.next_asked(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert decode_record(body).body == b"0"
    assert header.ext == {
        "consumerGroup": group, "clientId": "a", "msgId": message_id, "brokerName": "broker-a",
        "topicSysFlag": "0", "groupSysFlag": "0",
    }  # fmt: skip
    result = ConsumeDirectlyResult(consume_result=ConsumeResult.CR_LATER, remark="later")
    member.reply(header, 0, result.to_json())
    answer, body = admin.answer_to(opaque)
    assert ConsumeDirectlyResult.from_json(body).consume_result is ConsumeResult.CR_LATER


def test_a_member_that_is_gone_silent_or_asks_for_itself(
    broker: BrokerProcess, connect: Connect, admin: Admin, topic: str, group: str
) -> None:
    member = connect("a", HeaderType.MSGPACK)
    member.heartbeat(topic)
    with pytest.raises(NotFound):
        admin.running_info(group, "nobody")
    with pytest.raises(NotFound):
        admin.consume_directly(group, "a", "00" * 12 + "7FFFFFFF")
    with pytest.raises(BrokerError, match="offset message id"):
        admin.consume_directly(group, "a", "x")
    with pytest.raises(BrokerBusy, match="within 10 s"):
        admin.running_info(group, "a")
    late, _ = member.next_asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.reply(late, 0, b"too late")
    ext = ConsumerRunningInfoHeader(group, "a").to_ext(HeaderType.MSGPACK)
    opaque = member.send(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    header, _ = member.next_asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.reply(header, 0, b"{}")
    assert member.answer_to(opaque)[1] == b"{}"
    asks = connect("b", HeaderType.MSGPACK)
    opaque = asks.send(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    member.next_asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.close()
    header, _ = asks.answer_to(opaque)
    assert (header.code, str(header.remark)[:11]) == (1, "NOT_FOUND: ")
