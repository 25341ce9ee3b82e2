"""Bodies of QUERY_QUEUE_BOUNDS: topics, and where each of their queues begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reput_protocol.body import I64, Body, LargeBody


class QueueBoundsRequest(Body):
    """Body of the request: the topics that are asked about."""

    topics: list[str] = []


class QueueBounds(NamedTuple):
    """Where one queue begins and ends; only what is durable counts."""

    queue_id: I64
    min_offset: I64
    max_offset: I64


class QueueBoundsTable(LargeBody):
    """Body of the answer: the readable queues of every topic that exists. A topic that may not be read has none."""

    broker_name: str = ""
    topics: Mapping[str, list[QueueBounds]] = {}
    generations: Mapping[str, str] = {}
    """The generation of each topic, another one after it was deleted and created again: empty if the topic has none,
    which is older than generations. An old broker names none at all."""
