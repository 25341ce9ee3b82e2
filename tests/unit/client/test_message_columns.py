"""A property as its distinct values and an index for each message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reput_client.consume.columns import MessageColumns
from reput_client.consume.pull import read_records
from reput_protocol.properties import encode_properties
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.record import Record, encode_record

_TEXTS = st.sampled_from(["a", "b", "paid", "größe", "12345678", "a\0b", "a\0"]) | st.text(
    st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=12
)


@given(st.lists(st.none() | _TEXTS, max_size=40), st.sampled_from(["TAGS", "KEYS", "colour"]))
def test_a_property_of_messages_is_coded(texts: list[str | None], name: str) -> None:
    properties = [encode_properties({"a": "1"} if text is None else {name: text}) for text in texts]
    block = b"".join(encode_record(Record("orders", b"body", properties=text)) for text in properties)
    columns = MessageColumns("orders", 0, RecordColumns(block, read_records(block)))
    values, codes = columns.coded(name)
    assert [values[code] for code in codes.tolist()] == texts == columns.values_of(name)
    assert len(set(values)) == len(values)
