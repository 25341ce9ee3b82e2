"""Topics: all in short, or one with its queues and the groups that consume it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from reput_broker.console.source import ROWS_MAX, Query, Source

_GROUPS_MAX = 16
"""Groups of one topic whose lag is shown."""


async def list_topics(source: Source, query: Query) -> dict[str, Any]:
    """Return the topics whose names contain `search`: settings, messages kept, and totals for rates."""
    search, wants_system = query.text("search").lower(), query.text("system") == "1"
    topics = [
        topic
        for topic in await source.admin.topic_summaries()
        if search in topic.topic.lower() and (wants_system or topic.kind != "system")
    ]
    rows = [asdict(topic) for topic in topics[:ROWS_MAX]]
    return {"at_ms": source.at_ms, "total": len(topics), "topics": rows}


async def show_topic(source: Source, query: Query) -> dict[str, Any]:
    """Return one topic: settings, queues from number `from` on, groups."""
    admin, topic, first = source.admin, query.needed("topic"), query.number("from", 0)
    (summary,) = await admin.topic_summaries(topic)
    stats = (await admin.topic_stats(topic)).offset_table
    queues = sorted((queue.queue_id, found) for queue, found in stats.items())
    return {
        "at_ms": source.at_ms,
        **asdict(summary),
        "attributes": (await admin.topic_config(topic)).attributes,
        "queues_total": len(queues),
        "queues": [
            {
                "queue": queue_id,
                "start": found.min_offset,
                "end": found.max_offset,
                "messages": max(0, found.max_offset - found.min_offset),
                "last_ms": found.last_update_timestamp or None,
            }
            for queue_id, found in queues[first : first + ROWS_MAX]
        ],
        "groups": await _groups(source, topic),
    }


async def _groups(source: Source, topic: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for group in await source.admin.topic_groups(topic):
        if len(rows) >= _GROUPS_MAX:
            rows.append({"group": group, "lag": None, "lag_age_millis": None, "members": None})
            continue
        found = await source.admin.describe_group(group, topic)
        rows.append(
            {
                "group": group,
                "lag": sum(queue.lag for queue in found.queues if queue.committed_offset >= 0),
                "lag_age_millis": max((queue.lag_age_millis for queue in found.queues), default=0),
                "members": found.summary.members,
            }
        )
    return rows
