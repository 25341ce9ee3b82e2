"""Blocks made from columns equal a producer's blocks, byte for byte."""

from __future__ import annotations

from itertools import repeat

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_pipeline.sink.options import SinkColumns
from reput_pipeline.sink.rows import BadRows, Columns, RowReader, encode_records
from reput_pipeline.sink.task import _delayed_messages
from reput_pipeline.spark.errors import SinkError
from reput_protocol.record.message import Message
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.record.put_block import check_put_block, encode_put_block
from reput_protocol.record.record import record_views

NOW = 1_700_000_000_000
TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zs")), min_size=1, max_size=12)


def ids() -> UniqueIdGenerator:
    return UniqueIdGenerator(bytes(4), 5, 6, lambda: NOW)


def columns(rows: list[dict[str, object]]) -> Columns:
    return Columns(
        body=pa.array([row["body"] for row in rows], pa.binary()),
        tags=pa.array([row.get("tag") for row in rows], pa.string()),
        keys=pa.array([row.get("keys") for row in rows], pa.string()),
        properties=pa.array([row.get("properties") for row in rows], pa.map_(pa.string(), pa.string())),
    )


ROW = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=60),
        "tag": st.none() | TEXT,
        "keys": st.none() | st.lists(TEXT, min_size=1, max_size=3).map(" ".join),
        "properties": st.none()
        | st.dictionaries(TEXT.map(lambda text: "p" + text), TEXT, max_size=3).map(lambda found: list(found.items())),
    }
)


@given(st.lists(ROW, min_size=1, max_size=30), st.sampled_from(["t", "orders", "x" * 127]))
def test_a_block_is_the_one_that_the_producer_encodes(rows: list[dict[str, object]], topic: str) -> None:
    made = list(encode_records(columns(rows), topic, repeat(3).__next__, ids(), NOW))
    assert [(block.queue_id, block.messages) for block in made] == [(3, len(rows))]
    messages = [
        Message(
            topic,
            row["body"],  # type: ignore[arg-type]
            tag=row["tag"],  # type: ignore[arg-type]
            keys=str(row["keys"]).split(" ") if row["keys"] else (),
            properties=dict(row["properties"] or ()),  # type: ignore[call-overload]
        )
        for row in rows
    ]
    assert bytes(made[0].data) == encode_put_block(messages, topic, 3, NOW, ids().next_run(len(rows)))
    check_put_block(made[0].data, topic=topic, queue_id=3, count=len(rows))


def test_slices_of_columns_are_encoded_as_they_are() -> None:
    rows: list[dict[str, object]] = [
        {"body": b"%d" % number, "tag": f"t{number}", "properties": [("n", str(number))]} for number in range(20)
    ]
    (block,) = encode_records(columns(rows).slice(5, 9), "t", repeat(0).__next__, ids(), NOW)
    views = record_views(block.data)
    assert [(view.body, view.tag, view.property_map()["n"]) for view in views] == [
        (b"%d" % number, f"t{number}", str(number)) for number in range(5, 9)
    ]


def headers(*lists: list[tuple[str, bytes | None]] | None) -> pa.RecordBatch:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in lists]
    return pa.record_batch(
        {
            "value": pa.array([b"x"] * len(rows), pa.binary()),
            "key": [f"k{row}" for row in range(len(rows))],
            "headers": pa.array(rows, kind),
        }
    )


def test_a_header_that_a_message_has_twice_is_named() -> None:
    names = SinkColumns("value", None, "key", None, None, "headers", None, None, None)
    distinct = headers([("a", b"1"), ("b", b"1")], None, [], [("a", b"1"), ("a", None), ("a", b"")], [("b", b"2")])
    (messages,) = RowReader(names, "t").messages(distinct)
    assert messages.columns.properties is not None
    assert messages.columns.properties.to_pylist()[0] == [("a", "1"), ("b", "1")]
    twice = headers([("a", b"1")], None, [("a", b"1")], [("b", b"1"), ("a", b"1"), ("b", b"2")])
    for batch, row in ((twice, 3), (twice.slice(2), 1)):
        with pytest.raises(SinkError, match=rf"^row {row} of the partition .keys 'k3'. has more .* header 'b'"):
            list(RowReader(names, "t").messages(batch))


