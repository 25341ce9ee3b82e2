"""Conditions on tags that are sent to a live broker."""

from __future__ import annotations

from typing import Any

import pytest

from reput_client.arrow.queues import QueueKey, QueueRange
from reput_pipeline.source.live import LivePartition
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.source.ranges import Narrowing
from reput_pipeline.source.tasks import read_task, with_tags
from reput_protocol.names import SCHEDULE_TOPIC

LIVE = {"nameServer": "127.0.0.1:1", "subscribe": "t"}


def partition(topic: str = "t") -> LivePartition:
    return LivePartition([QueueRange(QueueKey(topic, "b", 0), 0, 5)], {})


def expression(tags: set[str] | None, topic: str = "t", **given: str) -> str:
    options = parse_source_options({**LIVE, **given}, streaming=False)
    narrowing = Narrowing(tags=None if tags is None else frozenset(tags))
    return with_tags(partition(topic), options, narrowing).sub_expression


def test_the_broker_leaves_out_other_tags() -> None:
    assert expression({"paid"}) == "paid"
    assert expression({"b", "a"}) == "a || b"


@pytest.mark.parametrize(
    "tags", [None, set(), {""}, {"", "a"}, {"*"}, {" a"}, {"a b", "c\t"}, {"a||b"}, {str(n) for n in range(101)}]
)
def test_tags_that_an_expression_cannot_name_are_left_to_spark(tags: set[str] | None) -> None:
    assert expression(tags) == "*"


def test_an_expression_that_was_given_and_the_schedule_topic_stay_as_they_are() -> None:
    assert expression({"a"}, subExpression="b") == "b"
    assert expression({"a"}, SCHEDULE_TOPIC) == "*"


def test_a_task_asks_with_the_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def read(*given: Any) -> list[Any]:
        asked.append(given[1].sub_expression)
        return []

    monkeypatch.setattr("reput_pipeline.source.tasks.read_live", read)
    options = parse_source_options(LIVE, streaming=False)
    assert list(read_task(partition(), options, None, Narrowing(tags=frozenset({"paid"})))) == []
    assert asked == ["paid"]
