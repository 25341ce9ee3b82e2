"""Where micro-batches end, without Spark and without a broker."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from reput_client.arrow.queues import Bounds, QueueKey, TopicKey
from reput_client.errors import ConnectFailed
from reput_pipeline.data_source import ReputDataSource
from reput_pipeline.source.options import SourceOptions, parse_source_options
from reput_pipeline.source.readers import ReputStreamReader
from reput_pipeline.spark.errors import DataLost
from reput_pipeline.spark.option_reader import OptionError
from support.pipeline_jobs import spark_schema_of

LIVE = {"nameServer": "127.0.0.1:1", "subscribePattern": "t.*"}


class FakeCluster:
    """Queues whose bounds a test sets."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, Bounds] = {}
        self.commits: list[tuple[QueueKey, int]] = []
        self.refuses = False
        self.addresses = {"b": "127.0.0.1:1"}
        self.generations: dict[TopicKey, str] = {}

    def topic_queues(self, options: SourceOptions) -> dict[str, list[QueueKey]]:
        found: dict[str, list[QueueKey]] = {}
        for queue in self.queues:
            if options.is_wanted(queue.topic):
                found.setdefault(queue.topic, []).append(queue)
        return found

    def bounds(self, queues: Sequence[QueueKey]) -> dict[QueueKey, Bounds]:
        return {queue: self.queues[queue] for queue in queues}

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int:
        return timestamp_ms

    def committed(self, queue: QueueKey) -> int | None:
        return 4 if queue.queue_id == 0 else None

    def commit(self, queue: QueueKey, offset: int) -> None:
        if self.refuses:
            raise ConnectFailed("127.0.0.1:1", "refused")
        self.commits.append((queue, offset))

    def close(self) -> None:
        pass


def key(queue_id: int, topic: str = "t") -> QueueKey:
    return QueueKey(topic, "b", queue_id)


