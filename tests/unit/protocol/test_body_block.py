"""Blocks of bodies are, byte for byte, the blocks of the messages that they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.body_block import encode_body_block
from reput_protocol.errors import InvalidMessage
from reput_protocol.kernel import record_starts
from reput_protocol.message import Message, encode_properties_text
from reput_protocol.message_id import IdRun, UniqueIdGenerator
from reput_protocol.put_block import encode_put_block

BORN_AT = 1_700_000_000_000
RUNS = [IdRun("0A" * 14, 0xFFFE, 3), IdRun("0B" * 14, 7, 1)]

words = st.text("abcÄ ", min_size=1, max_size=4).map(str.strip).filter(bool)


@given(
    st.lists(st.tuples(st.binary(max_size=12), st.none() | words, words), min_size=1, max_size=40),
    st.booleans(),
    st.integers(-5, 5),
)
def test_a_block_of_bodies_is_that_of_its_messages(
    items: list[tuple[bytes, str | None, str]], with_ids: bool, flag: int
) -> None:
    messages = [
        Message("orders", body, tag, properties={"word": word}, flag=flag) for body, tag, word in items
    ]
    count = len(messages)
    runs = [IdRun("0A" * 14, 0xFFF0, count - count // 3), IdRun("0B" * 14, 0, count // 3)]
    runs = [run for run in runs if with_ids and run.count]
    ids = [one for run in runs for one in run.ids()]
    expected = encode_put_block(messages, "orders", 3, BORN_AT, ids or None)
    texts = [encode_properties_text(message, None) for message in messages]
    bodies = [message.body for message in messages]
    block = encode_body_block(bodies, "orders", 3, BORN_AT, ids=runs, texts=texts, flag=flag)
    assert block.data == expected
    assert list(block.positions) == list(record_starts(block.data, 0, len(block.data)))


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
@pytest.mark.parametrize("text", [b"", b"TAGS\x01t\x02"])
@pytest.mark.parametrize("topic", ["t", "%RETRY%" + "g" * 140])
@pytest.mark.parametrize("runs", [[], RUNS])
def test_bodies_of_one_size_with_one_text(size: int, text: bytes, topic: str, runs: list[IdRun]) -> None:
    bodies = [bytearray(b"a" * size), memoryview(b"b" * size), b"c" * size, b"d" * size]
    tag = "t" if text else None
    messages = [Message("any", body, tag) for body in bodies]
    ids = [one for run in runs for one in run.ids()]
    block = encode_body_block(bodies, topic, 0, BORN_AT, ids=runs, texts=[text])
    assert block.data == encode_put_block(messages, topic, 0, BORN_AT, ids or None)
    assert list(block.positions) == list(record_starts(block.data, 0, len(block.data)))


@pytest.mark.parametrize("texts", [[b"x" * 32_768], [b"x" * 32_768] * 2, [b"x" * 32_768, b""]])
def test_a_text_that_does_not_fit_is_refused(texts: list[bytes]) -> None:
    for runs in ([], [IdRun("", 0, 2)]):
        with pytest.raises(InvalidMessage, match="at most 32767 fit"):
            encode_body_block([b"", b""], "t", 0, 0, ids=runs, texts=texts)


def test_runs_of_ids_are_the_ids_that_would_have_come() -> None:
    one, other = (UniqueIdGenerator(b"\x7f\0\0\1", 5, 77, lambda: BORN_AT) for _ in range(2))
    assert [i for run in one.next_runs(3000) for i in run.ids()] == other.next_many(3000)
    one.next_many(0x10000 - 3001)
    (run,) = one.next_runs(3)
    assert (run.id(0)[-4:], run.id(1)[-4:], run.id(2)[-4:]) == ("FFFF", "0000", "0001")
    assert {len(i) for i in run.ids()} == {one.id_size}
    assert one.next_runs(0) == []
