"""Bodies that may be large: in parts of bounded size, which together equal the whole."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from reput_protocol.commands import base as bodies
from reput_protocol.commands.base import PART_BYTES, PART_VALUES, LargeBody
from reput_protocol.commands.consumers import ConsumeStats, ConsumeTimeSpan, OffsetWrapper, QueueTimeSpan
from reput_protocol.commands.group import LockBatchResult, SubscriptionGroupConfig, SubscriptionGroupTable
from reput_protocol.commands.group_description import (
    GroupDescription,
    GroupQueue,
    GroupSummaries,
    GroupSummary,
    ProducerInfo,
    ProducerTable,
)
from reput_protocol.commands.offset import ResetOffsetBody, ResetOffsetList
from reput_protocol.commands.pull import QueueBounds, QueueBoundsTable
from reput_protocol.commands.topic import QueueStats, TopicConfig, TopicConfigTable, TopicStats
from reput_protocol.record.message import MessageQueue

ENTRY_BYTES_MAX = 600
"""The largest entry below; a part ends after the entry that fills it."""
COUNT = 3000
VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 2}
QUEUES = [MessageQueue("T", "broker-ä", number) for number in range(COUNT)]
NAMES = [f"name-{number}" for number in reversed(range(COUNT))]
INFO = ProducerInfo("client", "/127.0.0.1:5000")

LARGE: list[LargeBody] = [
    TopicConfigTable({name: TopicConfig(name, attributes={"b": "1", "a": "2"}) for name in NAMES}, VERSION),
    SubscriptionGroupTable({name: SubscriptionGroupConfig(name) for name in NAMES}, VERSION, {"g": {"T": 4}}),
    SubscriptionGroupTable({}, VERSION, {name: {"T": 4} for name in NAMES}),
    TopicStats({queue: QueueStats(0, 10) for queue in QUEUES}),
    ConsumeStats({queue: OffsetWrapper(10, 7) for queue in QUEUES}),
    ConsumeTimeSpan([QueueTimeSpan(queue, 1, 2, 2) for queue in QUEUES]),
    ResetOffsetBody(dict.fromkeys(QUEUES, 42)),
    ProducerTable({name: [INFO] for name in NAMES}),
    ProducerTable({"one": [replace(INFO, client_id=name) for name in NAMES]}),
    QueueBoundsTable("broker-a", {"T": [QueueBounds(number, 0, 5) for number in range(COUNT)]}, {"T": "x"}),
    QueueBoundsTable("broker-a", {name: [] for name in NAMES}, dict.fromkeys(NAMES, "x")),
    GroupSummaries([GroupSummary(name, topics=["T"]) for name in NAMES]),
    GroupDescription(GroupSummary("g"), queues=[GroupQueue("T", number, 0, 5) for number in range(COUNT)]),
    LockBatchResult(QUEUES),
]


@pytest.mark.parametrize("body", LARGE, ids=lambda body: type(body).__name__)
def test_no_part_is_large_and_together_they_are_the_body(body: LargeBody) -> None:
    parts = list(body.json_parts())
    assert len(parts) >= COUNT / PART_VALUES
    assert max(map(len, parts)) <= PART_BYTES + ENTRY_BYTES_MAX
    data = b"".join(parts)
    assert data == body.to_json()
    assert type(body).from_json(data) == body


def test_a_list_of_offsets_is_written_in_parts() -> None:
    body = ResetOffsetList(dict.fromkeys(QUEUES, 42))
    assert max(map(len, body.json_parts())) <= PART_BYTES + ENTRY_BYTES_MAX
    assert ResetOffsetBody.from_json(body.to_json()).offset_table == body.offset_table


def test_names_are_sorted_and_nothing_stands_between() -> None:
    data = ProducerTable({"b": [], "a": [INFO, INFO], "ä": []}).to_json()
    info = {
        "clientId": "client",
        "language": "OTHER",
        "lastUpdateTimestamp": 0,
        "remoteIP": "/127.0.0.1:5000",
        "version": 0,
    }
    plain = {"data": {"b": [], "a": [info] * 2, "ä": []}}
    assert data == json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_an_entry_is_built_when_its_part_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    def encode(value: object) -> bytes:
        nonlocal written
        written += isinstance(value, TopicConfig)
        return b"{}"

    monkeypatch.setattr(bodies, "encode_json", encode)
    parts = TopicConfigTable({name: TopicConfig(name) for name in NAMES}, VERSION).json_parts()
    next(parts)
    assert 0 < written <= PART_VALUES
