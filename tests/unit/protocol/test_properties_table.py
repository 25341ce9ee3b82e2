"""Properties laid out as tables: which rows belong together, and that nothing else comes of them than one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from reput_protocol.columns import decode_columns
from reput_protocol.dispatch_rows import COLUMNS, rows_of_columns, scan_dispatch
from reput_protocol.hashing import index_hash
from reput_protocol.index_keys import hash_keys, index_keys
from reput_protocol.properties import decode_properties
from reput_protocol.properties_table import PropertiesTables, tables_of
from reput_protocol.record import Host, Record, encode_record

PLAIN = [b"UNIQ_KEY\x01U%07d\x02KEYS\x01k%03d\x02TAGS\x01t%d\x02" % (n, n, n % 3) for n in range(20)]
OTHERS = [b"TAGS\x01t%d\x02UNIQ_KEY\x01U%07d\x02KEYS\x01k%03d\x02" % (n % 3, n, n) for n in range(20)]


def laid_out(texts: Sequence[bytes]) -> PropertiesTables:
    starts = np.array([0, *accumulate(map(len, texts))][:-1], np.int64)
    return tables_of(b"".join(texts), starts, np.array([len(text) for text in texts], np.int64))


def test_texts_of_one_shape_are_one_table() -> None:
    (table,), alone = laid_out(PLAIN)
    assert table.rows == slice(0, 20)
    assert not len(alone)
    assert table.spans == {b"UNIQ_KEY": (9, 17), b"KEYS": (23, 27), b"TAGS": (33, 35)}
    assert table.keys == [(23, 27)]
    assert table.java_hashes((33, 35)).tolist() == [31 * ord("t") + ord("0") + n % 3 for n in range(20)]


def test_two_shapes_of_one_size_are_two_tables() -> None:
    texts = [text for pair in zip(PLAIN, OTHERS, strict=True) for text in pair]
    tables, alone = laid_out(texts)
    assert [np.arange(40)[table.rows].tolist() for table in tables] == [
        [*range(0, 40, 2)],
        [*range(1, 40, 2)],
    ]
    assert not len(alone)


def test_texts_that_fit_nowhere_stand_alone_whatever_row_they_are_in() -> None:
    odd = PLAIN[0].replace(b"UNIQ_KEY", b"UNIQ_KEX")
    for at in (0, 7, 20):
        texts = [*PLAIN[:at], odd, b"", b"TAGS\x01x\x02", *PLAIN[at:]]
        (table,), alone = laid_out(texts)
        assert alone.tolist() == [at, at + 2]
        assert np.arange(len(texts))[table.rows].tolist() == [
            row for row in range(len(texts)) if not at <= row < at + 3
        ]


def test_a_key_is_what_lies_between_spaces() -> None:
    texts = [b"KEYS\x01a%02d  b%02d \x02" % (n, n) for n in range(10)]
    (table,), _ = laid_out([*texts, b"KEYS\x01a%02d b%03d \x02" % (1, 1)])
    assert table.keys == [(5, 8), (10, 13)]
    assert len(table.texts) == 10


def test_only_what_is_hashed_has_to_be_ascii() -> None:
    tables, alone = laid_out([b"note\x01\xc3\xa4\x02TAGS\x01%02d\x02" % n for n in range(10)])
    assert len(tables) == 1
    assert not len(alone)
    tables, alone = laid_out([b"note\x01%02d\x02TAGS\x01\xc3\xa4\x02" % n for n in range(10)])
    assert tables == []
    assert alone.tolist() == [*range(10)]


def test_looking_for_shapes_comes_to_an_end() -> None:
    texts = [b"p%03d\x01v\x02" % n for n in range(500)]
    tables, alone = laid_out(texts)
    assert tables == []
    assert alone.tolist() == [*range(500)]


def test_hashes_of_a_batch_are_those_of_its_records() -> None:
    texts = [
        b"",
        b"KEYS\x01a\x02",
        *[
            b"UNIQ_KEY\x01U%07d\x02KEYS\x01k%03d other-%d\x02TAGS\x01t%d\x02" % (n, n, n % 10, n % 3)
            for n in range(40)
        ],
        "KEYS\x01schlüssel ключ\x02TAGS\x01größe\x02".encode(),
        b"KEYS\x01  a  b \x02",
        b"KEYS\x01first\x02KEYS\x01second\x02",
        b"TAGS\x01x\x02UNIQ_KEY\x01unfinished",
        b"\x02\x02KEYS\x01odd\x01value\x02",
        *[
            b"UNIQ_KEY\x01V%07d\x02KEYS\x01%s\x02TAGS\x01t\x02" % (n, b"a b" if n % 2 else b"abc")
            for n in range(20)
        ],
        *[b"KEYS\x01\xc3\xa4%04d\x02TAGS\x01t\x02" % n for n in range(10)],
        b"KEYS\x01AaAa\x02",
        b"DELAY\x013\x02TAGS\x01x\x02",
    ]
    records = [
        Record(
            ("T", "größer", "SCHEDULE_TOPIC_XXXX")[number % 3],
            b"x",
            properties=text,
            store_timestamp_ms=1_700_000_000_000,
            born_host=Host("10.0.0.1", 1),
        )
        for number, text in enumerate(texts)
    ]
    data = b"".join(map(encode_record, records))
    columns = decode_columns(data)
    rows = rows_of_columns(data, columns)
    assert rows.tables is not None
    assert len(rows.tables.tables) > 1
    assert len(rows.tables.alone) > 1
    hashes, owners = hash_keys(data, rows)
    properties = [decode_properties(text) for text in texts]
    wanted = [
        (row, index_hash(key))
        for row, (record, found) in enumerate(zip(records, properties, strict=True))
        for key in index_keys(record.topic, found.get("UNIQ_KEY"), found.get("KEYS"))
    ]
    assert list(zip(map(int, owners), map(int, hashes), strict=True)) == wanted
    assert rows.tags_code.tolist() == columns.tags_codes().tolist()
    one_by_one = scan_dispatch(data, columns=False)
    assert (rows.runs, rows.consumed) == (one_by_one.runs, one_by_one.consumed)
    assert all((getattr(rows, name) == getattr(one_by_one, name)).all() for name in COLUMNS)
