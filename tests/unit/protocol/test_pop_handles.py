"""Handles and other texts of POP, as RocketMQ 5.3.3's ExtraInfoUtil makes and reads them."""

from __future__ import annotations

import pytest

from reput_protocol.commands.pop import (
    BatchAck,
    BatchAckBody,
    PopHandle,
    marked_topic,
    msg_offset_info,
    order_count_info,
    retry_mark,
    start_offset_info,
)
from reput_protocol.errors import BodyMalformed

RETRY, RETRY_V2 = "%RETRY%billing_orders", "%RETRY%billing+orders"
GOLDEN = "100 1700000000123 60000 3 0 broker-a 2 107"
"""`ExtraInfoUtil.buildExtraInfo(100, 1700000000123L, 60000, 3, "orders", "broker-a", 2, 107)`."""


def test_a_handle_is_written_and_read_as_rocketmq_does() -> None:
    handle = PopHandle(100, 1_700_000_000_123, 60_000, 3, "0", "broker-a", 2, 107)
    assert str(handle) == GOLDEN
    assert PopHandle.parse(GOLDEN) == handle
    assert not handle.is_ordered
    assert PopHandle.parse("1 2 3 999 0 broker-a 0 1").is_ordered
    assert PopHandle.parse(GOLDEN.rpartition(" ")[0]).queue_offset == -1, "earlier ones had no offset"
    assert PopHandle.parse(GOLDEN + " 4096") == handle, "the proxy's end with the log offset"


@pytest.mark.parametrize("text", ["", "1 2 3", GOLDEN.replace("107", "x"), f"{1 << 63} 2 3 4 0 b 0 1"])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="handle of a popped message"):
        PopHandle.parse(text)


def test_marks_name_the_three_topics() -> None:
    for topic, mark in (("orders", "0"), (RETRY, "1"), (RETRY_V2, "2")):
        assert retry_mark(topic) == mark
        assert marked_topic("orders", "billing", mark) == topic
    with pytest.raises(ValueError, match="not the mark"):
        marked_topic("orders", "billing", "3")


def test_the_texts_from_which_clients_make_handles() -> None:
    assert start_offset_info("orders", 2, 100) == "0 2 100"
    assert start_offset_info(RETRY, 0, 5) == "1 0 5"
    assert msg_offset_info("orders", 2, [100, 101, 107]) == "0 2 100,101,107"


def test_order_counts_name_each_message_and_the_least_for_older_clients() -> None:
    assert order_count_info("orders", 1, [5, 6], {}) == "0 1 0"
    assert order_count_info("orders", 1, [5, 6], {5: 2}) == "0 qo1%5 2;0 1 0", "message 6 is new"
    assert order_count_info("orders", 1, [5, 6], {5: 2, 6: 3}) == "0 qo1%5 2;0 qo1%6 3;0 1 2"


def test_the_bits_of_a_batch_are_javas() -> None:
    """`BitSet` {0, 1, 9} is the bytes 3, 2 in Base64."""
    body = BatchAckBody.from_json(
        b'{"acks":[{"b":"AwI=","c":"billing","it":60000,"pt":17,"q":2,"r":"0","rq":3,"so":100,"t":"orders"}],'
        b'"brokerName":"broker-a"}'
    )
    (one,) = body.acks
    assert one.offsets() == [100, 101, 109]
    assert (one.consumer_group, one.topic, one.queue_id, one.revive_queue_id) == ("billing", "orders", 2, 3)


@pytest.mark.parametrize("bits", ["?", "//////8="])
def test_bits_that_no_check_point_has_are_refused(bits: str) -> None:
    with pytest.raises(BodyMalformed):
        BatchAck("g", "t", bits=bits).offsets()
