"""Requests and replies through a real broker: many at once, and with each of the three parties gone in the middle."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from reput_client import Consumer, Message, Producer, ReceivedMessage, blocking
from reput_client.errors import ClientClosed, ReplyTimeout
from reput_protocol.codes import RequestCode
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import ReputError, RequesterGone
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.wire.header import HeaderType
from support.broker_process import BrokerProcess
from support.command import reput
from support.group_client import GroupClient
from support.stored_messages import bodies_of
from support.waiting import wait_until

pytestmark = pytest.mark.process

REPLIES = "DefaultCluster_REPLY_TOPIC"
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "store") as process:
        with blocking.Admin(process.address, timeout_s=30.0) as admin:
            admin.create_topic("work", queues=4)
        yield process


def replies_counted(broker: BrokerProcess) -> dict[str, int]:
    """What the metrics page says of replies, by result."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=30.0) as page:
        lines = page.read().decode().splitlines()
    prefix = 'reput_replies_total{result="'
    return {
        line.removeprefix(prefix).partition('"')[0]: int(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith(prefix)
    }


@contextmanager
def worker(broker: BrokerProcess, handle: Callable[[blocking.Producer, ReceivedMessage], None]) -> Iterator[None]:
    """A member of the group that does the work, until the end of the block."""
    consumer = blocking.Consumer(broker.address, group="workers", topic="work", start="earliest", timeout_s=30.0)
    with blocking.Producer(broker.address, timeout_s=30.0) as producer, consumer:

        def work() -> None:
            try:
                for message in consumer:
                    handle(producer, message)
            except ClientClosed:
                pass

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            consumer.close()
            thread.join()


def echo_if_somebody_waits(producer: blocking.Producer, message: ReceivedMessage) -> None:
    with suppress(RequesterGone):
        echo(producer, message)


def echo(producer: blocking.Producer, message: ReceivedMessage) -> None:
    producer.reply(message, b"re: " + message.body, tag="pong", timeout_s=30.0)


@pytest.mark.anyio
async def test_many_requests_at_once_get_each_its_own_reply(broker: BrokerProcess) -> None:
    count = 300
    got: dict[int, bytes] = {}
    async with (
        Producer(broker.address, group="asking", timeout_s=60.0) as producer,
        Producer(broker.address, group="workers", timeout_s=60.0) as replier,
        Consumer(broker.address, group="workers", topic="work", start="earliest") as consumer,
        anyio.create_task_group() as tasks,
    ):

        async def handle(message: ReceivedMessage) -> None:
            assert message.wants_reply
            await replier.reply(message, b"re: " + message.body, timeout_s=60.0)

        async def work() -> None:
            await consumer.run(handle, concurrency=64)

        async def ask(number: int) -> None:
            reply = await producer.request(Message("work", b"%d" % number), timeout_s=60.0)
            got[number] = reply.body

        tasks.start_soon(work)
        async with anyio.create_task_group() as requests:
            for number in range(count):
                requests.start_soon(ask, number)
        assert producer.late_replies == 0
        tasks.cancel_scope.cancel()
    assert got == {number: b"re: %d" % number for number in range(count)}
    assert replies_counted(broker) == {"delivered": count, "no_requester": 0, "not_taken": 0}
    # A copy is stored after its reply has been handed over, and readable once it is on the disk.
    wait_until(lambda: len(bodies_of(broker.address, REPLIES)) >= count)
    assert sorted(bodies_of(broker.address, REPLIES)) == sorted(got.values())


def test_threads_share_a_producer_for_their_requests(broker: BrokerProcess) -> None:
    got: dict[int, bytes] = {}
    with worker(broker, echo), blocking.Producer(broker.address, timeout_s=60.0) as producer:

        def ask(number: int) -> None:
            reply = producer.request(Message("work", b"%d" % number))
            got[number] = reply.body
            assert (reply.tag, reply.properties["MSG_TYPE"]) == ("pong", "reply")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == {number: b"re: %d" % number for number in range(50)}


def test_a_reply_to_a_gone_requester_raises(broker: BrokerProcess) -> None:
    failures: list[ReputError] = []
    handled = threading.Event()
    leave = threading.Event()

    def handle(producer: blocking.Producer, message: ReceivedMessage) -> None:
        leave.wait(60.0)
        try:
            echo(producer, message)
        except ReputError as error:
            failures.append(error)
        handled.set()

    with worker(broker, handle):
        requester = blocking.Producer(broker.address, timeout_s=60.0)
        requester.__enter__()

        def ask() -> None:
            with pytest.raises(ClientClosed):
                requester.request(Message("work", b"ping"))

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: sum(len(messages) for messages in work_of(broker)) == 1)
        requester.close()
        thread.join()
        time.sleep(5.0)  # for so long after its start the broker waits for requesters to reconnect
        leave.set()
        assert handled.wait(60.0)
    (failure,) = failures
    assert isinstance(failure, RequesterGone)
    assert "channel of <" in str(failure)
    assert replies_counted(broker)["no_requester"] == 1


