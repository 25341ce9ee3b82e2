"""The keys and the tag of a batch as Arrow columns: read from tables of like texts, they are what each record says."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reput_client.arrow_properties import BatchProperties, KeysAndTags
from reput_protocol.columns import decode_columns
from reput_protocol.properties import decode_properties
from reput_protocol.record import Record, encode_record

values = st.text("abz09-_", min_size=1, max_size=6) | st.sampled_from(
    ["é", "Aa BB", " a ", "KEYS", "\U0001f600"]
)
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
def test_keys_and_tags_are_those_of_every_record(found: list[bytes]) -> None:
    data = b"".join(encode_record(Record("T", b"body", properties=text)) for text in found)
    columns = decode_columns(data)
    buffer = pa.py_buffer(data)
    quick, every = KeysAndTags(columns, buffer), BatchProperties(columns, buffer)
    for name in ("KEYS", "TAGS"):
        for kind in (pa.string(), pa.binary()):
            values = quick.value_of(name, kind)
            values.validate(full=True)
            assert values.equals(every.value_of(name, kind))
        wanted = [decode_properties(text).get(name) for text in found]
        assert quick.value_of(name, pa.string()).to_pylist() == wanted
