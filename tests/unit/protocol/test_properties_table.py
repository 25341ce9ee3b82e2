"""Properties laid out as tables: which rows belong together, and that nothing else comes of them than one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest

from reput_protocol.hashing import java_hash
from reput_protocol.properties import decode_properties
from reput_protocol.properties_spans import PropertiesSpans
from reput_protocol.properties_table import PropertiesTable, PropertiesTexts, read_texts

PLAIN = [b"UNIQ_KEY\x01U%07d\x02KEYS\x01k%03d\x02TAGS\x01t%d\x02" % (n, n, n % 3) for n in range(20)]
OTHERS = [b"TAGS\x01t%d\x02UNIQ_KEY\x01U%07d\x02KEYS\x01k%03d\x02" % (n % 3, n, n) for n in range(20)]


def read(texts: Sequence[bytes]) -> PropertiesTexts:
    starts = np.array([0, *accumulate(map(len, texts))][:-1], np.int64)
    return read_texts(b"".join(texts), starts, np.array([len(text) for text in texts], np.int64))


def tags_of(texts: PropertiesTexts, count: int) -> dict[int, int]:
    found = texts.tags()
    assert found is not None
    return dict(zip(np.arange(count)[found.rows].tolist(), found.signed().tolist(), strict=True))


def test_texts_of_one_shape_are_one_table() -> None:
    table = read(PLAIN)
    assert isinstance(table, PropertiesTable)
    assert not len(table.alone)
    assert table.spans == {b"UNIQ_KEY": (9, 17), b"KEYS": (23, 27), b"TAGS": (33, 35)}
    assert table.key_spans == [(23, 27)]
    assert tags_of(table, 20) == {n: java_hash(f"t{n % 3}") for n in range(20)}


def test_two_shapes_of_one_size_are_read_by_their_places() -> None:
    texts = read([text for pair in zip(PLAIN, OTHERS, strict=True) for text in pair])
    assert isinstance(texts, PropertiesSpans)
    assert not len(texts.alone)
    assert tags_of(texts, 40) == {n: java_hash(f"t{n // 2 % 3}") for n in range(40)}


@pytest.mark.parametrize("at", [0, 7, 20])
def test_texts_of_other_names_and_sizes_are_read_with_the_others(at: int) -> None:
    odd = PLAIN[0].replace(b"UNIQ_KEY", b"UNIQ_KEX")
    texts = [*PLAIN[:at], odd, b"", b"TAGS\x01other\x02", *PLAIN[at:]]
    found = read(texts)
    assert not len(found.alone)
    tags = {row: decode_properties(text).get("TAGS") for row, text in enumerate(texts)}
    assert tags_of(found, 23) == {row: java_hash(tag) for row, tag in tags.items() if tag}
    unique_keys, keys = found.keys()
    rows = np.arange(23)
    assert rows[unique_keys.rows].tolist() == [row for row in range(23) if not at <= row < at + 3]
    assert rows[keys.rows].tolist() == [row for row in range(23) if not at < row < at + 3]


@pytest.mark.parametrize(
    "odd",
    [b"TAGS\x01x\x02TAGS\x01y\x02", b"TAGS\x01x", b"TAGS\x01\x02", b"\x02", b"noise", b"a\x01b\x01c\x02"],
)
@pytest.mark.parametrize("at", [0, 7, 20])
def test_texts_that_are_not_plain_stand_alone(odd: bytes, at: int) -> None:
    found = read([*PLAIN[:at], odd, *PLAIN[at:]])
    finished = odd == b"TAGS\x01x"  # the last separator may be missing
    assert found.alone.tolist() == ([] if finished else [at])
    tags = tags_of(found, 21)
    assert (at in tags) is finished
    assert len(tags) == 20 + finished


def test_a_key_is_what_lies_between_spaces() -> None:
    texts = [b"KEYS\x01a%02d  b%02d \x02" % (n, n) for n in range(10)]
    table = read(texts)
    assert isinstance(table, PropertiesTable)
    assert table.key_spans == [(5, 8), (10, 13)]
    (keys,) = read([b"KEYS\x01a  bc \x02", b"KEYS\x01 \x02", b"a\x01b c\x02", b"KEYS\x01d\x02"]).keys()
    assert isinstance(keys.rows, np.ndarray)
    assert keys.rows.tolist() == [0, 0, 3]
    assert keys.signed().tolist() == [java_hash("a"), java_hash("bc"), java_hash("d")]


def test_only_what_is_hashed_has_to_be_ascii() -> None:
    def named(note: str, tag: str) -> list[bytes]:
        return [f"note\x01{note}\x02TAGS\x01{tag}{n}\x02".encode() for n in range(12)]

    for count in (10, 12):  # of one size, and not
        assert not len(read(named("ä", "t")[:count]).alone)
        assert read(named("n", "ä")[:count]).alone.tolist() == [*range(count)]
    mixed = [*named("ä", "t"), *named("n", "ä")]
    assert read(mixed).alone.tolist() == [*range(12, 24)]
    assert tags_of(read(mixed), 24) == {n: java_hash(f"t{n}") for n in range(12)}


def test_a_text_much_longer_than_the_others_is_read_with_them() -> None:
    texts = [b"a\x01%s\x02TAGS\x01long\x02" % (b"x" * 5000), *PLAIN]
    assert tags_of(read(texts), 21)[0] == java_hash("long")
    assert tags_of(read(texts), 21)[20] == java_hash("t1")