def test_nulls_empty_values_and_what_has_a_column_of_its_own_are_left_out() -> None:
    maps = pa.array(
        [
            [("KEYS", "k"), ("__CRC32#", "0123456789"), ("a", None), ("b", "c"), ("e", "")],
            [("a", "beneath")],
            [("TAGS", "dropped"), ("UNIQ_KEY", ""), ("d", "e")],
        ],
        pa.map_(pa.string(), pa.string()),
    )
    nulls = pa.py_buffer(b"\x05")
    maps = pa.MapArray.from_buffers(maps.type, 3, [nulls, maps.buffers()[1]], children=[maps.values])
    some = Columns(body=pa.array([b""] * 3, pa.binary()), tags=pa.array(["t", "", None]), keys=None, properties=maps)
    (block,) = encode_records(some, "t", repeat(0).__next__, ids(), NOW)
    found = [view.property_map() for view in record_views(block.data)]
    assert [{k: v for k, v in each.items() if k != "UNIQ_KEY"} for each in found] == [
        {"TAGS": "t", "KEYS": "k", "b": "c"},
        {},
        {"d": "e"},
    ]
    assert [each["UNIQ_KEY"] for each in found] == list(ids().next_run(3))


def test_headers_with_empty_values_are_left_out() -> None:
    """As those of Kafka may be: RocketMQ's properties have no empty values, and such a row ended the query."""
    names = SinkColumns("value", None, "key", None, None, "headers", None, None, None)
    batch = headers([("a", b""), ("b", b"1"), ("a", b"")], [("a", b"")])
    (messages,) = RowReader(names, "t").messages(batch)
    (block,) = encode_records(messages.columns, "t", repeat(0).__next__, ids(), NOW)
    first, second = (view.property_map() for view in record_views(block.data))
    assert (first.get("a"), first["b"], second.get("a")) == (None, "1", None)
    delayed = list(_delayed_messages("t", messages.columns, [NOW, NOW]))
    assert [message.properties for message in delayed] == [{"b": "1"}, {}]


def test_large_messages_go_in_several_blocks_each_to_the_next_queue() -> None:
    rows: list[dict[str, object]] = [{"body": bytes(size)} for size in [200_000] * 7 + [4 << 20]]
    made = list(encode_records(columns(rows), "t", iter([2, 0, 1, 2, 0]).__next__, ids(), NOW))
    assert [(block.queue_id, block.messages) for block in made] == [(2, 2), (0, 2), (1, 2), (2, 1), (0, 1)]
    for block in made:
        check_put_block(block.data, topic="t", queue_id=block.queue_id, count=block.messages)


def test_flag_and_born_time_are_kept_and_an_id_of_its_own_too() -> None:
    given_ids = columns([{"body": b"a", "properties": [("TAGS", "x"), ("UNIQ_KEY", "mine")]}, {"body": b"b"}])
    import numpy as np

    some = given_ids._replace(tags=None, keys=None, flag=pa.array([7, None], pa.int32()), born_ms=np.array([1, 2]))
    (block,) = encode_records(some, "t", repeat(0).__next__, ids(), NOW)
    first, second = record_views(block.data)
    assert (first.unique_key, first.tag, first.flag, first.born_timestamp_ms) == ("mine", "x", 7, 1)
    assert first.properties.startswith(b"UNIQ_KEY\x01mine\x02")
    assert second.unique_key is not None
    assert (len(second.unique_key), second.flag, second.born_timestamp_ms) == (32, 0, 2)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"body": b"", "tag": "a\x02X\x01b"}, "U\\+0001"),
        ({"body": b"", "properties": [("a\x01", "b")]}, "U\\+0001"),
        ({"body": b"", "properties": [("", "b")]}, "empty name"),
        ({"body": b"", "properties": [("DELAY", "3")]}, "'DELAY', which only the broker may set"),
        ({"body": b"", "tag": "x" * 40_000}, "40000|at most 31743 fit"),
        ({"body": b"", "keys": "o-42", "properties": [("", "v")]}, "row 0 of the partition .keys 'o-42'., for topic"),
    ],
)
def test_an_invalid_message_is_named(row: dict[str, object], text: str) -> None:
    with pytest.raises(SinkError, match=text):
        list(encode_records(columns([row]), "orders", repeat(0).__next__, ids(), NOW))


