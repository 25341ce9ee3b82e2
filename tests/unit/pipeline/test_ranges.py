"""Sharing messages out to tasks and to micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_client.arrow.queues import QueueKey, QueueRange
from reput_pipeline.source.ranges import limited, pack
from reput_pipeline.source.stream_offsets import OffsetsUnreadable, decode_offsets, encode_offsets

SIZES = st.lists(st.integers(0, 50), max_size=12)


def ranges_of(sizes: list[int]) -> list[QueueRange]:
    return [QueueRange(QueueKey("t", "b", number), 10, 10 + size) for number, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 9))
def test_every_message_is_in_one_part_and_parts_are_alike(sizes: list[int], parts: int) -> None:
    packed = pack(ranges_of(sizes), parts)
    assert len(packed) <= parts
    found = [(part.queue, offset) for task in packed for part in task for offset in range(part.start, part.end)]
    wanted = [(part.queue, offset) for part in ranges_of(sizes) for offset in range(part.start, part.end)]
    assert found == wanted
    counts = [sum(part.size for part in task) for task in packed]
    assert not counts or max(counts) - min(counts) <= 1


@given(SIZES, st.integers(1, 200))
def test_a_limit_is_split_in_proportion_and_starves_no_queue(sizes: list[int], most: int) -> None:
    start = {part.queue: part.start for part in ranges_of(sizes)}
    available = {part.queue: part.end for part in ranges_of(sizes)}
    ends = limited(start, available, most)
    taken = {queue: ends[queue] - start[queue] for queue in ends}
    assert all(0 <= taken[part.queue] <= part.size for part in ranges_of(sizes))
    assert all(taken[part.queue] >= 1 for part in ranges_of(sizes) if part.size)
    assert sum(taken.values()) <= most + len(sizes)
    if sum(sizes) <= most:
        assert ends == available


@given(st.dictionaries(st.tuples(st.text(), st.text(), st.integers(0, 99)), st.integers(0, 2**62)))
def test_offsets_of_a_stream_come_back(table: dict[tuple[str, str, int], int]) -> None:
    offsets = {QueueKey(*key): value for key, value in table.items()}
    generations = {(topic, broker): topic + broker for topic, broker, _ in table}
    assert decode_offsets(encode_offsets(offsets, generations)) == (offsets, generations)
    assert decode_offsets(encode_offsets(offsets, {})) == (offsets, {})


def test_offsets_of_the_first_version_are_read() -> None:
    old = {"version": 1, "topics": {"t": {"b": {"0": 17}}}}
    assert decode_offsets(old) == ({QueueKey("t", "b", 0): 17}, {})


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"version": 3, "topics": {}},
        {"version": 1},
        {"version": 1, "topics": {"t": 3}},
        {"version": 2, "topics": {}, "generations": {"t": 3}},
    ],
)
def test_offsets_of_another_version_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(OffsetsUnreadable):
        decode_offsets(data)
