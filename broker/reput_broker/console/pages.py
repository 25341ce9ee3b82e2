"""What the pages of topics, groups, delayed messages, clients, store and cluster show."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from typing import Any, Final

import structlog
from msgspec.structs import asdict

from reput_broker.console.source import ROWS_MAX, Query, Source
from reput_protocol.commands.group_description import GroupQueue
from reput_protocol.names import is_system_group

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


log = structlog.get_logger(__name__)

_LISTED_MAX: Final = 100


async def list_delayed(source: Source, query: Query) -> dict[str, Any]:
    """Return delayed messages, of one `topic` or with one `key` if they are given, from `cursor` on."""
    found = await source.admin.delayed_page(
        topic=query.text("topic") or None,
        key=query.text("key") or None,
        max_messages=query.number("count", 50, 1, _LISTED_MAX),
        cursor=query.text("cursor") or None,
    )
    return {
        "at_ms": source.at_ms,
        "total": found.waiting,
        "late_s": found.due_seconds,
        "messages": [asdict(message) for message in found.messages],
        "cursor": found.cursor,
    }


async def cancel(source: Source, query: Query) -> dict[str, Any]:
    """Cancel the delayed messages for `topic` with a unique id or key; it is on disk when this returns."""
    topic, key = query.needed("topic"), query.needed("key")
    outcomes = [
        {"unique_id": message.unique_id, "outcome": message.outcome.value.lower()}
        for message in await source.admin.cancel_delayed(topic, key)
    ]
    log.info("console_cancelled", topic=topic, count=len(outcomes))
    return {"messages": outcomes}


async def list_clients(source: Source, query: Query) -> dict[str, Any]:
    """Return the connections whose client id, address, role or group contains `search`, those idle longest last."""
    search = query.text("search").lower()
    found = sorted(await source.admin.list_clients(), key=lambda client: client.idle_millis)
    wanted = [
        client
        for client in found
        if any(
            search in text.lower()
            for text in (client.client_id or "", client.address, client.role, *client.groups)
        )
    ]
    return {
        "at_ms": source.at_ms,
        "total": len(wanted),
        "roles": Counter(client.role for client in found),
        "clients": [asdict(client) for client in wanted[:ROWS_MAX]],
    }


async def show_store(source: Source, query: Query) -> dict[str, Any]:
    """Return the broker's status, and every option of its configuration."""
    del query
    options = [asdict(option) for option in await source.admin.broker_config()]
    return {"at_ms": source.at_ms, "status": await source.admin.describe_broker(), "options": options}


async def show_cluster(source: Source, query: Query) -> dict[str, Any]:
    """Return the brokers that the name service knows, and this one's status, with its copies and its election."""
    del query
    found = await source.admin.cluster_info()
    clusters = {name: cluster for cluster, names in found.cluster_addr_table.items() for name in names}
    members = [
        {"cluster": clusters.get(name, ""), "broker": name, "broker_id": broker_id, "address": address}
        for name, data in sorted(found.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    status = await source.admin.describe_broker()
    return {"at_ms": source.at_ms, "members": members[:ROWS_MAX], "status": status}