def test_a_flag_of_more_than_32_bits_is_refused() -> None:
    some = columns([{"body": b"a"}, {"body": b"b"}])._replace(flag=pa.array([-(1 << 31), 1 << 31]))
    with pytest.raises(SinkError, match="flag 2147483648, but a flag has 32 bits"):
        list(encode_records(some, "orders", repeat(0).__next__, ids(), NOW))


SPENT: list[list[tuple[str, str | None]]] = [
    [("REPUT_REPLAY_OF", "x"), ("a", "1"), ("POP_CK", "y"), ("REAL_TOPIC", "z")],
    [("a", "2"), ("DELAY", "0"), ("TRAN_MSG", "False")],
    [],
    [("TIMER_OUT_MS", "5000"), ("TIMER_DELAY_SEC", "60"), ("TIMER_ENQUEUE_MS", "1"), ("a", "4")],
    [("TIMER_DELIVER_MS", str(NOW)), ("TIMER_DELAY_MS", "0"), ("a", "5"), ("DELAY", None)],
    [("a", "6")],
]
"""What a broker has set, and delays that are over, in messages that were read from a topic."""


def test_what_another_broker_has_set_is_left_out() -> None:
    """A dead letter that was replayed into a topic ended each copy of the topic, also that of the job `replay`."""
    some = columns([{"body": b"", "properties": properties} for properties in SPENT])
    for part, first in ((some, 0), (some.slice(1, 6), 1)):
        (block,) = encode_records(part, "t", repeat(0).__next__, ids(), NOW)
        found = [view.property_map() for view in record_views(block.data)]
        assert [{**each, "UNIQ_KEY": ""} for each in found] == [
            {"UNIQ_KEY": "", **{name: value for name, value in row if name == "a"}} for row in SPENT[first:]
        ]


@pytest.mark.parametrize(
    "property_", [("DELAY", "3"), ("TIMER_DELIVER_MS", str(NOW + 1)), ("TIMER_DELAY_SEC", "x"), ("TRAN_MSG", "true")]
)
def test_what_would_have_an_effect_is_an_error(property_: tuple[str, str]) -> None:
    some = columns([{"body": b"", "properties": [("REPUT_X", "x"), property_]}])
    with pytest.raises(SinkError, match=f"row 0 .*'{property_[0]}', which only the broker may set"):
        list(encode_records(some, "t", repeat(0).__next__, ids(), NOW))


