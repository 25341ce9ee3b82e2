"""The producer of batches against a scripted broker: order, repetitions, and what becomes of posted blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from reput_client.blocking.bulk import StagingProducer
from reput_client.errors import AckNotReached, PostsFailed, RequestTimeout
from reput_client.produce import staging_producer
from reput_client.produce.staging_producer import StagingScope
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.stage import StageRecordsHeader
from reput_protocol.errors import BrokerError
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.header import Header
from support.fakes import HANG_UP, SILENCE, Answer, FakeBroker

STAGE = RequestCode.STAGE_RECORDS
LOST = Answer(ResponseCode.SYSTEM_ERROR, remark="NOT_FOUND: staging s has 0 bytes")
BUSY = Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later")
BLOCK = encode_put_block([Message("t", b"body", unique_id="u")], "t", 0, 0)
OF_THREE = encode_put_block([Message("t", b"%d" % n, unique_id=f"u{n}") for n in range(3)], "t", 0, 0)


@pytest.fixture(autouse=True)
def _a_frame_for_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_producer, "FRAME_BYTES", 1)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


class Staging:
    """What a broker does with the frames of a staging: it takes them in order."""

    def __init__(self) -> None:
        self.has = 0
        self.ids: list[str] = []
        self.first: list[Answer] = []
        """Answers to the first requests."""

    def __call__(self, header: Header, body: memoryview) -> Answer:
        asked = StageRecordsHeader.from_ext(header.ext)
        self.ids.append(asked.staging_id)
        if self.first:
            time.sleep(0.2)  # meanwhile the frames behind it are sent
            return self.first.pop(0)
        if asked.position > self.has:
            return LOST
        self.has = max(self.has, asked.position + len(body))
        return Answer()


def stage(producer: StagingProducer, count: int) -> None:
    producer.begin(StagingScope("q", 0, 0, "s"))
    for _ in range(count):
        producer.stage("t", 0, 1, BLOCK)
    producer.wait_staged()


@pytest.mark.parametrize("fault", [BUSY, HANG_UP], ids=["busy", "lost connection"])
def test_frames_behind_one_that_is_sent_again_are_not_taken_for_lost(broker: FakeBroker, fault: Answer) -> None:
    staging = Staging()
    staging.first = [fault]
    broker.behave(STAGE, staging)
    with StagingProducer(broker.address, timeout_s=30.0) as producer:
        stage(producer, 4)
    assert set(staging.ids) == {"s"}
    assert len(staging.ids) > 4
    assert staging.has > 0


def test_a_staging_that_is_refused_raises_the_reason(broker: FakeBroker) -> None:
    broker.behave(STAGE, Answer(ResponseCode.NO_PERMISSION, remark="PERMISSION: no"))
    with StagingProducer(broker.address, timeout_s=30.0) as producer, pytest.raises(BrokerError, match="no"):
        stage(producer, 3)


def test_a_silent_broker_is_a_timeout(broker: FakeBroker) -> None:
    broker.behave(STAGE, SILENCE)
    with StagingProducer(broker.address, timeout_s=0.3) as producer, pytest.raises(RequestTimeout, match="staging s"):
        stage(producer, 2)


def test_posted_blocks_are_stored_in_order_and_have_outcomes(broker: FakeBroker) -> None:
    with StagingProducer(broker.address) as producer:
        posted = [producer.post_block("t", 0, 1, BLOCK) for _ in range(3)]
        assert [each.result().queue_offset for each in posted] == [0, 1, 2]
        producer.flush()
    assert len(broker.log["t", 0]) == 3


def test_a_posted_block_of_several_messages_has_the_receipt_of_its_first(broker: FakeBroker) -> None:
    with StagingProducer(broker.address) as producer:
        posted = [producer.post_block("t", 0, 3, OF_THREE) for _ in range(2)]
        assert [each.result().queue_offset for each in posted] == [0, 3]
    assert len(broker.log["t", 0]) == 6


def late(broker: FakeBroker) -> Callable[[Header, memoryview], Answer]:
    """Store what comes, and answer that the disk is slow."""

    def behave(header: Header, body: memoryview) -> Answer:
        return Answer(ResponseCode.FLUSH_DISK_TIMEOUT, broker.put(header, body).ext, remark="slow")

    return behave


def test_a_posted_block_of_several_messages_fails_as_one(broker: FakeBroker) -> None:
    broker.behave(RequestCode.PUT_MESSAGE, late(broker))
    with StagingProducer(broker.address, retries=0) as producer:
        posted = [producer.post_block("t", 0, 3, OF_THREE) for _ in range(2)]
        with pytest.raises(PostsFailed, match="2 posted messages failed") as raised:
            producer.flush()
        assert raised.value.failed == posted
        errors = [each.error for each in posted]
        offsets = [error.receipt.queue_offset for error in errors if isinstance(error, AckNotReached)]
        assert offsets == [0, 3]
        producer.flush()


@pytest.mark.parametrize("answer", [None, Answer(ResponseCode.NO_PERMISSION, remark="PERMISSION: no")])
def test_the_failure_of_a_posted_block_is_reported_once(broker: FakeBroker, answer: Answer | None) -> None:
    broker.behave(RequestCode.PUT_MESSAGE, answer or late(broker))
    with StagingProducer(broker.address, retries=0) as producer:
        posted = producer.post_block("t", 0, 3, OF_THREE)
        with pytest.raises(BrokerError if answer else AckNotReached):
            posted.result()
        producer.flush()
