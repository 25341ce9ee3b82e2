"""The properties of a batch as Arrow columns are those of every record."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reput_client.consume.arrow_columns import ArrowRecords
from reput_client.consume.pull import read_records
from reput_protocol.properties import decode_properties
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.record import Record, encode_record

values = st.text("abz09-_", min_size=1, max_size=6) | st.sampled_from(["é", "Aa BB", " a ", "KEYS", "\U0001f600"])
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "p", "MY_KEYS", "é"])
shapes = st.lists(st.tuples(names, values), max_size=4)
rough = st.sampled_from(
    [
        b"KEYS\x01",
        b"TAGS\x01\x02",
        b"KEYS\x01a\x02KEYS\x01b\x02",
        b"TAGS\x01a\x01b\x02",
        b"\x02KEYS\x01c",
        b"p\x01\xff\x02KEYS\x01k\x02",
        b"p\x01\xe2\x82\x02TAGS\x01t\x02",
        b"TAGS\x01\xe2\x82\x02",
        b"\xff\x01a\x02\xfe\x01b\x02",
        b"a\x01b",
        b"",
    ]
)


def text_of(shape: list[tuple[str, str]], number: int) -> bytes:
    return "".join(f"{name}\x01{value}{number:02d}\x02" for name, value in shape).encode()


@st.composite
def texts(draw: st.DrawFn) -> list[bytes]:
    """Texts as they come: many of one shape from one producer, and others among them."""
    found: list[bytes] = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(shapes)
        found += [text_of(shape, number) for number in range(draw(st.sampled_from([1, 2, 9, 30])))]
        if draw(st.booleans()):
            odd = draw(rough)
            found += [odd] * draw(st.sampled_from([1, 9]))
    return found


@given(texts())
def test_the_properties_are_those_of_every_record(found: list[bytes]) -> None:
    data = b"".join(encode_record(Record("T", b"body", properties=text)) for text in found)
    records = ArrowRecords(RecordColumns(data, read_records(data)))
    expected = [decode_properties(text) for text in found]
    for name in ("KEYS", "TAGS", "p", "é"):
        values = [properties.get(name) for properties in expected]
        texts, parts = records.property(name, pa.string()), records.property(name, pa.binary())
        texts.validate(full=True)
        parts.validate(full=True)
        assert texts.to_pylist() == values
        assert parts.to_pylist() == [value if value is None else value.encode() for value in values]
    maps = records.map(pa.map_(pa.string(), pa.string()))
    maps.validate(full=True)
    assert maps.to_pylist() == [list(properties.items()) for properties in expected]
    headers = records.headers(HEADERS)
    headers.validate(full=True)
    assert headers.to_pylist() == [
        [{"key": name, "value": value.encode()} for name, value in properties.items()] for properties in expected
    ]
