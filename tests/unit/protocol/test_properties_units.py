"""Units of many properties texts at once are what reading the texts one by one finds."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from reput_protocol.properties import decode_properties
from reput_protocol.properties_units import units_of

SOME_TEXT = st.lists(
    st.sampled_from(["\x01", "\x02", "a", "bb", "TAGS", "a-long-name-of-20-by", "", "\u00e9"]), max_size=12
).map("".join)
UNIT = st.tuples(st.text("abcT\u00e9", min_size=1, max_size=20), st.text("xyz", min_size=1, max_size=4)).map(
    "\x01".join
)
PLAIN = st.tuples(st.lists(UNIT, max_size=20), st.booleans()).map(
    lambda made: "\x02".join(made[0]) + ("\x02" if made[1] and made[0] else "")
)


def read(texts: list[bytes], gap: bytes = b"") -> tuple[list[list[tuple[bytes, bytes]]], list[int]]:
    data = b"".join(gap + text for text in texts)
    ends = np.cumsum([len(gap) + len(text) for text in texts], dtype=np.int64)
    starts = ends - np.array([len(text) for text in texts], np.int64)
    units = units_of(np.frombuffer(data, np.uint8), starts, ends)
    found: list[list[tuple[bytes, bytes]]] = [[] for _ in texts]
    for number, row in enumerate(units.row.tolist()):
        name = data[units.name_start[number] : units.name_end[number]]
        found[row].append((name, data[units.value_start[number] : units.value_end[number]]))
    assert units.first.tolist() == np.cumsum([0, *map(len, found)]).tolist()
    return found, units.odd.tolist()


@given(st.lists(SOME_TEXT | PLAIN, max_size=12), st.sampled_from([b"", b"a", b"fill"]))
@example(["a\x01b\x02", "", "TAGS\x01x", "TAGS\x01x\x02TAGS\x01y\x02"], b"")
@example(["a\x01b\x02c\x01d\x02", "a\x01bb\x02c\x01dd\x02", "a\x01b\x02e\x01d\x02"], b"")
@example(["a\x01b\x02a\x01d\x02", "a\x01bb\x02a\x01dd\x02"], b"a")
@example(["a\x01b\x02", "a\x01b\x02c\x01d\x02e\x01f\x02", "a\x01b\x02e\x01d\x02"], b"")
@example(["\x01b\x02", "\x01bb\x02"], b"a")
@example(["a\x01\x02", "a\x01\x02"], b"a")
def test_plain_texts_hold_what_one_by_one_is_found_and_the_others_are_named(
    texts: list[str], gap: bytes
) -> None:
    found, odd = read([text.encode() for text in texts], gap)
    for row, text in enumerate(texts):
        if row in odd:
            assert found[row] == []
        else:
            pairs = {name.decode(): value.decode() for name, value in found[row]}
            assert pairs == decode_properties(text.encode())
            assert len(pairs) == len(found[row])


@given(st.lists(PLAIN, max_size=8))
def test_texts_without_a_name_twice_are_plain(texts: list[str]) -> None:
    _, odd = read([text.encode() for text in texts])
    for row, text in enumerate(texts):
        names = [unit.partition("\x01")[0] for unit in text.split("\x02") if unit]
        short = len("".join(texts).encode()) < 8
        assert (row in odd) == (len(set(names)) < len(names)) or short


@given(
    st.lists(st.text("abT", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
    st.integers(1, 9),
    st.data(),
)
def test_texts_of_one_producer_have_the_same_names(names: list[str], count: int, data: st.DataObject) -> None:
    value = st.text("xyz", min_size=1, max_size=5)
    texts = ["".join(f"{name}\x01{data.draw(value)}\x02" for name in names).encode() for _ in range(count)]
    joined = np.frombuffer(b"".join(texts), np.uint8)
    bounds = np.cumsum([0, *map(len, texts)])
    units = units_of(joined, bounds[:-1], bounds[1:])
    assert units.names == tuple(name.encode() for name in names)
    for name in [*names, "other"]:
        numbers = units.named(joined, name.encode())
        assert units.row[numbers].tolist() == ([*range(count)] if name in names else [])
        assert units.row[units.numbered(joined, name.encode())].tolist() == units.row[numbers].tolist()


def test_units_are_found_by_name() -> None:
    texts = [b"KEYS\x01k1\x02TAGS\x01red\x02", b"TAGZ\x01no\x02", b"A\x01TAGS\x02TAGS\x01blue"]
    data = np.frombuffer(b"".join(texts), np.uint8)
    bounds = np.cumsum([0, *map(len, texts)])
    units = units_of(data, bounds[:-1], bounds[1:])
    numbers = units.named(data, b"TAGS")
    assert units.row[numbers].tolist() == [0, 2]
    assert not len(units.named(data, b"ABCDEF"))
