"""Op messages: when they are written, their content, and which still matter."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from reput_broker.transactions.op_queue import OpQueue, half_offsets_of
from reput_protocol.properties import encode_properties
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record


@dataclass
class Options:
    op_interval: float = 3.0
    op_message_size: int = 4096


def queue_of(**options: float) -> OpQueue:
    return OpQueue(Options(**options), Host("10.0.0.2", 10911), lambda: "ID")  # type: ignore[arg-type]


def test_decisions_are_due_after_the_interval_or_once_they_fill_a_message() -> None:
    ops = queue_of(op_message_size=20)
    assert ops.due_at is None
    ops.add(1000, 50.0)
    ops.add(1001, 52.0)
    assert ops.due_at == 53.0
    ops.add(1002, 52.5)
    ops.add(1003, 52.6)
    assert ops.is_full
    assert ops.due_at == 50.0


def test_a_message_lists_its_decisions_and_the_last_of_a_batch_says_so() -> None:
    ops = queue_of(op_message_size=19)
    for offset in (5, 17, 100_000, 100_001, 100_002):
        ops.add(offset, 0.0)
    first = ops.compose(77, 4000)
    assert first is not None
    assert first.record.body == b"5,17,100000,100001,"
    assert (first.record.tag, first.record.unique_key, first.record.born_timestamp_ms) == ("d", "ID", 77)
    assert first.record.prepared_transaction_offset == 0
    ops.written(first, 8)
    last = ops.compose(78, 4200)
    assert last is not None
    assert last.record.body == b"100002,"
    assert last.record.prepared_transaction_offset == 4200
    ops.written(last, 9)
    assert (ops.waiting, ops.due_at, ops.compose(0, 0)) == (0, None, None)
    assert half_offsets_of(first.record) == [5, 17, 100_000, 100_001]


def test_a_message_that_could_not_be_put_is_composed_again() -> None:
    ops = queue_of()
    ops.add(1, 0.0)
    assert ops.compose(0, 10) == ops.compose(0, 10)
    ops.add(2, 0.0)
    batch = ops.compose(0, 10)
    assert batch is not None
    assert batch.record.body == b"1,2,"


def test_messages_matter_until_everything_they_name_is_passed() -> None:
    ops = queue_of()
    for queue_offset, offsets in enumerate(([0, 1], [7, 2], [3])):
        for offset in offsets:
            ops.add(offset, 0.0)
        batch = ops.compose(0, 0)
        assert batch is not None
        ops.written(batch, queue_offset)
    assert ops.passed(1, 3) == 0
    assert ops.passed(2, 3) == 1
    assert ops.passed(7, 3) == 1, "7 is still to be passed"
    assert ops.passed(8, 3) == 3


def test_an_invalid_list_of_offsets_names_none() -> None:
    def op(body: bytes, tag: str = "d") -> Record:
        return Record("RMQ_SYS_TRANS_OP_HALF_TOPIC", body, properties=encode_properties({"TAGS": tag}))

    assert half_offsets_of(op(b"12")) == [12], "older brokers wrote one, without a comma"
    assert half_offsets_of(op(b"1,x,,-3,2,\xff,")) == [1, 2]
    assert half_offsets_of(op(b"1,", tag="other")) == []


@given(st.lists(st.integers(0, 10**9), max_size=300), st.integers(16, 400))
def test_every_decision_is_in_exactly_one_message(offsets: list[int], size: int) -> None:
    ops = queue_of(op_message_size=size)
    for offset in offsets:
        ops.add(offset, 0.0)
    found: list[int] = []
    queue_offset = 0
    while (batch := ops.compose(0, 1)) is not None:
        found += half_offsets_of(batch.record)
        assert len(batch.record.body) < size + 11
        assert (batch.record.prepared_transaction_offset == 1) == (len(found) == len(offsets))
        ops.written(batch, queue_offset)
        queue_offset += 1
    assert found == offsets
    assert ops._size == 0
