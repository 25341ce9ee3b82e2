"""The keys of a batch are those of its records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.properties import decode_properties
from reput_protocol.record.layout import index_hash, index_keys
from reput_protocol.record.record import Record, encode_record
from reput_protocol.record.scan import scan_dispatch

plain = st.text("abz09-_", min_size=1, max_size=6)
values = plain | st.sampled_from(["é", "Aa BB", " a  b ", "a b", "x" * 40, "UNIQ_KEY", "\U0001f600"])
names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "p", "MY_KEYS", "KEYS2"])
units = st.lists(st.tuples(names, values), max_size=4)
rough = st.sampled_from(
    ["KEYS\x01", "UNIQ_KEY\x01\x02", "KEYS\x01a\x02KEYS\x01b\x02", "x", "KEYS\x01a\x01b\x02", "\x02KEYS\x01c"]
)
topics = st.sampled_from(["T", "orders", "größe"])
flags = st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC])


def text_of(parts: list[tuple[str, str]]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in parts)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records as they come: rows of one shape from one producer, and others among them."""
    records: list[Record] = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(units)
        topic = draw(topics)
        count = draw(st.sampled_from([1, 2, 9, 30, 60]))
        for number in range(count):
            text = text_of([(name, f"{value}{number:03d}") for name, value in shape])
            if draw(st.integers(0, 40)) == 0:
                text = draw(rough | units.map(text_of))
            flag = draw(flags) if draw(st.integers(0, 40)) == 0 else 0
            records.append(
                Record(topic, b"b", properties=text.encode(), sys_flag=flag, store_timestamp_ms=len(records))
            )
    return records


@given(logs())
def test_every_key_of_every_record_is_hashed_in_order(records: list[Record]) -> None:
    data = b"".join(map(encode_record, records))
    wanted: list[tuple[int, int]] = []
    for number, record in enumerate(records):
        if record.sys_flag & 0xC == 0xC:
            continue
        found = decode_properties(record.properties)
        keys = index_keys(record.topic, found.get("UNIQ_KEY"), found.get("KEYS"))
        wanted += [(index_hash(key), number) for key in keys]
    rows = scan_dispatch(data)
    assert len(rows) == len(records)
    hashed = rows.keys()
    assert list(zip(hashed[::3], hashed[2::3], strict=True)) == wanted  # the store time is the record's number