def work_of(broker: BrokerProcess) -> list[Sequence[ReceivedMessage]]:
    with blocking.PullConsumer(broker.address, group="reader", timeout_s=30.0) as consumer:
        return [consumer.pull("work", queue, 0, wait_s=0.0).messages for queue in range(4)]


def test_without_a_replier_a_request_ends_in_time_and_one_that_comes_later_is_too_late(broker: BrokerProcess) -> None:
    with blocking.Producer(broker.address, timeout_s=60.0) as producer:
        with pytest.raises(ReplyTimeout) as failure:
            producer.request(Message("work", b"ping"), timeout_s=0.5)
        assert failure.value.is_stored
        ((message,),) = [messages for messages in work_of(broker) if messages]
        assert message.properties["CORRELATION_ID"] == failure.value.correlation_id
        assert message.properties["TTL"] == "500"
        with worker(broker, echo):
            wait_until(lambda: producer.late_replies == 1)
            assert producer.request(Message("work", b"2")).body == b"re: 2"
        assert producer.late_replies == 1
    assert replies_counted(broker)["delivered"] == 2, "the client has it, only nobody there waits"


def test_requests_that_wait_survive_a_killed_broker(broker: BrokerProcess) -> None:
    got: dict[int, bytes] = {}
    with blocking.Producer(broker.address, timeout_s=60.0) as producer:

        def ask(number: int) -> None:
            got[number] = producer.request(Message("work", b"%d" % number), timeout_s=60.0).body

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        wait_until(lambda: sum(len(messages) for messages in work_of(broker)) == 20)
        broker.kill()
        broker.start()
        broker.wait_ready()
        with worker(broker, echo):
            for thread in threads:
                thread.join()
    assert got == {number: b"re: %d" % number for number in range(20)}


def test_a_request_from_the_command_line(broker: BrokerProcess) -> None:
    def request(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return reput("request", "work", *arguments, server=broker.address, text=text)

    late = request("ping", "--timeout", "500ms")
    assert (late.returncode, late.stdout) == (6, "")
    assert "no reply has come within 0.5 s" in late.stderr
    with worker(broker, echo_if_somebody_waits):
        assert request("ping", "--timeout", "30s").stdout == "re: ping\n"
        assert request("--timeout", "30s", text="of stdin\n").stdout == "re: of stdin\n"
        line = json.loads(request("ping", "-O", "json", "--timeout", "30s").stdout)
        assert (line["body"], line["tag"], line["topic"]) == ("re: ping", "pong", REPLIES)


@pytest.mark.parametrize("kind", [HeaderType.JSON, HeaderType.BINARY])
def test_what_rocketmqs_clients_send_and_get(broker: BrokerProcess, kind: HeaderType) -> None:
    """Frame by frame: a requester as Java's with our replier, then our requester with a replier as Java's."""
    with worker(broker, echo):
        java = GroupClient(broker.address, "10.0.0.1@1", header_type=kind)
        java.heartbeat(producers=("asking",))
        properties = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.1@1", "TTL": "3000", "WAIT": "true"}
        header = SendMessageHeader("asking", "work", 0, properties=encode_properties(properties).decode())
        answer, _ = java.request(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(kind), b"ping")
        assert answer.code == 0, answer.remark
        asked, body = java.next_asked(PUSH)
        java.reply(asked)
        pushed = PushReplyHeader.from_ext(asked.ext)
        assert (body, pushed.topic) == (b"re: ping", REPLIES)
        found = decode_properties((pushed.properties or "").encode())
        assert (found["CORRELATION_ID"], found["MSG_TYPE"], found["TTL"]) == ("c-1", "reply", "3000")
        assert found["PUSH_REPLY_TIME"].isdecimal()
        wait_until(lambda: replies_counted(broker)["delivered"] == 1)
        java.close()

    java = GroupClient(broker.address, "10.0.0.1@2", header_type=kind)

    def replier() -> None:
        wait_until(lambda: sum(len(messages) for messages in work_of(broker)) == 2)
        (request,) = [m for messages in work_of(broker) for m in messages if m.body == b"from ours"]
        found = request.properties
        names = ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")
        reply = {name: found[name] for name in names} | {"MSG_TYPE": "reply", "UNIQ_KEY": "u"}
        topic = f"{found['CLUSTER']}_REPLY_TOPIC"
        header = SendMessageHeader("workers", topic, 0, properties=encode_properties(reply).decode())
        answer, _ = java.request(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_ext_v2(kind), b"from Java")
        assert answer.code == 0, answer.remark
        assert len(str(answer.ext["msgId"])) == 32
        assert str(answer.ext["queueId"]) == "0"

    thread = threading.Thread(target=replier)
    thread.start()
    with blocking.Producer(broker.address, timeout_s=60.0) as producer:
        reply = producer.request(Message("work", b"from ours"))
        assert (reply.body, reply.message_id) == (b"from Java", "u")
        thread.join()
    java.close()
