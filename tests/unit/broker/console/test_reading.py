"""Reading through queues in the order of storing, in both directions: no message is shown twice or omitted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from reput_broker.console.reading import browse_messages
from reput_broker.console.source import Bodies, Query, Source
from reput_client.received import ReceivedMessage
from reput_protocol.commands.topic import TopicSummary
from reput_protocol.errors import ErrorCode, PermissionDenied
from reput_protocol.properties import encode_properties
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.record import Record, encode_record


class Messages(list[ReceivedMessage]):
    """The messages of a fetch."""

    @property
    def record_bytes(self) -> int:
        return sum(message.record_bytes for message in self)


class Fetched:
    """The answer to a fetch."""

    def __init__(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        self.messages = Messages(messages)
        self.next_offset = next_offset


class FakeAdmin:
    """A broker's queues. An answer holds some messages only, as if they were large.

    Attributes:
        first: the offset of the first message of each queue.
    """

    def __init__(self, queues: dict[tuple[str, int], list[int]], first: int = 0) -> None:
        self.first = first
        self.at_once = 7
        self.denied: set[str] = set()
        self.fetches = 0
        self.queues = {
            queue: [
                ReceivedMessage.of_record(_record(*queue, first + number, stored_ms))
                for number, stored_ms in enumerate(times)
            ]
            for queue, times in queues.items()
        }

    async def topic_summaries(self) -> list[TopicSummary]:
        return [TopicSummary(topic=topic, kind="normal") for topic, _ in self.queues]

    async def queue_bounds(self, topics: list[str]) -> dict[MessageQueue, tuple[int, int]]:
        return {
            MessageQueue(topic, "b", queue_id): (self.first, self.first + len(messages))
            for (topic, queue_id), messages in self.queues.items()
            if topic in topics
        }

    async def fetch_messages(self, topic: str, queue_id: int, start: int, end: int, *, max_bytes: int) -> Fetched:
        if topic in self.denied:
            raise PermissionDenied(ErrorCode.NO_PERMISSION, "no")
        self.fetches += 1
        end = min(end, start + self.at_once)
        messages = self.queues[topic, queue_id][start - self.first : end - self.first]
        return Fetched(messages, start + len(messages))


def _record(topic: str, queue_id: int, offset: int, stored_ms: int) -> bytes:
    tag = "even" if offset % 2 == 0 else "odd"
    properties = encode_properties({"TAGS": tag, "n": str(offset)})
    body = b'{"n": %d}' % offset
    record = Record(
        topic, body, queue_id=queue_id, queue_offset=offset, store_timestamp_ms=stored_ms, properties=properties
    )
    return bytes(encode_record(record))


def queues_of(seed: int) -> dict[tuple[str, int], list[int]]:
    """Queues of different lengths, with many equal times and a clock that is set back now and then."""
    chance = random.Random(seed)
    queues: dict[tuple[str, int], list[int]] = {}
    for topic, number in (("a", 3), ("b", 2)):
        for queue_id in range(number):
            now, times = 1000, []
            for _ in range(chance.choice([0, 1, 9, 60])):
                now += chance.choice([0, 0, 1, 5, -3])
                times.append(now)
            queues[topic, queue_id] = times
    return queues


async def pages(admin: FakeAdmin, start: str, **values: Any) -> Iterator[list[dict[str, Any]]]:
    """Return the rows of each page from the start to the end, or backwards."""
    way = "previous" if start == "newest" else "next"
    source = Source(admin, 0, admin, None, Bodies(()), True)  # type: ignore[arg-type]
    found: list[list[dict[str, Any]]] = []
    place = ""
    while True:
        asked = {"topic": "*", "start": start, "place": place, **values}
        page = await browse_messages(source, Query(asked))
        found.append(page["messages"])
        if not page["has_older" if way == "previous" else "has_more"]:
            return iter(found)
        start, place = way, page[way]
        assert len(found) < 500, "it must come to an end"


def ids(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["queue"], row["offset"]) for row in rows]


@pytest.mark.trio
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("wanted", [{}, {"tag": "odd"}, {"path": "n >= 20"}])
async def test_pages_have_every_message_once_in_both_directions(seed: int, wanted: dict[str, str]) -> None:
    admin = FakeAdmin(queues_of(seed), first=seed)
    expected = {
        (topic, queue_id, message.queue_offset)
        for (topic, queue_id), messages in admin.queues.items()
        for message in messages
        if not wanted or (message.queue_offset % 2 if "tag" in wanted else message.queue_offset >= 20)
    }
    for count in (1, 4, 100):
        forwards = [row for page in await pages(admin, "oldest", count=count, **wanted) for row in page]
        assert len(ids(forwards)) == len(set(ids(forwards)))
        assert set(ids(forwards)) == expected
        backwards = [*await pages(admin, "newest", count=count, **wanted)]
        assert all(len(page) <= count for page in backwards)
        flat = [row for page in reversed(backwards) for row in page]
        assert len(ids(flat)) == len(set(ids(flat)))
        assert set(ids(flat)) == expected
        for rows in (forwards, flat):  # in the order of each queue, and of time where the clock was not set
            for queue in admin.queues:
                offsets = [row["offset"] for row in rows if (row["topic"], row["queue"]) == queue]
                assert offsets == sorted(offsets)


@pytest.mark.trio
async def test_times_order_the_messages_of_several_queues() -> None:
    admin = FakeAdmin({("a", 0): [1, 4, 4, 9], ("a", 1): [2, 3, 8], ("b", 0): [5]})
    for start in ("oldest", "newest"):
        (page,) = await pages(admin, start)
        assert [row["stored_ms"] for row in page] == [1, 2, 3, 4, 4, 5, 8, 9]
    # Those of the same millisecond have the same order in both directions.
    equal = FakeAdmin({("a", 0): [5, 5], ("a", 1): [5], ("b", 0): [5]})
    (forwards,), (backwards,) = [await pages(equal, start) for start in ("oldest", "newest")]
    assert ids(forwards) == ids(backwards) == [("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("b", 0, 0)]
    # What follows a page is what was after it, and what precedes it what was before.
    source = Source(admin, 0, admin, None, Bodies(()), True)  # type: ignore[arg-type]
    middle = await browse_messages(source, Query({"topic": "a", "start": "oldest", "count": "3"}))
    after = await browse_messages(source, Query({"topic": "a", "start": "next", "place": middle["next"], "count": "2"}))
    again = await browse_messages(
        source, Query({"topic": "a", "start": "previous", "place": after["previous"], "count": "3"})
    )
    assert [row["stored_ms"] for row in after["messages"]] == [4, 4]
    assert ids(again["messages"]) == ids(middle["messages"])


@pytest.mark.trio
async def test_a_reader_that_follows_gets_what_is_new_and_omits_what_is_too_much() -> None:
    admin = FakeAdmin({("a", 0): [1, 2], ("a", 1): [3]})
    source = Source(admin, 0, admin, None, Bodies(()), True)  # type: ignore[arg-type]
    place = (await browse_messages(source, Query({"topic": "*"})))["next"]

    async def following(place: str) -> dict[str, Any]:
        asked = {"topic": "*", "start": "next", "place": place, "follow": "1", "count": "100"}
        return await browse_messages(source, Query(asked))

    assert (await following(place))["messages"] == []
    admin.queues["a", 1].append(ReceivedMessage.of_record(_record("a", 1, 1, 4)))
    admin.queues["new", 0] = [ReceivedMessage.of_record(_record("new", 0, 0, 5))]
    page = await following(place)
    assert (ids(page["messages"]), page["skipped"]) == ([("a", 1, 1), ("new", 0, 0)], 0)
    admin.queues["a", 0] = [ReceivedMessage.of_record(_record("a", 0, number, number)) for number in range(2000)]
    behind = await following(page["next"])
    assert behind["skipped"] == 2000 - 2 - 1000 // 3
    assert behind["messages"][0]["offset"] == 2000 - 1000 // 3


@pytest.mark.trio
async def test_topics_that_may_not_be_read_are_named_and_left_out_of_a_pattern() -> None:
    admin = FakeAdmin({("a", 0): [1], ("b", 0): [2]})
    admin.denied.add("a")
    source = Source(admin, 0, admin, None, Bodies(()), True)  # type: ignore[arg-type]
    page = await browse_messages(source, Query({"topic": "*"}))
    assert (ids(page["messages"]), page["denied"]) == ([("b", 0, 0)], ["a"])
    assert (page["has_older"], page["has_more"]) == (False, False)
    with pytest.raises(PermissionDenied):
        await browse_messages(source, Query({"topic": "a"}))


@pytest.mark.trio
async def test_a_filter_looks_at_a_bounded_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput_broker.console.reading._LOOKED_AT_MAX", 40)
    admin = FakeAdmin({("a", 0): [*range(100)]})
    source = Source(admin, 0, admin, None, Bodies(()), True)  # type: ignore[arg-type]
    page = await browse_messages(source, Query({"topic": "a", "start": "oldest", "path": "n = 90"}))
    assert (page["messages"], page["is_cut"], page["has_more"]) == ([], True, True)
    assert 40 <= page["looked_at"] < 50
    found = [row for rows in await pages(admin, "oldest", path="n = 90") for row in rows]
    assert ids(found) == [("a", 0, 90)]
