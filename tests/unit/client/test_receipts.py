"""Receipts: derived ids, and the places of a block's messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from reput_client.errors import AckNotReached
from reput_client.produce.puts import receipts_of
from reput_client.receipts import BlockReceipts, SendReceipt
from reput_protocol.codes import AckLevel, ResponseCode
from reput_protocol.commands.send import PutMessageResult
from reput_protocol.errors import BrokerError
from reput_protocol.record.put_block import encode_block
from reput_protocol.record.record import decode_record
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType


def test_ids() -> None:
    receipt = SendReceipt("t", 1, 2, 0xDE, 4, "127.0.0.1:10911", AckLevel.FLUSHED)
    assert receipt.offset_message_id == receipt.message_id == "7F00000100002A9F00000000000000DE"
    assert receipt._replace(unique_id="mine").message_id == "mine"


def test_the_time_of_storing_is_in_utc() -> None:
    receipt = SendReceipt("t", 1, 2, 0xDE, 1_700_000_000_001, "127.0.0.1:10911", AckLevel.FLUSHED)
    assert receipt.stored_at == datetime(2023, 11, 14, 22, 13, 20, 1000, UTC)
    assert receipt._replace(store_timestamp_ms=-1).stored_at is None  # from RocketMQ's brokers


def test_the_records_of_a_block_are_consecutive() -> None:
    bodies = [b"x" * size for size in (0, 10, 200)]
    ids = ["a", "b", None]
    block, positions = encode_block(bodies, [b""], "t", 1, 5)
    result = PutMessageResult(1, 40, 1000, 7, "127.0.0.1:10911", AckLevel.FLUSHED)
    receipts = BlockReceipts("t", result, positions, ids)
    assert list(receipts) == [receipts[number] for number in range(3)] == receipts[:]
    assert [receipt.queue_offset for receipt in receipts] == [40, 41, 42]
    assert [receipt.unique_id for receipt in receipts] == ids
    for receipt, body in zip(receipts, bodies, strict=True):
        assert type(receipt) is SendReceipt
        assert decode_record(block, receipt.physical_offset - 1000).body == body


def answered(code: int, result: PutMessageResult | None) -> Call:
    call = Call(1, Waiter())
    ext = {} if result is None else result.to_ext(HeaderType.MSGPACK)
    call.finish(Header(code, 1, RESPONSE_FLAG, ext=ext), memoryview(b""))
    return call


def receipt_of(call: Call) -> SendReceipt:
    return receipts_of(call.answer, "t", (0,), ("id",), AckLevel.FLUSHED)[0]


def test_the_receipt_of_one_put_says_where_it_is() -> None:
    result = PutMessageResult(1, 40, 1000, 7, "127.0.0.1:10911", AckLevel.FLUSHED)
    receipt = receipt_of(answered(ResponseCode.SUCCESS, result))
    assert receipt == SendReceipt("t", 1, 40, 1000, 7, "127.0.0.1:10911", AckLevel.FLUSHED, "id")
    assert type(receipt) is SendReceipt


def test_one_put_that_was_refused_or_is_not_as_safe_as_asked_has_no_receipt_but_an_error() -> None:
    result = PutMessageResult(1, 40, 1000, 7, "127.0.0.1:10911", AckLevel.PAGE_CACHE)
    with pytest.raises(AckNotReached) as caught:
        receipt_of(answered(ResponseCode.FLUSH_DISK_TIMEOUT, result))
    (receipt,) = caught.value.receipts
    assert receipt.queue_offset == 40
    with pytest.raises(BrokerError):
        receipt_of(answered(ResponseCode.SYSTEM_ERROR, None))
