"""Values that repeat, as the distinct ones and a number for each row."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from reput_client.coded_values import SHORT_BYTES_MAX, coded_parts, coded_texts
from reput_client.message_columns import MessageColumns
from reput_protocol.columns import gather
from reput_protocol.message import Message
from reput_protocol.put_block import encode_put_block

_TEXTS = st.sampled_from(["a", "b", "paid", "größe", "12345678", "a\0b", "a\0"]) | st.text(
    st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=12
)


@given(st.lists(st.none() | _TEXTS, max_size=40))
@example(["12345678", "123456789"])
@example(["a", "a\0"])
def test_values_that_lie_in_a_buffer_are_coded_or_left_to_others(texts: list[str | None]) -> None:
    parts = [(row, text.encode()) for row, text in enumerate(texts) if text is not None]
    data = np.frombuffer(b"".join(b"\1" + part + b"\2" for _, part in parts) or b"\1", np.uint8)
    sizes = np.array([len(part) for _, part in parts], np.int64)
    starts = np.cumsum(sizes + 2) - sizes - 1
    rows = np.array([row for row, _ in parts], np.int64)
    coded = coded_parts(data, rows, starts, starts + sizes, len(texts))
    if coded is None:
        assert any(len(part) > SHORT_BYTES_MAX or b"\0" in part for _, part in parts)
        coded = coded_texts(texts)
    assert [coded.values[code] for code in coded.codes.tolist()] == texts
    assert len(set(coded.values)) == len(coded.values)


def test_a_property_of_messages_is_coded() -> None:
    tags = ["t1", "t12", None, "t1", "a tag that is long", None]
    for chosen in (tags, tags[:4], ["t1"] * 3, [None] * 2, []):
        messages = [Message("orders", b"body", tag=tag) for tag in chosen]
        block = encode_put_block(messages, "orders", 0, 1) if messages else b""
        positions, at = [], 0
        while at < len(block):
            positions.append(at)
            at += int.from_bytes(block[at : at + 4], "big")
        columns = MessageColumns("orders", 0, gather(block, positions)[0])
        values, codes = columns.coded("TAGS")
        assert [values[code] for code in codes.tolist()] == chosen == columns.tags()
