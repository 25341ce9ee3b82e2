"""Which messages share a block, and what each of them learns of it."""

from __future__ import annotations

from reput_client.batching import Group
from reput_client.errors import AckNotReached
from reput_client.puts import outcome_unknown
from reput_client.unique_ids import new_generator
from reput_protocol.codes import AckLevel
from reput_protocol.commands_send import PutMessageResult
from reput_protocol.message import MessageQueue
from reput_protocol.record import decode_record
from reput_protocol.record_batch import check_put_block

QUEUE = MessageQueue("t", "b", 0)
RESULT = PutMessageResult(0, 7, 1000, 1_700_000_000_000, "127.0.0.1:10911", AckLevel.FLUSHED)


def group_of(*messages: tuple[bytes, bytes]) -> Group:
    group = Group(0, QUEUE, AckLevel.FLUSHED, 0, 1.0)
    for body, text in messages:
        group.add(body, text, 10, None)
    return group


def test_a_block_holds_the_messages_in_their_order_with_ids_of_their_own() -> None:
    own = b"UNIQ_KEY\x01mine\x02TAGS\x01a\x02"
    for messages in ([(b"1", b""), (b"22", b"TAGS\x01b\x02")], [(b"1", own), (b"22", b"TAGS\x01b\x02")]):
        group = group_of(*messages)
        group.has_own_ids = messages[0][1] == own
        group.encode(1_700_000_000_000, new_generator())
        check = check_put_block(group.block, topic="t", queue_id=0, count=2)
        assert list(check.positions) == list(group.positions)
        records = [
            decode_record(group.block[a:b])
            for a, b in zip(group.positions, [*group.positions[1:], len(group.block)], strict=True)
        ]
        assert [record.body for record in records] == [b"1", b"22"]
        assert [record.unique_key for record in records] == list(group.unique_ids)
        assert records[1].tag == "b"
        assert (records[0].unique_key == "mine") == group.has_own_ids


def test_a_message_can_be_taken_back_until_the_group_leaves() -> None:
    group = group_of((b"1", b""), (b"2", b""), (b"3", b""))
    first, second, third = group.entries
    assert group.withdraw(first, 10)
    assert not group.withdraw(first, 10)
    assert (second.number, third.number, group.size) == (0, 1, 20)
    group.encode(0, None)
    assert not group.withdraw(second, 10)
    assert len(group.positions) == 2


def test_each_member_gets_its_own_receipt() -> None:
    group = group_of((b"1", b""), (b"22", b""))
    group.encode(0, None)
    assert not group.entries[0].done
    group.settle(RESULT, None)
    receipts = [entry.receipt for entry in group.entries]
    assert [receipt.queue_offset for receipt in receipts] == [7, 8]
    assert [receipt.physical_offset for receipt in receipts] == [1000, 1000 + group.positions[1]]


def test_each_member_gets_an_error_of_its_own() -> None:
    group = group_of((b"1", b""), (b"2", b""))
    group.encode(0, new_generator())
    group.settle(None, outcome_unknown(QUEUE, group.unique_ids, "silence"))
    errors = [entry.error for entry in group.entries]
    assert errors[0] is not errors[1]
    assert [error.message_ids for error in errors] == [[i] for i in group.unique_ids]  # type: ignore[union-attr]


def test_what_missed_its_level_has_error_and_receipt() -> None:
    group = group_of((b"1", b""), (b"2", b""))
    group.encode(0, None)
    group.settle(RESULT, AckNotReached("flushed", [], 10, None))
    error = group.entries[1].error
    assert isinstance(error, AckNotReached)
    assert error.receipt.queue_offset == 8


def test_halves_of_a_block_are_blocks_of_the_same_messages() -> None:
    group = group_of((b"1", b""), (b"22", b""), (b"333", b""))
    group.encode(0, None)
    block, entries = group.block, list(group.entries)
    first, second = group.halves()
    assert first.block + second.block == block
    for half, count in ((first, 1), (second, 2)):
        check = check_put_block(half.block, topic="t", queue_id=0, count=count)
        assert list(check.positions) == list(half.positions)
    second.settle(RESULT, None)
    assert not entries[0].done
    assert [entry.receipt.queue_offset for entry in entries[1:]] == [7, 8]
