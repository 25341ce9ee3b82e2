"""Request 14 answers by the whole table: the stored offset, the queue's start, the page cache, the request.

The queues are real ones: empty, young, with a beginning that memory no longer holds, with a beginning that is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_broker.observe.counters import RequestTraffic
from reput_broker.processors.offset import OffsetProcessor
from reput_broker.remoting.request import Client, Refusal, Request
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.offset import QueryConsumerOffsetHeader
from reput_protocol.wire.header import Header, HeaderType
from support.member_fakes import FakeClient
from support.retention import RESERVED_MS, Cleaning, FakeMachine, fill, settle
from support.stores import opened, put, small_options

TOPIC, GROUP = "T", "g"
EMPTY, YOUNG, OLD, CUT = range(4)
STORED = {"none": None, "zero": 0, "some": 3, "minus one": -1, "far below": -(1 << 40)}


class Scene(NamedTuple):
    """A processor over a store that holds the four queues."""

    store: MessageStore
    processor: OffsetProcessor

    def ask(self, queue_id: int, stored: str, flag: bool | None, header_type: HeaderType) -> int | None:
        """Return the offset that is answered, or None for QUERY_NOT_FOUND."""
        header = QueryConsumerOffsetHeader(f"{GROUP} {stored}", TOPIC, queue_id, flag)
        request = Request(
            cast("Client", FakeClient(header_type)),
            header_type,
            Header(RequestCode.QUERY_CONSUMER_OFFSET, 1, ext=header.to_ext(header_type)),
            memoryview(b""),
            0.0,
            cast("RequestTraffic", None),
        )
        try:
            answer = self.processor.query(request)
        except Refusal as refusal:
            answer = refusal.response()
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        assert answer.code == ResponseCode.SUCCESS
        return int(str(answer.ext["offset"]))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory: Path = tmp_path_factory.mktemp("offsets")
    machine = FakeMachine(hour=4)
    options = small_options(directory / "store", memory_bytes=25_000)
    store = opened(options, lambda: machine.now_ms)
    fill(store, 3, topic=TOPIC, queue_id=CUT)
    machine.age(options.data_dir)
    machine.now_ms += 2 * RESERVED_MS
    cleaning = Cleaning(store, machine)
    assert cleaning.clean_log()
    put(store, bytes(900), topic=TOPIC, queue_id=OLD)
    for _ in range(20):
        put(store, bytes(900), topic=TOPIC, queue_id=CUT)
    put(store, bytes(900), topic=TOPIC, queue_id=YOUNG)
    settle(store)
    cleaning.clean_queues()
    path = directory / "config" / "consumerOffset.json"
    path.parent.mkdir()
    table: dict[str, Any] = {
        f"{TOPIC}@{GROUP} {name}": {str(queue_id): offset for queue_id in (EMPTY, YOUNG, OLD, CUT)}
        for name, offset in STORED.items()
        if offset is not None
    }
    path.write_text(json.dumps({"offsetTable": table}))
    offsets = ConsumerOffsetManager(path, clock_ms=lambda: machine.now_ms)
    offsets.load()
    core = SimpleNamespace(store=store, tables=SimpleNamespace(offsets=offsets))
    processor = OffsetProcessor(cast("Any", core))
    yield Scene(store, processor)
    offsets.close()
    store.close()


def test_the_queues_are_what_they_are_meant_to_be(scene: Scene) -> None:
    store = scene.store
    assert [store.min_offset_in_queue(TOPIC, queue_id) > 0 for queue_id in (EMPTY, YOUNG, OLD, CUT)] == [
        False,
        False,
        False,
        True,
    ]
    assert store.max_offset_in_queue(TOPIC, EMPTY) == 0
    assert [store.is_in_memory(TOPIC, queue_id, 0) for queue_id in (YOUNG, OLD)] == [True, False]


@given(
    st.sampled_from([EMPTY, YOUNG, OLD, CUT]),
    st.sampled_from(sorted(STORED)),
    st.sampled_from([True, False, None]),
    st.sampled_from([HeaderType.JSON, HeaderType.BINARY, HeaderType.MSGPACK]),
)
def test_the_whole_table(scene: Scene, queue_id: int, stored: str, flag: bool | None, header_type: HeaderType) -> None:
    offset = STORED[stored]
    expected: int | None
    if offset is not None and offset >= 0:
        expected = offset
    else:
        expected = 0 if flag is not False and queue_id in (EMPTY, YOUNG) else None
    assert scene.ask(queue_id, stored, flag, header_type) == expected
