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


def read(texts: list[bytes]) -> tuple[list[list[tuple[bytes, bytes]]], list[int]]:
    data = b"".join(texts)
    bounds = np.cumsum([0, *map(len, texts)])
    units = units_of(np.frombuffer(data, np.uint8), bounds[:-1], bounds[1:])
    found: list[list[tuple[bytes, bytes]]] = [[] for _ in texts]
    for number, row in enumerate(units.row.tolist()):
        name = data[units.name_start[number] : units.name_end[number]]
        found[row].append((name, data[units.value_start[number] : units.value_end[number]]))
    assert units.first.tolist() == np.cumsum([0, *map(len, found)]).tolist()
    return found, units.odd.tolist()


@given(st.lists(SOME_TEXT | PLAIN, max_size=12))
@example(["a\x01b\x02", "", "TAGS\x01x", "TAGS\x01x\x02TAGS\x01y\x02"])
def test_plain_texts_hold_what_one_by_one_is_found_and_the_others_are_named(texts: list[str]) -> None:
    found, odd = read([text.encode() for text in texts])
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


def test_units_are_found_by_name() -> None:
    texts = [b"KEYS\x01k1\x02TAGS\x01red\x02", b"TAGZ\x01no\x02", b"A\x01TAGS\x02TAGS\x01blue"]
    data = np.frombuffer(b"".join(texts), np.uint8)
    bounds = np.cumsum([0, *map(len, texts)])
    units = units_of(data, bounds[:-1], bounds[1:])
    numbers = units.named(data, b"TAGS")
    assert units.row[numbers].tolist() == [0, 2]
    assert not len(units.named(data, b"ABCDEF"))
