"""Output of `dump` and `export`."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden.test_mini_store import mini_store
from reput_broker.tools.dump import (
    BadMessage,
    DumpRange,
    ExportRange,
    NotThere,
    TopicExport,
    dump_checkpoint,
    dump_index,
    dump_log,
    dump_offsets,
    dump_queue,
    dump_topics,
)
from reput_protocol.record.record import Record
from reput_protocol.store.layout import StoreLayout
from support.store_samples import fill, records_of, write_index
from support.stores import T0, flip_bit


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def exported(root: Path, part: ExportRange | None = None) -> list[Record | BadMessage]:
    return list(TopicExport(StoreLayout(root), "T", part or ExportRange()).messages())


def test_the_log_of_a_genuine_store_record_by_record(tmp_path: Path) -> None:
    mini_store(tmp_path)
    rows = list(dump_log(StoreLayout(tmp_path), DumpRange()))
    assert [(row["kind"], row["offset"]) for row in rows] == [
        ("record", 0),
        ("record", 115),
        ("record", 209),
        ("record", 363),
        ("blank", 469),
        ("record", 512),
        ("record", 614),
        ("record", 726),
        ("end", 839),
    ]
    assert rows[0]["body"] == "m0"
    assert rows[0]["keys"] == ["k1", "k2"]
    assert rows[2]["properties"]["DELAY"] == "3"
    part = list(dump_log(StoreLayout(tmp_path), DumpRange(200, 700, 2)))
    assert [row["offset"] for row in part] == [209, 363]


def test_damage_is_shown_at_its_position(store: Path) -> None:
    places = records_of(store)
    flip_bit(places[3].path, places[3].body)
    flip_bit(places[5].path, places[5].position + 6)
    rows = list(dump_log(StoreLayout(store), DumpRange()))
    assert "BODYCRC" in rows[3]["fault"]
    assert (rows[5]["kind"], rows[5]["position"]) == ("damage", places[5].position)
    assert rows[6]["body"] == "body-0006"


def test_units_entries_and_tables(store: Path) -> None:
    layout = StoreLayout(store)
    units = list(dump_queue(layout, "T", 1, DumpRange(9, 12)))
    assert [(row["queue_offset"], row["file"], row["position"]) for row in units] == [
        (9, "00000000000000000000", 180),
        (10, "00000000000000000200", 0),
        (11, "00000000000000000200", 20),
    ]
    with pytest.raises(NotThere):
        list(dump_queue(layout, "T", 9, DumpRange()))
    write_index(store)
    rows = list(dump_index(StoreLayout(store), DumpRange(count_max=3)))
    assert [row["kind"] for row in rows] == ["header", "entry", "entry", "entry"]
    assert (rows[0]["slots"], rows[0]["entries"]) == (16, 24)
    assert dump_checkpoint(store)["mark"]["flushed_offset"] > 0
    topics = list(dump_topics(layout))
    assert {
        "kind": "queue",
        "topic": "T",
        "queue_id": 0,
        "files": 3,
        "first_unit": 0,
        "end": 30,
        "bytes": 600,
    } in topics
    assert [(row["queue_id"], row["offset"], row["source"]) for row in dump_offsets(layout)] == [
        (0, 7, "consumerOffset.json"),
        (1, 30, "consumerOffset.journal"),
    ]


def test_messages_come_queue_after_queue(store: Path) -> None:
    records = [record for record in exported(store) if isinstance(record, Record)]
    assert [(record.queue_id, record.queue_offset) for record in records] == [(q, n) for q in (0, 1) for n in range(30)]
    assert [record.body for record in records[:3]] == [b"body-0000", b"body-0002", b"body-0004"]


def test_a_part_by_queue_offset_or_by_time(store: Path) -> None:
    part = [record.queue_offset for record in exported(store, ExportRange(start=28)) if isinstance(record, Record)]
    assert part == [28, 29, 28, 29]
    timed = exported(store, ExportRange(start_ms=T0 + 700 * 3, stop_ms=T0 + 700 * 5))
    assert sorted(record.body for record in timed if isinstance(record, Record)) == [b"body-0002", b"body-0003"]


def test_a_damaged_message_is_never_returned(store: Path) -> None:
    places = records_of(store)
    flip_bit(places[4].path, places[4].body)
    flip_bit(places[6].path, places[6].position + 1)
    flip_bit(store / "consumequeue/T/1/00000000000000000000", 6)  # a unit that points elsewhere
    found = exported(store)
    bad = [message for message in found if isinstance(message, BadMessage)]
    assert [(message.queue_id, message.queue_offset) for message in bad] == [(0, 2), (0, 3), (1, 0)]
    assert len(found) == 60
    assert "BODYCRC" in bad[0].reason
