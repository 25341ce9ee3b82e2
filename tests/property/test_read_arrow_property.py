"""Any part of a directory, read sequentially or by queue, has the messages that were stored there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_broker.store.base.results import Block
from reput_client.arrow import read_arrow
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.stores import BORN_HOST, T0, FakeClock, dispatch_all, opened, small_options

QUEUES = 3
EACH = 40
TAGS = (None, "a", "Aa", "BB")
"""Aa and BB have one hash."""


class Stored(NamedTuple):
    """A message as it was stored."""

    topic: str
    queue_id: int
    queue_offset: int
    time_ms: int
    tag: str | None
    body: bytes


class Scene(NamedTuple):
    """A directory and what it has."""

    root: Path
    messages: list[Stored]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Two topics, one of which is a small part of the log."""
    root = tmp_path_factory.mktemp("store") / "s"
    clock = FakeClock()
    store = opened(small_options(root), clock)
    messages: list[Stored] = []
    for number in range(QUEUES * EACH):
        for topic in ("many", "few")[: 2 if number % 10 == 0 else 1]:
            clock.now_ms += number % 3
            queue_id = number % QUEUES
            offset = sum(found.topic == topic and found.queue_id == queue_id for found in messages)
            stored = Stored(topic, queue_id, offset, clock.now_ms, TAGS[number % 4], b"%d" % number)
            block = encode_put_block([Message(topic, stored.body, tag=stored.tag)], topic, queue_id, T0)
            store.put_one(Block(bytearray(block), topic, queue_id, 1, BORN_HOST))
            messages.append(stored)
    dispatch_all(store)
    store.close()
    return Scene(root, messages)


offsets = st.dictionaries(st.integers(0, QUEUES - 1), st.integers(0, EACH), max_size=QUEUES)


@given(
    topic=st.sampled_from(["many", "few"]),
    start=offsets,
    end=offsets,
    queues=st.none() | st.frozensets(st.integers(0, QUEUES - 1)),
    tags=st.sampled_from(["*", "a", "Aa || a", "BB", "nobody"]),
    batch_rows=st.sampled_from([1, 7, 1000]),
)
def test_any_part_has_its_messages(
    scene: Scene,
    topic: str,
    start: dict[int, int],
    end: dict[int, int],
    queues: frozenset[int] | None,
    tags: str,
    batch_rows: int,
) -> None:
    here = [stored for stored in scene.messages if stored.topic == topic]
    counts = [sum(stored.queue_id == queue_id for stored in here) for queue_id in range(QUEUES)]
    wanted = range(QUEUES) if queues is None else queues
    start = {queue_id: min(at, counts[queue_id]) for queue_id, at in start.items() if queue_id in wanted}
    end = {queue_id: min(at, counts[queue_id]) for queue_id, at in end.items() if queue_id in wanted}
    given: dict[str, Any] = {"start": start, "end": end, "queues": queues, "tags": tags}
    columns = ["topic", "queueId", "queueOffset", "storeTimestamp", "tags", "body"]
    rows = read_arrow(scene.root, topic, columns=columns, batch_rows=batch_rows, **given).read_all()
    found = [
        Stored(at, queue_id, offset, round(when.timestamp() * 1000), tag, body)
        for at, queue_id, offset, when, tag, body in zip(*(rows[name].to_pylist() for name in columns), strict=True)
    ]
    assert sorted(found) == sorted(
        stored
        for stored in here
        if stored.queue_id in wanted
        and start.get(stored.queue_id, 0) <= stored.queue_offset < end.get(stored.queue_id, EACH)
        and (tags == "*" or stored.tag in tags.split(" || "))
    )
