"""What clients read from a slave whose master was killed: clients of before, and those that start then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from reput_client import Message, MessageQueue, PullStatus, blocking
from reput_client.errors import ReputError, TopicNotFound
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import Value
from support.broker_process import BrokerProcess, free_port
from support.faces import FACES, Face
from support.raw_client import RawClient
from support.waiting import wait_until

QUEUE: Final = MessageQueue("t", "broker-a", 0)
MESSAGES: Final = 10
COMMITTED: Final = 3
BODIES: Final = [b"%d" % number for number in range(MESSAGES)]

pytestmark = pytest.mark.process


@dataclass
class Pair:
    """A master whose queue has `MESSAGES`, of which group `g` has committed `COMMITTED`, its slave, and a name server.

    The slave has all of it, and routes name both.
    """

    master: BrokerProcess
    slave: BrokerProcess
    names: BrokerProcess

    def address(self, kind: str) -> str:
        """Return what a client is given."""
        both = f"{self.master.address},{self.slave.address}"
        return {"slave": self.slave.address, "both": both, "names": self.names.address}[kind]

    def routed(self, address: str) -> set[int]:
        """Return the ids of the members that the name service at `address` routes to; none if it lacks the topic."""
        with blocking.Admin(address) as admin, suppress(TopicNotFound):
            return set(admin.route("t").broker_datas[0].broker_addrs)
        return set()

    def fill(self) -> None:
        with (
            blocking.Producer(self.master.address) as producer,
            blocking.Consumer(self.master.address, group="g", topic="t", start="earliest") as consumer,
        ):
            for body in BODIES:
                producer.send(Message("t", body, keys=["k"]))
            for _ in range(COMMITTED):
                consumer.receive(10.0)
            consumer.commit()
        both = {0, 1}
        wait_until(lambda: self.routed(self.slave.address) == self.routed(self.names.address) == both)
        with RawClient(self.slave.address) as slave:
            queue: dict[str, Value] = {"topic": "t", "queueId": 0}

            def offset(code: RequestCode, **more: str) -> Any:
                return (slave.request(code, {**queue, **more})[0].ext or {}).get("offset")

            wait_until(lambda: offset(RequestCode.GET_MAX_OFFSET, topic="%RETRY%g") is not None)
            group = {"consumerGroup": "g"}
            wait_until(lambda: str(offset(RequestCode.GET_MAX_OFFSET)) == str(MESSAGES))
            wait_until(lambda: str(offset(RequestCode.QUERY_CONSUMER_OFFSET, **group)) == str(COMMITTED))


@contextmanager
def pair(root: Path) -> Iterator[Pair]:
    with ExitStack() as stack:

        def start(name: str, verb: str = "serve", **environment: str) -> BrokerProcess:
            return stack.enter_context(BrokerProcess(root / name, environment=environment, verb=verb))

        names = start("names", "namesrv")
        common = {
            "REPUT_NAME_SERVERS": names.address,
            "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "64KiB",
            "REPUT_TOPICS__DEFAULT_QUEUES": "1",
        }
        master = start("master", **common, REPUT_HA_PORT=str(free_port()))
        slave = start(
            "slave",
            **common,
            REPUT_BROKER_ID="1",
            REPUT_HA__ROLE="SLAVE",
            REPUT_HA__MASTER=master.address,
            REPUT_HA__SLAVE_READ_ENABLED="true",
        )
        there = Pair(master, slave, names)
        there.fill()
        yield there


async def check_reads(consumer: Any) -> None:
    """Everything that a pull consumer reads is read."""
    pulled = await consumer.pull("t", 0, 0)
    assert [bytes(message.body) for message in pulled.messages] == BODIES
    assert (await consumer.pull("t", 0, MESSAGES, wait_s=0.1)).status is PullStatus.NO_NEW_MESSAGE
    assert len((await consumer.pull_columns("t", 0, 0)).columns) == MESSAGES
    assert await consumer.queues("t") == [QUEUE]
    assert await consumer.min_offset("t", 0) == 0
    assert await consumer.max_offset("t", 0) == MESSAGES
    assert await consumer.offset_by_time("t", 0, 0) == 0
    assert await consumer.committed("t", 0) == COMMITTED


async def check_admin_reads(admin: Any) -> None:
    """Everything that describes topics and groups is read."""
    assert (await admin.topic_stats("t")).offset_table[QUEUE].max_offset == MESSAGES
    assert (await admin.topic_config("t")).read_queue_nums == 1
    assert await admin.earliest_message_time_ms("t", 0)
    assert (await admin.consume_stats("g", "t")).offset_table[QUEUE].consumer_offset == COMMITTED
    (progress,) = [each for each in (await admin.describe_group("g", "t")).queues if each.topic == "t"]
    assert progress.committed_offset == COMMITTED
    assert "g" in [each.group for each in await admin.list_groups()]
    assert (await admin.group_config("g")).group_name == "g"
    assert "g" in await admin.group_configs()
    assert await admin.topic_groups("t") == ["g"]
    assert (await admin.consume_time_span("g", "t")).spans
    assert len((await admin.find_messages("t", "k")).messages) == MESSAGES


async def check_groups(face: Face, address: str) -> None:
    """Members enter, know of each other, and continue where their group is, or begin; their lag is known."""
    async with face.Consumer(address, group="g", topic="t") as consumer:
        assert bytes((await consumer.receive(10.0)).body) == BODIES[COMMITTED]
        assert (await consumer.lag())[QUEUE] == MESSAGES - COMMITTED
    async with face.Consumer(address, group="new", topic="t", start="earliest") as consumer:
        assert bytes((await consumer.receive(10.0)).body) == BODIES[0]
        with pytest.raises(ReputError):  # only a master takes it
            await consumer.commit()
        async with face.Consumer(address, group="new", topic="t"), face.Admin(address) as admin:
            assert len((await admin.describe_group("new")).members) == 2


@pytest.mark.parametrize("kind", ["slave", "both", "names"])
def test_reads_do_not_depend_on_the_master(tmp_path: Path, kind: str) -> None:
    """Also of clients that have used it, and of those that start while the slave still names it."""
    with pair(tmp_path) as there:
        address = there.address(kind)

        def check(name: str) -> None:
            face = Face(name)

            async def scenario() -> None:
                async with face.PullConsumer(address, group="g") as consumer, face.Admin(address) as admin:
                    assert (await consumer.pull("t", 0, 0)).messages
                    assert await admin.topic_stats("t")
                    there.master.kill()
                    assert len((await consumer.pull_columns("t", 0, 0)).columns) == MESSAGES
                    await check_reads(consumer)
                    await check_admin_reads(admin)
                async with face.PullConsumer(address, group="g") as consumer:
                    await check_reads(consumer)
                await check_groups(face, address)

            face.run(scenario)

        both = {0, 1}
        wait_until(lambda: there.routed(there.master.address) == both)
        check("trio")
        wait_until(lambda: there.routed(there.slave.address) == {1})
        for name in FACES:
            check(name)