class Stream:
    """A reader over a fake cluster and a fake clock."""

    def __init__(self, **given: str) -> None:
        self.now_s = 1000.0
        options = {**LIVE, **given}
        schema = spark_schema_of(parse_source_options(options, streaming=True))
        self.reader = ReputStreamReader(options, schema, clock_s=lambda: self.now_s)
        self.cluster = FakeCluster()
        self.reader._cluster = self.cluster  # type: ignore[assignment]

    def has(self, *ends: int, low: int = 0, topic: str = "t") -> None:
        for queue_id, end in enumerate(ends):
            self.cluster.queues[key(queue_id, topic)] = Bounds(low, end)

    def latest(self, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        json.dumps(end)
        return end


def ends(offsets: dict[str, Any], topic: str = "t") -> list[int]:
    return list(offsets["topics"].get(topic, {}).get("b", {}).values())


def test_a_new_query_starts_where_the_options_say() -> None:
    for given, expected in (
        ({}, [10, 7]),
        ({"startingOffsets": "earliest"}, [2, 2]),
        ({"startingOffsets": '{"t":{"0":5}}'}, [5, 2]),
        ({"startingOffsets": "group", "groupId": "g"}, [4, 2]),
        ({"startingTimestamp": "6"}, [6, 6]),
    ):
        stream = Stream(**given)
        stream.has(10, 7, low=2)
        assert ends(stream.reader.initialOffset()) == expected


def test_a_queue_without_a_message_that_new_starts_at_its_end() -> None:
    """Neither an empty queue nor an idle one says that the time is wrong; all of them do."""
    for given in ({"startingTimestamp": "6"}, {"startingOffsetsByTimestamp": '{"t":{"0":6,"1":6,"2":6}}'}):
        stream = Stream(**given)
        stream.has(10, 0, 3)
        assert ends(stream.reader.initialOffset()) == [6, 0, 3]
        for bounds in ((0, 0, 0), (0,)):
            stream = Stream(startingTimestamp="6")
            stream.has(*bounds)
            assert ends(stream.reader.initialOffset()) == list(bounds)
        stream = Stream(**given)
        stream.has(0, 5, 6)
        with pytest.raises(OptionError, match=r"queue t/b/1, as all others .* has no message stored at 6 or"):
            stream.reader.initialOffset()
        stream = Stream(**given, startingOffsetsByTimestampStrategy="latest")
        stream.has(0, 5, 6)
        assert ends(stream.reader.initialOffset()) == [0, 5, 6]


def test_a_batch_takes_all_or_the_limit_and_without_messages_there_is_none() -> None:
    stream = Stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    stream.has(30, 10)
    start = stream.reader.initialOffset()
    first = stream.latest(start)
    assert ends(first) == [7, 2]
    assert ends(stream.latest(first, ReadAllAvailable())) == [30, 10]
    end = stream.latest(first, ReadMaxRows(1000))
    assert stream.latest(end) == end
    assert ends(stream.reader.reportLatestOffset() or {}) == [30, 10]


def test_few_messages_wait_until_there_are_enough_or_the_delay_is_over() -> None:
    stream = Stream(startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    assert stream.reader.getDefaultReadLimit() == ReadMinRows(10)
    stream.has(3)
    start = stream.reader.initialOffset()
    first = stream.latest(start)  # the first batch waits for nothing
    assert ends(first) == [3]
    stream.has(8)
    assert stream.latest(first) == first
    stream.now_s += 59
    assert stream.latest(first) == first
    stream.now_s += 1
    second = stream.latest(first)
    assert ends(second) == [8]
    stream.has(18)
    assert ends(stream.latest(second)) == [18]


def test_available_now_ends_at_the_ends_at_its_start() -> None:
    stream = Stream(startingOffsets="earliest", maxOffsetsPerTrigger="6")
    stream.has(10)
    stream.reader.prepareForTriggerAvailableNow()
    offset = stream.reader.initialOffset()
    stream.has(500)
    stream.has(5, topic="t2")
    taken = []
    while (end := stream.latest(offset)) != offset:
        taken.append(ends(end)[0])
        offset = end
    assert taken == [6, 10]


def test_new_queues_are_read_from_their_beginning_once_they_have_messages() -> None:
    stream = Stream()
    stream.has(10)
    start = stream.reader.initialOffset()
    stream.has(0, topic="t2")
    assert stream.latest(start) == start
    stream.has(4, topic="t2")
    end = stream.latest(start)
    assert ends(end, "t2") == [4]
    stream.has(4, topic="t2", low=1)  # a batch that is run again misses what has expired since
    (partition,) = stream.reader.partitions(start, end)
    assert [(part.queue, part.start, part.end) for part in partition.ranges] == [  # type: ignore[attr-defined]
        (key(0, "t2"), 0, 4)
    ]
    assert stream.reader.partitions(end, end) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda stream: stream.has(20, 20, low=12), "messages 10 to 11 are gone"),
        (lambda stream: stream.has(3, 20), "it ends at 3, before message 10"),
        (
            lambda stream: stream.has(20, 20, topic="t2", low=12),
            "it is new to the query, and its messages 0 to 11 are gone",
        ),
        (lambda stream: stream.cluster.queues.pop(key(1)), "it no longer exists"),
    ],
)
def test_lost_data_ends_the_query_or_is_skipped(change: Any, words: str) -> None:
    stream = Stream()
    stream.has(10, 10)
    start = stream.reader.initialOffset()
    change(stream)
    with pytest.raises(DataLost, match=words):
        stream.latest(start)
    stream = Stream(failOnDataLoss="false")
    stream.has(10, 10)
    start = stream.reader.initialOffset()
    change(stream)
    with pytest.warns(UserWarning, match=words):
        end = stream.latest(start)
    assert all(offset >= 10 for offset in ends(end))


