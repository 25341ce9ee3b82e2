"""Consumer groups: all in short, or one with its members and its lag in each queue."""

from __future__ import annotations

from typing import Any

import trio

from reput_broker.console.source import QUEUES_A_TURN, ROWS_MAX, Query, Source
from reput_protocol.commands.admin import GroupMember, GroupQueue, GroupSummary
from reput_protocol.names import is_system_group


async def list_groups(source: Source, query: Query) -> dict[str, Any]:
    """Return the groups whose names contain `search`, those with the most lag first."""
    search, wants_system = query.text("search").lower(), query.text("system") == "1"
    groups = [
        group
        for group in await source.serving.groups.summaries()
        if search in group.group.lower() and (wants_system or not is_system_group(group.group))
    ]
    groups.sort(key=lambda group: (-group.lag, group.group))
    return {
        "at_ms": source.figures.clock_ms(),
        "total": len(groups),
        "lag": sum(group.lag for group in groups),
        "groups": [_summary(group) for group in groups[:ROWS_MAX]],
    }


async def show_group(source: Source, query: Query) -> dict[str, Any]:
    """Return one group; of more queues than a table has, those with the most lag."""
    group = query.needed("group")
    found = await source.serving.groups.description(group, query.text("topic") or None)
    counts = source.figures.counters.retry
    return {
        "at_ms": source.figures.clock_ms(),
        **_summary(found.summary),
        "model": found.message_model.value,
        "consume_type": found.consume_type.value,
        "starts_from": found.consume_from_where.value,
        "retries": _of_group(counts.retries, group),
        "dead_letters": _of_group(counts.dead_letters, group),
        "subscriptions": [
            {
                "topic": subscription.topic,
                "expression": subscription.sub_string,
                "type": subscription.expression_type,
            }
            for subscription in found.subscriptions
        ],
        "member_list": [_member(member) for member in found.members[:ROWS_MAX]],
        "queues_total": len(found.queues),
        "queues": [_queue(queue) for queue in await _most_lag(found.queues)],
    }


async def _most_lag(queues: list[GroupQueue]) -> list[GroupQueue]:
    if len(queues) <= ROWS_MAX:
        return queues
    lags = []
    for position, queue in enumerate(queues):
        if position % (16 * QUEUES_A_TURN) == 0:
            await trio.lowlevel.checkpoint()
        lags.append(queue.lag)
    order = sorted(range(len(queues)), key=lags.__getitem__, reverse=True)
    return [queues[place] for place in order[:ROWS_MAX]]


def _of_group(counts: dict[tuple[str, str], int], group: str) -> int:
    return sum(count for (name, _), count in counts.items() if name == group)


def _summary(group: GroupSummary) -> dict[str, Any]:
    return {
        "group": group.group,
        "exists": group.exists,
        "may_consume": group.consume_enable,
        "members": group.members,
        "topics": group.topics,
        "lag": group.lag,
        "lag_age_ms": group.lag_age_millis,
        "has_conflict": group.has_conflict,
    }


def _member(member: GroupMember) -> dict[str, Any]:
    return {
        "client": member.client_id,
        "address": member.client_addr,
        "language": member.language,
        "version": member.version,
        "silent_ms": member.silent_millis,
        "queues": member.queues,
        "locks": member.locks,
    }


def _queue(queue: GroupQueue) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "queue": queue.queue_id,
        "start": queue.start_offset,
        "end": queue.end_offset,
        "committed": queue.committed_offset if queue.committed_offset >= 0 else None,
        "lag": queue.lag,
        "lag_age_ms": queue.lag_age_millis,
        "in_flight": queue.in_flight,
        "member": queue.client_id,
        "last_commit_ms": queue.last_commit_timestamp if queue.last_commit_timestamp > 0 else None,
    }
