"""Messages sent in transactions, and answers to the broker's checks, with every API."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reput_client import Message, ReceivedMessage, TransactionState
from reput_client.errors import AckNotReached, ClientClosed, SendOutcomeUnknown
from reput_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.group import HeartbeatData
from reput_protocol.commands.transaction import CheckTransactionHeader
from reput_protocol.errors import TransactionEnded
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record.record import Record, encode_record
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType
from support.faces import Face, scenario
from support.fake_cluster import FakeCluster
from support.fakes import Answer, FakeBroker

END, CHECK = RequestCode.END_TRANSACTION, RequestCode.CHECK_TRANSACTION_STATE
SEND, BEAT, LEAVE = RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class Broker(FakeBroker):
    """Records heartbeats and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[HeartbeatData] = []
        self.ends: list[dict[str, Any]] = []
        self.behave(BEAT, self._beat)
        self.behave(LEAVE, Answer())
        self.behave(END, self._end)

    def _beat(self, header: Header, body: memoryview) -> Answer:
        del header
        self.beats.append(HeartbeatData.from_json(body))
        return Answer()

    def _end(self, header: Header, body: memoryview) -> Answer:
        del body
        self.ends.append(dict(header.ext))
        return Answer()

    @property
    def half(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Header and properties of the last half message."""
        ext, _ = self.parked[-1]
        return ext, decode_properties(str(ext["i"]).encode())

    def question(self, unique_id: str, *, group: str = "shop", offset: int = 7) -> None:
        """Check a transaction."""
        record = Record(
            "orders",
            b"body of " + unique_id.encode(),
            queue_id=1,
            queue_offset=offset,
            physical_offset=1000 * offset,
            properties=encode_properties({"UNIQ_KEY": unique_id, "PGROUP": group, "TRAN_MSG": "true"}),
        )
        header = CheckTransactionHeader(
            offset, 1000 * offset, "RMQ_SYS_TRANS_HALF_TOPIC", unique_id, unique_id, "offset id", "fake"
        )
        self.ask(CHECK, header.to_ext(HeaderType.MSGPACK), bytes(encode_record(record)), flag=ONEWAY_FLAG)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


async def never(message: ReceivedMessage) -> TransactionState:
    raise AssertionError(f"asked about {message.message_id}")


def says(state: TransactionState) -> Callable[[Any], Any]:
    async def say(_: Any) -> TransactionState:
        return state

    return say


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
@scenario
async def test_half_message_then_local_transaction_then_end(
    face: Face, broker: Broker, state: TransactionState
) -> None:

    seen: list[str] = []

    async def local(message: Message) -> TransactionState:
        assert (broker.count(SEND), broker.count(END)) == (1, 0), "after the half message, before the end"
        assert message.unique_id is not None
        seen.append(message.unique_id)
        return state

    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        sent = Message("orders", b"o-1", tag="paid", keys=["k"], properties={"a": "b"})
        receipt = await producer.send_in_transaction(sent, local, queue_id=1)
        assert sent.unique_id is None, "the caller's message is left as it is"
    ext, properties = broker.half
    assert (ext["b"], ext["e"], ext["f"]) == ("orders", 1, MessageSysFlag.TRANSACTION_PREPARED)
    assert properties == {
        "UNIQ_KEY": seen[0], "TAGS": "paid", "KEYS": "k", "a": "b", "TRAN_MSG": "true", "PGROUP": "shop",
    }  # fmt: skip
    (end,) = broker.ends
    assert (end["producerGroup"], end["commitOrRollback"]) == ("shop", int(state))
    assert (end["tranStateTableOffset"], end["commitLogOffset"]) == (0, 0)
    assert (end["msgId"], end["transactionId"], end["fromTransactionCheck"]) == (seen[0], seen[0], False)
    assert (receipt.transaction_id, receipt.message_id) == (seen[0], seen[0])
    assert (receipt.topic, receipt.queue_id, receipt.state) == ("orders", 1, state)
    assert receipt.confirmed
    assert receipt.is_committed == (state is COMMIT)


@scenario
async def test_the_broker_knows_whom_to_ask_before_it_has_anything_to_ask_about(face: Face, broker: Broker) -> None:

    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        assert broker.beats[0].producer_groups == ["shop"]
        assert broker.beats[0].client_id == producer.client_id != ""
        await producer.send_in_transaction(Message("orders", b"x"), says(COMMIT))
    codes = [header.code for header in broker.requests]
    assert codes.index(BEAT) < codes.index(SEND)
    assert codes[-1] == LEAVE, "and it is told when there is nobody any more"
    assert broker.requests[-1].ext["producerGroup"] == "shop"


@scenario
async def test_what_is_not_known_is_left_to_the_check(face: Face, broker: Broker) -> None:

    async def fails(_: Message) -> TransactionState:
        raise ConnectionError("the database is gone")

    async def wrong(_: Message) -> Any:
        return True

    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        receipt = await producer.send_in_transaction(Message("orders", b"x"), says(UNKNOWN))
        assert not receipt.confirmed
        with pytest.raises(ConnectionError, match="the database is gone"):
            await producer.send_in_transaction(Message("orders", b"x"), fails)
        with pytest.raises(TypeError, match="not a TransactionState"):
            await producer.send_in_transaction(Message("orders", b"x"), wrong)
    assert len(broker.parked) == 3
    assert broker.ends == []


@scenario
async def test_a_question_is_answered_while_the_application_does_something_else(face: Face, broker: Broker) -> None:

    async def check(message: ReceivedMessage) -> TransactionState:
        assert (message.topic, message.queue_id, message.body) == ("orders", 1, b"body of tx-1")
        assert (message.message_id, message.broker_name) == ("tx-1", "fake")
        return ROLLBACK

    async with face.TransactionProducer(broker.address, group="shop", check=check):
        broker.question("tx-1")
        await face.until(lambda: bool(broker.ends))
    (end,) = broker.ends
    assert end["fromTransactionCheck"] is True
    assert (end["tranStateTableOffset"], end["commitLogOffset"]) == (7, 7000)
    assert (end["msgId"], end["transactionId"]) == ("tx-1", "tx-1")
    assert (end["producerGroup"], end["commitOrRollback"]) == ("shop", int(ROLLBACK))


@scenario
async def test_a_check_that_fails_says_nothing_and_stops_nothing(face: Face, broker: Broker) -> None:

    async def check(message: ReceivedMessage) -> Any:
        if message.message_id == "bad":
            raise ConnectionError("the database is gone")
        return 8 if message.message_id == "wrong" else COMMIT

    async with face.TransactionProducer(broker.address, group="shop", check=check):
        for number, unique_id in enumerate(("bad", "wrong", "good")):
            broker.question(unique_id, offset=number)
        await face.until(lambda: len(broker.ends) == 3)
    states = {end["msgId"]: end["commitOrRollback"] for end in broker.ends}
    assert states == {"bad": int(UNKNOWN), "wrong": int(UNKNOWN), "good": int(COMMIT)}


@scenario
async def test_questions_about_other_groups_are_not_answered_nor_the_same_one_twice(face: Face, broker: Broker) -> None:

    asked: list[str] = []
    go_on = threading.Event()

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.message_id)
        if face.is_blocking:
            go_on.wait(30)
        else:
            await face.until(go_on.is_set)
        return COMMIT

    async with face.TransactionProducer(broker.address, group="shop", check=check) as producer:
        broker.question("theirs", group="other")
        broker.question("tx-1", offset=1)
        await face.until(lambda: bool(asked))
        broker.question("tx-1", offset=2)  # the next round, without an answer yet
        broker.question("tx-2", offset=3)
        await producer.send(Message("orders", b"what comes after them has been read"))
        assert asked == ["tx-1"], "one at a time"
        go_on.set()
        await face.until(lambda: len(broker.ends) == 2)
    assert [end["msgId"] for end in broker.ends] == ["tx-1", "tx-2"]


@scenario
async def test_several_questions_are_answered_at_a_time(face: Face, broker: Broker) -> None:

    inside, most = 0, 0
    lock = threading.Lock()

    async def check(_: ReceivedMessage) -> TransactionState:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        if face.is_blocking:
            deadline = time.monotonic() + 30
            while most < 3 and time.monotonic() < deadline:
                threading.Event().wait(0.005)
        else:
            await face.until(lambda: most == 3)
        with lock:
            inside -= 1
        return COMMIT

    async with face.TransactionProducer(broker.address, group="shop", check=check, checks_at_once=3):
        for number in range(9):
            broker.question(f"tx-{number}", offset=number)
        await face.until(lambda: len(broker.ends) == 9)
    assert most == 3


@scenario
async def test_it_registers_anew_as_soon_as_a_connection_is_lost(face: Face, broker: Broker) -> None:

    async with face.TransactionProducer(broker.address, group="shop", check=says(COMMIT)) as producer:
        known_as = producer.client_id
        broker.drop_connections()
        await face.until(lambda: len(broker.beats) == 2)
        assert {beat.client_id for beat in broker.beats} == {known_as}
        broker.question("tx-1")
        await face.until(lambda: bool(broker.ends))


@scenario
async def test_heartbeats_go_on(face: Face, broker: Broker) -> None:

    async with face.TransactionProducer(broker.address, group="shop", check=never, heartbeat_interval_s=0.05):
        await face.until(lambda: len(broker.beats) >= 4)


@scenario
async def test_an_end_that_was_decided_otherwise_is_told(face: Face, broker: Broker) -> None:
    """The broker checked while the local transaction ran, and `check` did not see it yet: consumers never get it."""

    refused = Answer(ResponseCode.SYSTEM_ERROR, remark="TRANSACTION_ENDED: it has been rolled back")
    broker.behave(END, refused)
    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        with pytest.raises(TransactionEnded, match="rolled back"):
            await producer.send_in_transaction(Message("orders", b"x"), says(COMMIT))


@scenario
async def test_an_end_that_the_broker_does_not_take_is_left_to_it(face: Face, broker: Broker) -> None:

    broker.behave(END, Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later"))
    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        receipt = await producer.send_in_transaction(Message("orders", b"x"), says(COMMIT))
        assert (receipt.state, receipt.confirmed, receipt.is_committed) == (COMMIT, False, False)


@scenario
async def test_an_end_whose_answer_is_lost_is_told_again(face: Face, broker: Broker) -> None:

    from support.fakes import HANG_UP

    ends: list[int] = []

    def end(header: Header, _: memoryview) -> Answer:
        ends.append(int(str(header.ext["commitOrRollback"])))
        return HANG_UP if len(ends) == 1 else Answer()

    broker.behave(END, end)
    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        receipt = await producer.send_in_transaction(Message("orders", b"x"), says(COMMIT))
        assert receipt.is_committed
    assert ends == [int(COMMIT)] * 2


@scenario
async def test_a_half_message_that_may_be_stored_is_not_sent_again(face: Face, broker: Broker) -> None:

    from support.fakes import HANG_UP

    broker.behave(SEND, HANG_UP)
    async with face.TransactionProducer(broker.address, group="shop", check=never, retries=5) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send_in_transaction(Message("orders", b"x"), never)
    assert broker.count(SEND) == 1
    assert broker.ends == []


@pytest.mark.parametrize(
    ("ack", "of_half"), [("page_cache", "flushed"), ("flushed", "flushed"), ("replicated", "replicated")]
)
@scenario
async def test_a_half_message_is_at_least_on_the_disk_before_the_local_transaction(
    face: Face, broker: Broker, ack: str, of_half: str
) -> None:

    async def local(_: Message) -> TransactionState:
        assert broker.half[0]["ack"] == of_half
        return COMMIT

    async with face.TransactionProducer(broker.address, group="shop", check=never, ack=ack) as producer:
        await producer.send_in_transaction(Message("orders", b""), local)


@scenario
async def test_a_half_message_that_is_not_on_the_disk_in_time_is_rolled_back(face: Face, broker: Broker) -> None:

    def late(header: Header, body: memoryview) -> Answer:
        stored = broker.park(header, body)
        return Answer(ResponseCode.FLUSH_DISK_TIMEOUT, stored.ext, remark="FLUSH_TIMEOUT: slow disk")

    broker.behave(SEND, late)
    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        with pytest.raises(AckNotReached):
            await producer.send_in_transaction(Message("orders", b"x"), never)
    assert [end["commitOrRollback"] for end in broker.ends] == [int(ROLLBACK)]


@scenario
async def test_a_time_of_its_own_and_a_delay_travel_along(face: Face, broker: Broker) -> None:

    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        message = Message("orders", b"x", delay_level=3)
        await producer.send_in_transaction(message, says(COMMIT), check_after_s=90.2)
        for wrong in (0, -1, float("inf"), float("nan")):
            with pytest.raises(ValueError, match="check_after_s"):
                await producer.send_in_transaction(message, never, check_after_s=wrong)
    _, properties = broker.half
    assert (properties["CHECK_IMMUNITY_TIME_IN_SECONDS"], properties["DELAY"]) == ("91", "3")
    assert len(broker.parked) == 1


@scenario
async def test_it_sends_other_messages_too_and_nothing_after_it_was_closed(face: Face, broker: Broker) -> None:

    async with face.TransactionProducer(broker.address, group="shop", check=never) as producer:
        receipt = await producer.send(Message("orders", b"x"))
        assert receipt.queue_offset == 0
    with pytest.raises(ClientClosed):
        await producer.send_in_transaction(Message("orders", b"x"), never)
    assert broker.parked == []


@scenario
async def test_closing_waits_a_moment_for_a_question_that_is_being_answered(face: Face, broker: Broker) -> None:

    begun, go_on = threading.Event(), threading.Event()

    async def check(_: ReceivedMessage) -> TransactionState:
        begun.set()
        if face.is_blocking:
            go_on.wait(30)
        else:
            await face.until(go_on.is_set)
        return COMMIT

    producer = face.TransactionProducer(broker.address, group="shop", check=check)
    await producer.__aenter__()
    broker.question("tx-1")
    await face.until(begun.is_set)
    threading.Timer(0.2, go_on.set).start()
    await producer.aclose()
    assert [end["msgId"] for end in broker.ends] == ["tx-1"]


@pytest.mark.parametrize("wrong", [{"checks_at_once": 0}, {"heartbeat_interval_s": 0}, {"unique_ids": False}])
def test_arguments_out_of_range_are_refused(face: Face, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be (1 or more|more than 0)|leave unique_ids on"):
        face.TransactionProducer("127.0.0.1:1", group="shop", check=never, **wrong)
    with pytest.raises(ValueError, match="reserved"):
        face.TransactionProducer("127.0.0.1:1", group="DEFAULT_PRODUCER", check=never)


def test_a_forked_child_registers_as_another_producer(broker: Broker) -> None:
    from reput_client.blocking import TransactionProducer

    with TransactionProducer(broker.address, group="shop", check=lambda _: COMMIT) as producer:
        producer.send_in_transaction(Message("orders", b"parent"), lambda _: COMMIT)
        pid = os.fork()
        if pid == 0:  # pragma: no cover - another process
            try:
                producer.send_in_transaction(Message("orders", b"child"), lambda _: COMMIT)
                producer.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        producer.send_in_transaction(Message("orders", b"parent"), lambda _: COMMIT)
    assert [body for _, body in broker.parked] == [b"parent", b"child", b"parent"]
    assert len({beat.client_id for beat in broker.beats}) == 2
    assert len(broker.ends) == 3


@pytest.mark.parametrize("how", ["away for a moment", "failover"])
@scenario
async def test_the_producer_is_known_to_the_master_and_not_to_a_slave(face: Face, how: str) -> None:
    """The client has the addresses of both; a slave takes heartbeats as well, but asks for nothing."""

    def never(message: ReceivedMessage) -> TransactionState:
        raise AssertionError(message)

    with FakeCluster({"broker-a": 2}) as cluster:
        first, second = cluster.members["broker-a"]
        for fake in (first, second):
            fake.behave(BEAT, Answer())
            fake.behave(LEAVE, Answer())
        addresses = f"{first.address},{second.address}"
        async with face.TransactionProducer(addresses, group="shop", check=never):
            assert first.count(BEAT) == 1
            first.stop()
            await face.until(lambda: second.count(RequestCode.GET_BROKER_CLUSTER_INFO) > 0)
            if how == "failover":
                cluster.promote(broker_a=1)
                second.drop_connections()
                await face.until(lambda: second.count(BEAT) > 0)
            else:
                first.restart()
                await face.until(lambda: first.count(BEAT) > 1)
                assert not second.count(BEAT)
