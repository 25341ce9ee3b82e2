"""Receipts: the ids they derive, and the places of a block's messages."""

from __future__ import annotations

from reput_client.puts import block_receipts
from reput_client.receipts import SendReceipt
from reput_protocol.codes import AckLevel
from reput_protocol.commands import PutMessageResult
from reput_protocol.message import Message
from reput_protocol.record import decode_record
from reput_protocol.record_batch import encode_put_block


def test_ids() -> None:
    receipt = SendReceipt("t", 1, 2, 0xDE, 4, "127.0.0.1:10911", AckLevel.FLUSHED)
    assert receipt.offset_message_id == receipt.message_id == "7F00000100002A9F00000000000000DE"
    assert receipt._replace(unique_id="mine").message_id == "mine"


def test_a_block_lies_back_to_back() -> None:
    messages = [Message("t", b"x" * size) for size in (0, 10, 200)]
    ids = ["a", "b", None]
    block = encode_put_block(messages, "t", 1, 5, ids)
    result = PutMessageResult(1, 40, 1000, 7, "127.0.0.1:10911", AckLevel.FLUSHED)
    receipts = block_receipts("t", block, result, ids)
    assert [receipt.queue_offset for receipt in receipts] == [40, 41, 42]
    assert [receipt.unique_id for receipt in receipts] == ids
    for receipt, message in zip(receipts, messages, strict=True):
        assert decode_record(block, receipt.physical_offset - 1000).body == message.body
