"""Topics: all in short, or one with its queues and the groups that consume it."""

from __future__ import annotations

from typing import Any

import trio

from reput_broker.console.source import NAMES_A_TURN, QUEUES_A_TURN, ROWS_MAX, Query, Source
from reput_broker.groups.lag import StoreTimes
from reput_broker.observe.counters import TopicTraffic, topic_kind
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import GroupList, TopicConsumersHeader
from reput_protocol.commands.topic import GetTopicConfigHeader, TopicConfig

_GROUPS_MAX = 16
"""Groups of one topic whose lag is shown."""


async def list_topics(source: Source, query: Query) -> dict[str, Any]:
    """Return the topics whose names contain `search`: settings, messages kept, and totals for rates."""
    search, wants_system = query.text("search").lower(), query.text("system") == "1"
    table, counters, store = source.topics, source.figures.counters, source.store
    configs = table.all()
    names = []
    for position, name in enumerate(configs):
        if position % NAMES_A_TURN == 0:
            await trio.lowlevel.checkpoint()
        if search in name.lower() and (wants_system or not table.is_system(name)):
            names.append(name)
    names.sort()
    rows = []
    looked_at = 0
    for name in names[:ROWS_MAX]:
        config = configs[name]
        kept = end = 0
        for queue_id in range(_queues(config)):
            if looked_at % QUEUES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            looked_at += 1
            low, high = store.min_offset_in_queue(name, queue_id), store.max_offset_in_queue(name, queue_id)
            kept += max(0, high - low)
            end += max(0, high)
        traffic = counters.topics.get(name) or TopicTraffic(topic_kind(name))
        rows.append(
            {
                **_settings(config),
                "kind": "system" if table.is_system(name) else topic_kind(name),
                "messages": kept,
                "stored_total": end,
                "bytes_in_total": traffic.bytes_in,
            }
        )
    return {"at_ms": source.figures.clock_ms(), "total": len(names), "topics": rows}


async def show_topic(source: Source, query: Query) -> dict[str, Any]:
    """Return one topic: settings, queues from number `from` on, groups."""
    topic, first = query.needed("topic"), query.number("from", 0)
    answer = await source.ask(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigHeader(topic))
    config = TopicConfig.from_json(answer.body)
    store, times = source.store, StoreTimes(source.store)
    queues = []
    for queue_id in range(min(first, _queues(config)), min(first + ROWS_MAX, _queues(config))):
        if queue_id % QUEUES_A_TURN == 0:
            await trio.lowlevel.checkpoint()
        low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
        last_ms = await times.at(topic, queue_id, high - 1) if high > low else -1
        queues.append(
            {
                "queue": queue_id,
                "start": low,
                "end": high,
                "messages": max(0, high - low),
                "last_ms": last_ms if last_ms >= 0 else None,
            }
        )
    traffic = source.figures.counters.topics.get(topic) or TopicTraffic(topic_kind(topic))
    delays = source.figures.delays
    return {
        "at_ms": source.figures.clock_ms(),
        **_settings(config),
        "kind": "system" if source.topics.is_system(topic) else topic_kind(topic),
        "attributes": config.attributes,
        "messages_in_total": dict(traffic.messages_in),
        "bytes_in_total": traffic.bytes_in,
        "delayed": 0 if delays is None else max(0, delays.stats.waiting[topic]),
        "queues_total": _queues(config),
        "queues": queues,
        "groups": await _groups(source, topic),
    }


async def _groups(source: Source, topic: str) -> list[dict[str, Any]]:
    answer = await source.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicConsumersHeader(topic))
    rows: list[dict[str, Any]] = []
    for group in GroupList.from_json(answer.body).groups:
        if len(rows) >= _GROUPS_MAX:
            rows.append({"group": group, "lag": None, "lag_age_ms": None, "members": None})
            continue
        found = await source.serving.groups.description(group, topic)
        rows.append(
            {
                "group": group,
                "lag": sum(queue.lag for queue in found.queues if queue.committed_offset >= 0),
                "lag_age_ms": max((queue.lag_age_millis for queue in found.queues), default=0),
                "members": found.summary.members,
            }
        )
    return rows


def _queues(config: TopicConfig) -> int:
    return max(config.read_queue_nums, config.write_queue_nums)


def _settings(config: TopicConfig) -> dict[str, Any]:
    return {
        "topic": config.topic_name,
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": config.perm,
        "order": config.order,
    }
