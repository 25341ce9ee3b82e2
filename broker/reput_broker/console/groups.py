"""Consumer groups: all in short, or one with its members and its lag in each queue."""

from __future__ import annotations

from heapq import nlargest
from typing import Any

from msgspec.structs import asdict

from reput_broker.console.source import ROWS_MAX, Query, Source
from reput_protocol.commands.group_description import GroupQueue
from reput_protocol.names import is_system_group


async def list_groups(source: Source, query: Query) -> dict[str, Any]:
    """Return the groups whose names contain `search`, those with the most lag first."""
    search, wants_system = query.text("search").lower(), query.text("system") == "1"
    groups = [
        group
        for group in await source.admin.list_groups()
        if search in group.group.lower() and (wants_system or not is_system_group(group.group))
    ]
    groups.sort(key=lambda group: (-group.lag, group.group))
    return {
        "at_ms": source.at_ms,
        "total": len(groups),
        "lag": sum(group.lag for group in groups),
        "groups": [asdict(group) for group in groups[:ROWS_MAX]],
    }


async def show_group(source: Source, query: Query) -> dict[str, Any]:
    """Return one group; of more queues than a table has, those with the most lag."""
    found = await source.admin.describe_group(query.needed("group"), query.text("topic") or None)
    queues = found.queues
    if len(queues) > ROWS_MAX:
        queues = nlargest(ROWS_MAX, queues, key=lambda queue: queue.lag)
    return {
        "at_ms": source.at_ms,
        **asdict(found.summary),
        "model": found.message_model.value,
        "consume_type": found.consume_type.value,
        "starts_from": found.consume_from_where.value,
        "retries": found.retries,
        "dead_letters": found.dead_letters,
        "subscriptions": [
            {
                "topic": subscription.topic,
                "expression": subscription.sub_string,
                "type": subscription.expression_type,
            }
            for subscription in found.subscriptions
        ],
        "member_list": [asdict(member) for member in found.members[:ROWS_MAX]],
        "queues_total": len(found.queues),
        "queues": [_queue(queue) for queue in queues],
    }


def _queue(queue: GroupQueue) -> dict[str, Any]:
    return {
        **asdict(queue),
        "lag": queue.lag,
        "committed_offset": queue.committed_offset if queue.committed_offset >= 0 else None,
        "last_commit_timestamp": queue.last_commit_timestamp if queue.last_commit_timestamp > 0 else None,
    }