def test_a_queue_that_is_back_continues_where_it_was() -> None:
    stream = Stream(failOnDataLoss="false", groupId="g")
    stream.has(10, 10)
    start = stream.reader.initialOffset()
    gone = stream.cluster.queues.pop(key(1))
    stream.has(20)
    with pytest.warns(UserWarning, match="no longer exists"):
        end = stream.latest(start)
    assert sorted(ends(end)) == [10, 20]
    (partition,) = stream.reader.partitions(start, end)
    assert [part.queue for part in partition.ranges] == [key(0)]  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="no longer exists"):
        stream.latest(end)
    assert stream.cluster.commits == [(key(0), 20)]
    stream.cluster.queues[key(1)] = Bounds(0, gone.high + 5)
    (partition,) = stream.reader.partitions(end, stream.latest(end))
    assert [tuple(part) for part in partition.ranges] == [(key(1), 10, 15)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("before", ["first", ""])
def test_a_topic_that_was_created_again_is_noticed_at_any_length(before: str) -> None:
    """Its queues end beyond the checkpoint's offsets: by these alone 10 messages would be missing in silence."""
    stream = Stream()
    stream.has(10, 10)
    stream.cluster.generations["t", "b"] = before
    start = stream.reader.initialOffset()
    stream.has(20)  # of one queue now
    del stream.cluster.queues[key(1)]
    stream.cluster.generations["t", "b"] = "second"
    with pytest.raises(DataLost, match="its topic was deleted and created again; what followed message 10 of"):
        stream.latest(start)
    stream = Stream(failOnDataLoss="false")
    stream.has(20)
    stream.cluster.generations["t", "b"] = "second"
    with pytest.warns(UserWarning, match="its topic was deleted and created again"):
        end = stream.latest(start)
    assert (ends(end), end["generations"]) == ([20], {"t": {"b": "second"}})
    (partition,) = stream.reader.partitions(start, end)
    assert [tuple(part) for part in partition.ranges] == [(key(0), 0, 20)]  # type: ignore[attr-defined]
    assert partition.generations == {("t", "b"): "second"}  # type: ignore[attr-defined]
    stream.has(21)
    (partition,) = stream.reader.partitions(end, stream.latest(end))
    assert [tuple(part) for part in partition.ranges] == [(key(0), 20, 21)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_no_offset_of_a_deleted_topic_is_committed_in_the_one_created_again(fails: str) -> None:
    """The group would have skipped the messages of the new topic up to there."""
    stream = Stream(groupId="g", startingOffsets="earliest", failOnDataLoss=fails)
    stream.has(10)
    stream.has(5, topic="t2")
    stream.cluster.generations |= {("t", "b"): "first", ("t2", "b"): "other"}
    end = stream.latest(stream.reader.initialOffset())
    stream.cluster.generations["t", "b"] = "second"
    if fails == "true":
        with pytest.raises(DataLost):
            stream.latest(end)
    else:
        with pytest.warns(UserWarning, match="created again"):
            end = stream.latest(end)
    assert stream.cluster.commits == [(key(0, "t2"), 5)]
    if fails == "false":
        stream.latest(end)
        assert stream.cluster.commits[1:] == [(key(0), 10)]


def test_a_topic_created_again_that_is_empty_yet_makes_no_batch() -> None:
    stream = Stream(failOnDataLoss="false")
    stream.has(10)
    stream.cluster.generations["t", "b"] = "first"
    start = stream.reader.initialOffset()
    stream.has(0)
    stream.cluster.generations["t", "b"] = "second"
    with pytest.warns(UserWarning, match="created again"):
        assert stream.latest(start) == start
    stream.has(3)
    with pytest.warns(UserWarning, match="created again"):
        assert ends(stream.latest(start)) == [3]


def test_a_generation_that_is_not_known_is_not_compared() -> None:
    """Neither that of an old checkpoint nor that of an old broker, nor of a topic whose table was lost."""
    old = {"version": 1, "topics": {"t": {"b": {"0": 10}}}}
    first = {**old, "version": 2, "generations": {"t": {"b": "first"}}}
    cases: list[tuple[dict[str, Any], dict[TopicKey, str]]] = [
        (old, {("t", "b"): "first"}),
        (first, {}),
        (first, {("t", "b"): ""}),
    ]
    for start, now in cases:
        stream = Stream()
        stream.has(12)
        stream.cluster.generations = now
        (partition,) = stream.reader.partitions(start, stream.latest(start))
        assert [tuple(part) for part in partition.ranges] == [(key(0), 10, 12)]  # type: ignore[attr-defined]


def test_a_topic_out_of_sight_keeps_its_generation() -> None:
    stream = Stream(failOnDataLoss="false")
    stream.has(10)
    stream.has(10, topic="t2")
    stream.cluster.generations = {("t", "b"): "first", ("t2", "b"): "other"}
    start = stream.reader.initialOffset()
    away = stream.cluster.queues.pop(key(0))
    stream.cluster.generations = {("t2", "b"): "other"}
    stream.has(11, topic="t2")
    with pytest.warns(UserWarning, match="no longer exists"):
        end = stream.latest(start)
    assert end["generations"] == {"t": {"b": "first"}, "t2": {"b": "other"}}
    stream.cluster.queues[key(0)] = away
    stream.cluster.generations = {("t", "b"): "second", ("t2", "b"): "other"}
    with pytest.warns(UserWarning, match="created again"):
        assert ends(stream.latest(end)) == [10]


def test_available_now_keeps_the_place_of_a_queue_that_was_away_when_it_began() -> None:
    stream = Stream(failOnDataLoss="false")
    stream.has(10, 10)
    start = stream.reader.initialOffset()
    stream.has(20)
    away = stream.cluster.queues.pop(key(1))
    stream.reader.prepareForTriggerAvailableNow()
    stream.cluster.queues[key(1)] = away
    assert ends(stream.latest(start)) == [20, 10]


def test_progress_is_published_and_its_failure_does_not_end_the_query(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Stream(groupId="g", startingOffsets="earliest")
    stream.has(10, 5)
    end = stream.latest(stream.reader.initialOffset())
    assert stream.cluster.commits == [], "no batch is complete"
    for _ in range(2):
        assert stream.latest(end) == end
    assert stream.cluster.commits == [(key(0), 10), (key(1), 5)]
    stream.has(11, 5)
    stream.cluster.refuses = True
    stream.latest(stream.latest(end))
    assert "progress of group g not published" in capsys.readouterr().err
    restarted = Stream(groupId="g")
    restarted.has(11, 5)
    restarted.latest(end)
    assert restarted.cluster.commits == [(key(0), 10), (key(1), 5)]
    stream = Stream()
    stream.has(3)
    stream.latest(stream.latest(stream.reader.initialOffset()))
    assert stream.cluster.commits == []


def test_a_query_that_the_driver_ends_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PySpark's loop tells the driver of its hanging up, fails, and lets that end the process with a traceback."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    reader = ReputStreamReader(LIVE, spark_schema_of(parse_source_options(LIVE, streaming=True)))
    try:
        raise EOFError
    except EOFError:
        reader.stop()
    sys.excepthook(BrokenPipeError, BrokenPipeError(32, "Broken pipe"), None)
    assert capsys.readouterr().err == ""
    sys.excepthook(RuntimeError, RuntimeError("anything else"), None)
    assert "anything else" in capsys.readouterr().err


def test_a_reader_that_is_stopped_in_order_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    ReputStreamReader(LIVE, spark_schema_of(parse_source_options(LIVE, streaming=True))).stop()
    assert sys.excepthook is sys.__excepthook__


def test_a_query_that_is_refused_says_why_at_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's loop stops the reader that it has; if there is none, that is the error which it reports."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    options = {**LIVE, "endingOffsets": "latest"}
    schema = spark_schema_of(parse_source_options(LIVE, streaming=True))
    reader: Any = ReputDataSource(options).streamReader(schema)
    calls: list[Callable[[], Any]] = [
        reader.prepareForTriggerAvailableNow,
        reader.getDefaultReadLimit,
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),
    ]
    for call in calls:
        with pytest.raises(OptionError, match="a stream has no end"):
            call()
    reader.stop()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    with suppress(OptionError):
        try:
            reader.initialOffset()
        finally:
            reader.stop()
    assert os.environ.pop("SPARK_HIDE_TRACEBACK"), "the error is reported without a traceback"
    with suppress(ZeroDivisionError):
        try:
            _ = 1 / 0
        finally:
            reader.stop()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
