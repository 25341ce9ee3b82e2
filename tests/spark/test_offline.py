"""`spark.read.format("reput")` over store directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.store_samples import MESSAGES, fill, hashes, records_of
from support.stores import flip_bit

TOPIC = "T"


def read(spark: Any, path: Path, **options: str) -> Any:
    reader = spark.read.format("reput").option("path", str(path))
    for name, value in {"subscribe": TOPIC, **options}.items():
        reader = reader.option(name, value)
    return reader.load()


def cause(error: BaseException) -> str:
    return str(error)


def test_all_messages_come_once_and_nothing_is_written(spark: Any, root: Path) -> None:
    before = hashes(root)
    rows = read(spark, root, minPartitions="3").collect()
    assert sorted((row.queueId, row.queueOffset, row.body) for row in rows) == sorted(
        (number % 2, number // 2, bytearray(b"body-%04d" % number)) for number in range(MESSAGES)
    )
    first = min(rows, key=lambda row: row.physicalOffset)
    assert (first.topic, first.keys, first.tags, first.brokerName) == ("T", "k0", "tag0", None)
    assert first.properties == {"UNIQ_KEY": "U000000", "TAGS": "tag0", "KEYS": "k0", "colour": "blue"}
    assert first.storeTimestamp.isoformat() == "2023-11-14T22:13:20.700000"
    assert hashes(root) == before


def test_columns_of_the_users_choice(spark: Any, root: Path) -> None:
    chosen = spark.read.format("reput").schema("tags string, queueOffset long").option("subscribe", "T").load(str(root))
    assert chosen.columns == ["tags", "queueOffset"]
    assert chosen.count() == MESSAGES
    by_option = read(spark, root, select="body,topic")
    assert by_option.columns == ["body", "topic"]
    assert by_option.first().topic == "T"


def test_sql_and_the_columns_of_kafka(spark: Any, root: Path) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING reput OPTIONS "
        f"(path '{root}', subscribe 'T', columns 'kafka', includeHeaders 'true')"
    )
    row = spark.sql("SELECT * FROM messages WHERE partition = 1 AND offset = 2").first()
    assert (bytes(row.key), bytes(row.value), row.timestampType) == (b"k5", b"body-0005", 1)
    assert ("colour", b"blue") in [(header.key, bytes(header.value)) for header in row.headers]


FILTERS = [
    ("queueId = 1", 30),
    ("queueOffset >= 10 AND queueOffset < 12", 4),
    ("tags = 'tag1'", 20),
    ("tags IN ('tag1', 'nobody')", 20),
    ("keys = 'k7'", 3),
    ("topic = 'T' AND queueId IN (0, 5)", 30),
    ("topic = 'other'", 0),
    ("storeTimestamp >= TIMESTAMP '2023-11-14 22:13:55.000'", 11),
    ("storeTimestamp > TIMESTAMP '2023-11-14 22:13:20.700' AND storeTimestamp <= TIMESTAMP '2023-11-14 22:13:22.1'", 2),
]


@pytest.mark.parametrize(("condition", "expected"), FILTERS)
def test_filters_leave_the_same_rows_pushed_down_or_not(spark: Any, root: Path, condition: str, expected: int) -> None:
    found = {}
    for pushdown in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
        found[pushdown] = sorted(row.physicalOffset for row in read(spark, root).where(condition).collect())
    assert found["true"] == found["false"]
    assert len(found["true"]) == expected


def test_a_frame_serves_queries_with_different_conditions(spark: Any, root: Path) -> None:
    """Spark keeps what was planned for the conditions that it pushed down last, for all queries of a frame."""
    frame = read(spark, root)
    assert frame.where("tags = 'tag1'").count() == 20
    assert frame.count() == MESSAGES
    assert frame.where("tags = 'tag1'").union(frame.where("tags = 'tag2'")).count() == 40


def test_damage_names_file_and_byte_or_is_left_out(spark: Any, tmp_path: Path) -> None:
    fill(tmp_path / "store")
    place = records_of(tmp_path / "store")[17]
    flip_bit(place.path, place.body)
    with pytest.raises(Exception, match=f"{place.path} at byte {place.position}: BODYCRC is"):
        read(spark, tmp_path / "store").collect()
    assert read(spark, tmp_path / "store", onDamage="skip").count() == MESSAGES - 1
    assert read(spark, tmp_path / "store", select="tags,queueOffset").count() == MESSAGES


WRONG = [
    ({"subscribe": "T", "startingOffset": "earliest"}, "option startingoffset: .* did you mean startingOffsets"),
    ({"subscribe": "T", "assign": '{"T":[0]}'}, "option assign: contradicts subscribe"),
    ({"subscribe": "nobody"}, "topic 'nobody' is not in"),
    ({"subscribe": "T", "groupId": "g"}, "option groupId: needs nameServer"),
    ({"subscribe": "T", "startingOffsets": '{"T":{"0":99}}'}, "offset 99 is beyond its end"),
    ({"subscribe": "T", "startingOffsets": "latest"}, "option startingOffsets: is 'latest'"),
    ({"subscribe": "T", "nameServer": "127.0.0.1:1"}, "option path: contradicts nameServer"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_options_that_cannot_be_are_named(spark: Any, root: Path, options: dict[str, str], words: str) -> None:
    reader = spark.read.format("reput").options(**options)
    with pytest.raises(Exception, match=words):
        reader.load(str(root)).collect()


def test_a_path_that_is_no_store_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is not a store directory: it has no directory commitlog"):
        read(spark, tmp_path).collect()
