"""SQL92 filters over the wire: in pulls, in subscriptions, while a pull waits, in checks; and their refusals."""

from __future__ import annotations

import subprocess
import time
from itertools import count
from pathlib import Path

import pytest

import reput_client
from reput_broker import Broker, BrokerConfig
from reput_client.blocking import Admin, Consumer, Message, Producer, PullConsumer
from reput_client.consume.pull import PullStatus
from reput_protocol.codes import PullSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.group import CheckClientBody, ConsumerData, HeartbeatData, SubscriptionData
from reput_protocol.commands.pull import PullMessageHeader
from reput_protocol.errors import BrokerError, ErrorCode, FilterRefused
from reput_protocol.record.record import record_views
from reput_protocol.wire.header import Header, HeaderType
from support.broker_process import BrokerProcess
from support.command import reput
from support.group_client import GroupClient
from support.inside import log_of
from support.raw_client import RawClient

pytestmark = pytest.mark.process

TYPES = pytest.mark.parametrize("kind", list(HeaderType))
_numbers = count()


def new_topic(broker: BrokerProcess) -> str:
    topic = f"topic{next(_numbers)}"
    with Admin(broker.address, timeout_s=30.0) as admin:
        admin.create_topic(topic, queues=1)
    return topic


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A topic with ten messages, of which each has its number as body and as property `n`."""
    topic = new_topic(broker)
    fill(broker, topic, range(10))
    return topic


def fill(broker: BrokerProcess, topic: str, numbers: range) -> None:
    with Producer(broker.address, group="p") as producer:
        for n in numbers:
            producer.send(Message(topic, b"%d" % n, tag=f"t{n % 2}", properties={"n": str(n)}), queue_id=0)


def pull(
    client: RawClient, topic: str, sql: str, code: int = RequestCode.PULL_MESSAGE, **more: object
) -> tuple[Header, list[int]]:
    header, data = client.request(code, pull_header(topic, sql, **more).to_ext(client.header_type))
    return header, [int(view.body) for view in record_views(data)]


def pull_header(topic: str, sql: str, **more: object) -> PullMessageHeader:
    fields: dict[str, object] = {"consumer_group": "g", "queue_id": 0, "queue_offset": 0, "max_msg_nums": 32}
    fields |= {"sys_flag": PullSysFlag.SUBSCRIPTION, "subscription": sql, "expression_type": "SQL92"}
    return PullMessageHeader(topic=topic, **(fields | more))  # type: ignore[arg-type]


@TYPES
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_a_pull_gets_what_its_expression_is_true_for(
    broker: BrokerProcess, topic: str, kind: HeaderType, code: int
) -> None:
    with RawClient(broker.address, kind) as client:
        header, found = pull(client, topic, "n BETWEEN 3 AND 6 AND TAGS = 't1'", code)
        assert (header.code, found) == (0, [3, 5])
        assert int(str(header.ext["nextBeginOffset"])) == 10
        header, found = pull(client, topic, "n > 3", code, max_msg_nums=2)
        assert (found, int(str(header.ext["nextBeginOffset"]))) == ([4, 5], 6)
        header, found = pull(client, topic, "n > 10", code)
        assert (header.code, header.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        assert int(str(header.ext["nextBeginOffset"])) == 10
        header, found = pull(client, topic, "n > 10", code, queue_offset=10)
        assert header.code == ResponseCode.PULL_NOT_FOUND


@TYPES
def test_a_bad_expression_is_refused_with_the_place(broker: BrokerProcess, topic: str, kind: HeaderType) -> None:
    with RawClient(broker.address, kind) as client:
        header, _ = pull(client, topic, "n > 3 AND n LIKE 'x'")
        assert header.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert header.remark is not None
        assert header.remark.startswith("FILTER_SYNTAX: ")
        assert "(at character 12)\n  n > 3 AND n LIKE 'x'\n              ^" in header.remark
        assert pull(client, topic, "")[0].code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        header, _ = pull(client, topic, "n > 3", expression_type="XPATH")
        assert header.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert header.remark is not None
        assert "'XPATH' are unknown" in header.remark
        assert pull(client, topic, "t1", expression_type="TAG")[1] == [1, 3, 5, 7, 9]
        assert pull(client, topic, "t1", expression_type=None)[1] == [1, 3, 5, 7, 9]


def test_a_group_that_subscribed_with_an_expression_needs_none_in_its_pulls(broker: BrokerProcess, topic: str) -> None:
    def heartbeat(client: GroupClient, version: int, sql: str) -> None:
        consumer = ConsumerData("members", subscriptions=[SubscriptionData.of(topic, sql, version, "SQL92")])
        assert client.request(34, {}, HeartbeatData("a", [consumer]).to_json())[0].code == 0

    def pulled(client: GroupClient) -> tuple[Header, list[int]]:
        return pull(client, topic, "", consumer_group="members", sys_flag=0, subscription=None, expression_type=None)

    with GroupClient(broker.address, "a", "members") as client:
        heartbeat(client, 1, "n IN ('2', '4')")
        assert pulled(client)[1] == [2, 4]
        heartbeat(client, 2, "n IN '2'")
        header, _ = pulled(client)
        assert header.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert header.remark is not None
        assert "(at character 5)" in header.remark
        heartbeat(client, 3, "n = 7")
        assert pulled(client)[1] == [7]


def test_a_waiting_pull_is_woken_by_a_message_that_its_expression_is_true_for(
    broker: BrokerProcess, topic: str
) -> None:
    waiting = {"sys_flag": PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND, "suspend_timeout_millis": 20_000}
    with RawClient(broker.address) as client:
        started_at = time.monotonic()
        header = pull_header(topic, "n >= 12", queue_offset=10, **waiting)
        client.send(RequestCode.PULL_MESSAGE, header.to_ext(client.header_type))
        behind = client.send(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": 0})
        assert client.receive()[0].opaque == behind
        fill(broker, topic, range(10, 13))
        answer, data, _ = client.receive()
        assert [int(view.body) for view in record_views(data)] == [12], "10 and 11 did not wake it"
        assert answer.ext["nextBeginOffset"] == 13
        assert time.monotonic() - started_at < 15


@pytest.mark.trio
async def test_old_messages_are_filtered_without_delaying_others(tmp_path: Path) -> None:
    """What counts as out of memory is looked at by a worker thread, and is counted when it was found."""
    store = {"commit_log_file_size": 1 << 16, "index_slots": 100, "index_entries": 1000}
    config = BrokerConfig.model_validate({"data_dir": tmp_path, "port": 0, "store": store})
    async with Broker(config) as broker, reput_client.PullConsumer(broker.address, group="g") as puller:
        async with reput_client.Producer(broker.address, group="p") as producer:
            for n in range(200):
                await producer.send(Message("old", (b"%04d" % n) * 500, properties={"n": str(n)}), queue_id=0)
        broker.store._reader.warm_from = broker.store.max_physical_offset  # as after a restart
        found: list[bytes] = []
        offset = 0
        while offset < 200:
            result = await puller.pull("old", 0, offset, sql="n BETWEEN 5 AND 190", max_messages=50, wait_s=0)
            found += [message.body[:4] for message in result.messages]
            offset = result.next_begin_offset
        assert found == [b"%04d" % n for n in range(5, 191)]
        nothing = await puller.pull("old", 0, 0, sql="n < 0", wait_s=0)
        assert (nothing.status, nothing.next_begin_offset) == (PullStatus.NO_MATCHED_MESSAGE, 200)
        stats = broker.store.stats
        assert (stats.get_cold, stats.get_messages) == (stats.get_found, 186)
        # Nothing of it stays held.
        assert all(file._references == 1 for file in log_of(broker.store).files.files)


@TYPES
def test_a_subscription_is_judged_before_its_consumer_starts(broker: BrokerProcess, kind: HeaderType) -> None:
    with RawClient(broker.address, kind) as client:

        def judged(expression: str, expression_type: str) -> tuple[int, str | None]:
            subscription = SubscriptionData("t", expression, 1, expression_type)
            header, _ = client.request(46, {}, CheckClientBody("c", "g", subscription).to_json())
            return header.code, header.remark

        assert judged("n > 3", "SQL92") == (0, None)
        assert judged("a || b", "TAG") == (0, None)
        assert judged("*", "") == (0, None)
        code, remark = judged("n >", "SQL92")
        assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert remark is not None
        assert "(at character 3)" in remark
        assert judged("n", "XPATH")[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_where_sql_is_turned_off_it_is_refused_and_tags_are_not(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", environment={"REPUT_FILTERS__SQL": "false"}) as broker:
        topic = new_topic(broker)
        fill(broker, topic, range(3))
        with RawClient(broker.address) as client:
            header, _ = pull(client, topic, "n > 0")
            assert header.code == ResponseCode.SYSTEM_ERROR
            assert header.remark is not None
            assert "filters.sql = true" in header.remark
            assert pull(client, topic, "t1", expression_type="TAG")[1] == [1]
            body = CheckClientBody("c", "g", SubscriptionData("t", "n > 3", 1, "SQL92")).to_json()
            assert client.request(46, {}, body)[0].code == ResponseCode.SYSTEM_ERROR


def test_the_client_pulls_and_consumes_by_expression(broker: BrokerProcess, topic: str) -> None:
    with PullConsumer(broker.address, group="g") as puller:
        result = puller.pull(topic, 0, 0, sql="n > 7", wait_s=0)
        assert ([m.body for m in result.messages], result.next_begin_offset) == ([b"8", b"9"], 10)
        assert puller.pull(topic, 0, 0, sql="n > 9", wait_s=0).status is PullStatus.NO_MATCHED_MESSAGE
        with pytest.raises(FilterRefused, match=r"\(at character 3\)\n  n >\n     \^") as caught:
            puller.pull(topic, 0, 0, sql="n >", wait_s=0)
        assert caught.value.error is ErrorCode.FILTER_SYNTAX
        with pytest.raises(ValueError, match="not both"):
            puller.pull(topic, 0, 0, tags="t1", sql="n > 7")
    with Consumer(broker.address, group="sql", topic=topic, sql="n IN ('0', '9')") as consumer:
        assert [message.body for message in (consumer.receive(10.0), consumer.receive(10.0)) if message] == [b"0", b"9"]
    with Consumer(broker.address, group="bad", topic=topic, sql="n IN") as consumer, pytest.raises(BrokerError):
        consumer.receive(10.0)


def test_the_command_line_shows_where_an_expression_is_bad(broker: BrokerProcess, topic: str) -> None:
    def consume(*arguments: str) -> subprocess.CompletedProcess[str]:
        return reput("consume", topic, "-e", "-f", "%v", *arguments, server=broker.address)

    found = consume("--sql", "n > 3 AND TAGS = 't0'")
    assert (found.returncode, found.stdout.split()) == (0, ["4", "6", "8"])
    bad = consume("--sql", "n > 3 AND")
    assert bad.returncode == 2
    assert bad.stderr.splitlines()[1:3] == ["  reason: n > 3 AND", "                   ^"]
    assert consume("--sql", "n > 3", "--tag", "t0").returncode == 2