def test_delayed_messages_have_what_other_messages_have() -> None:
    """Properties that the source has read, which `Message` has arguments for, ended the query."""
    read = [("UNIQ_KEY", "u"), ("TAGS", "t"), ("KEYS", "k l"), ("a", "1"), ("EXPIRES_AFTER_MS", "2500")]
    spent = [("REPUT_REPLAY_OF", "x"), ("__CRC32#", "0123456789"), ("TIMER_OUT_MS", "1")]
    later = NOW + 1000
    some = columns([{"body": b"b", "tag": "own", "properties": [*read, *spent]}])
    for part, tag, keys in ((some, "own", ()), (some._replace(tags=None, keys=None), "t", ("k", "l"))):
        (message,) = _delayed_messages("t", part, [later])
        assert (message.tag, message.keys, message.unique_id) == (tag, keys, "u")
        assert message.properties == {"a": "1", "EXPIRES_AFTER_MS": "2500"}
        assert message.delay is not None
        assert message.delay.value == str(later)
    wrong: list[tuple[dict[str, object], int, str]] = [
        ({"body": b"", "tag": "a||b", "keys": "o-42"}, later, r"row 0 of the partition \(keys 'o-42'\), for topic 't'"),
        ({"body": b"", "properties": [("DELAY", "3")]}, later, "row 0 .*'DELAY'"),
        ({"body": b""}, 1 << 60, "row 0 "),
    ]
    for row, when, text in wrong:
        with pytest.raises(SinkError, match=text):
            list(_delayed_messages("t", columns([row]), [when]))


@pytest.mark.parametrize(("header", "reason"), [(("a", b"\xff"), "not UTF-8"), ((None, b"x"), "without a key")])
def test_a_bad_header_is_no_fault_of_the_other_rows(header: tuple[str, bytes], reason: str) -> None:
    """All rows of its batch were bad ones."""
    names = SinkColumns("value", None, "key", None, None, "headers", None, None, None)
    reader = RowReader(names, "t")

    def check(batch: pa.RecordBatch, first: int) -> None:
        reader.next_row = first
        list(reader.messages(batch))

    rows = BadRows(names, check)
    batch = headers([("a", b"1")], None, [header], [("b", b"2"), ("c", b"3")], None)
    parts = [part for part, _ in rows.sift(batch, 0)]
    assert [key for part in parts for key in part["key"].to_pylist()] == ["k0", "k1", "k3", "k4"]
    found = [messages.columns.properties for part in parts for messages in reader.messages(part)]
    assert [row for each in found if each is not None for row in each.to_pylist()] == [
        [("a", "1")],
        None,
        [("b", "2"), ("c", "3")],
        None,
    ]
    letters = rows.take(10)
    assert letters is not None
    assert letters.properties is not None
    assert reason in dict(letters.properties[0].as_py())["BAD_ROW_REASON"]


@pytest.mark.parametrize(
    "bad", [{"topic": "a b"}, {"queueId": -1}, {"bornTimestamp": None}, {"keys": b"\xff"}], ids=str
)
def test_errors_of_columns_name_the_row(bad: dict[str, object]) -> None:
    kinds = {
        "body": pa.binary(),
        "topic": pa.string(),
        "keys": pa.binary(),
        "queueId": pa.int32(),
        "bornTimestamp": pa.timestamp("us", "UTC"),
    }
    good: dict[str, object] = {"body": b"", "topic": "t", "keys": b"k", "queueId": None, "bornTimestamp": NOW}
    rows = [good, {**good, **bad}, good]
    batch = pa.record_batch({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    names = SinkColumns("body", "topic", "keys", None, "queueId", None, None, None, "bornTimestamp")
    with pytest.raises(SinkError, match=r"^row 1 of the partition"):
        list(RowReader(names, None).messages(batch))


def test_a_bad_row_may_have_a_time_after_the_year_9999() -> None:
    """It ended the query, although bad rows were to be dead letters."""
    names = SinkColumns("body", None, None, None, None, None, None, None, "bornTimestamp")

    def check(_batch: pa.RecordBatch, _first: int) -> None:
        raise SinkError("a bad row")

    rows = BadRows(names, check)
    born = pa.array([NOW * 1_000_000], pa.timestamp("us", "UTC"))
    list(rows.sift(pa.record_batch({"body": pa.array([b"b"]), "bornTimestamp": born}), 0))
    letters = rows.take(10)
    assert letters is not None
    assert letters.properties is not None
    assert dict(letters.properties[0].as_py())["BAD_ROW_COLUMNS"] == f'{{"bornTimestamp": {NOW * 1_000_000}}}'
