"""What the pages of topics, groups, delayed messages, clients, store, brokers and cluster show, and the figures of
brokers over time, of each and added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final

import trio
from msgspec.structs import asdict

from reput_broker.console import dead_letters
from reput_broker.console.figures import shown
from reput_broker.console.members import TIMEOUT_S, Member
from reput_broker.console.source import ROWS_MAX, Query, Source
from reput_broker.observe.history.file import COLUMNS
from reput_protocol.commands.group_description import GroupQueue, GroupSummary
from reput_protocol.commands.statistics import ROWS_MAX as HISTORY_ROWS_MAX
from reput_protocol.commands.statistics import BrokerHistory
from reput_protocol.errors import BrokerError, ErrorCode, GroupNotFound, PermissionDenied, ReputError
from reput_protocol.names import is_system_group

if TYPE_CHECKING:
    from reput_client.admin import Admin

_FAULTS_MAX = 100
"""Groups that are not well, and are named apart from the others."""
_GROUPS_MAX = 16
"""Groups of one topic whose lag is shown."""


async def list_topics(source: Source, query: Query) -> dict[str, Any]:
    """Return the topics whose names contain `search`: settings, messages kept, and totals for rates.

    With `system` also retry, dead-letter and system topics.
    """
    search, wants_system = query.text("search").lower(), query.text("system") == "1"
    topics = [
        topic
        for topic in await source.admin.topic_summaries()
        if search in topic.topic.lower() and (wants_system or topic.kind == "normal")
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
        try:
            found = await source.admin.describe_group(group, topic)
        except (PermissionDenied, GroupNotFound):  # who may see the topic need not see all of its groups
            rows.append({"group": group, "lag": None, "lag_age_millis": None, "members": None})
            continue
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
        "groups": [_members_of(group) for group in groups[:ROWS_MAX]],
        "faults": [
            _members_of(group)
            for group in nlargest(_FAULTS_MAX, groups, key=lambda group: group.health.gravity)
            if group.health.is_fault
        ],
    }


def _members_of(group: GroupSummary) -> dict[str, Any]:
    return {**asdict(group), "health": asdict(group.health)}


async def show_group(source: Source, query: Query) -> dict[str, Any]:
    """Return one group; of more queues than a table has, those with the most lag."""
    found = await source.admin.describe_group(query.needed("group"), query.text("topic") or None)
    queues = found.queues
    if len(queues) > ROWS_MAX:
        queues = nlargest(ROWS_MAX, queues, key=lambda queue: queue.lag)
    return {
        "at_ms": source.at_ms,
        **_members_of(found.summary),
        "problems": [asdict(problem) for problem in found.problems],
        "model": found.message_model.value,
        "consume_type": found.consume_type.value,
        "starts_from": found.consume_from_where.value,
        "retries": found.retries,
        "dead_letters": await _dead_letters_of(source, found.summary.group),
        "subscriptions": [
            {"topic": subscription.topic, "expression": subscription.sub_string, "type": subscription.expression_type}
            for subscription in found.subscriptions
        ],
        "member_list": [asdict(member) for member in found.members[:ROWS_MAX]],
        "queues_total": len(found.queues),
        "queues": [_queue(queue) for queue in queues],
    }


async def _dead_letters_of(source: Source, group: str) -> dict[str, Any] | None:
    """Return the numbers of a group's dead letters; None if the user may not see them."""
    try:
        return await dead_letters.bounds_of(source, group)
    except BrokerError:
        return None


def _queue(queue: GroupQueue) -> dict[str, Any]:
    return {
        **asdict(queue),
        "lag": queue.lag,
        "committed_offset": queue.committed_offset if queue.committed_offset >= 0 else None,
        "last_commit_timestamp": queue.last_commit_timestamp if queue.last_commit_timestamp > 0 else None,
    }


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


async def list_transactions(source: Source, query: Query) -> dict[str, Any]:
    """Return open transactions, of one `topic` or with one `key` if they are given, from `cursor` on."""
    found = await source.admin.transaction_page(
        topic=query.text("topic") or None,
        key=query.text("key") or None,
        max_transactions=query.number("count", 50, 1, _LISTED_MAX),
        cursor=query.number("cursor", 0),
    )
    return {
        "at_ms": source.at_ms,
        "total": found.open,
        "transactions": [asdict(transaction) for transaction in found.transactions],
        "cursor": found.cursor,
    }


async def list_users(source: Source, query: Query) -> dict[str, Any]:
    """Return the users of access control and the groups of rules; never a secret."""
    from reput_client.users import rule_text

    del query
    table = await source.admin.list_users()
    users = [
        {
            "name": user.name,
            "is_admin": user.is_admin,
            "is_enabled": user.is_enabled,
            "groups": list(user.groups),
            "rules": [rule_text(rule) for rule in user.rules],
        }
        for user in sorted(table.users.values(), key=lambda user: user.name)
    ]
    groups = [
        {"name": f"@{name}", "rules": [rule_text(rule) for rule in rules]}
        for name, rules in sorted(table.groups.items())
    ]
    return {"at_ms": source.at_ms, "users": users[:ROWS_MAX], "groups": groups[:ROWS_MAX]}


async def list_schedules(source: Source, query: Query) -> dict[str, Any]:
    """Return the schedules, and again those that do not send as they should; none at a slave, which has only a copy."""
    del query
    try:
        found = await source.admin.list_schedules()
    except BrokerError as error:
        if error.error is not ErrorCode.NOT_MASTER:
            raise
        found = []
    rows = [{**asdict(schedule), "definition": asdict(schedule.definition)} for schedule in found]
    for row in rows:
        del row["definition"]["body"]  # of up to 64 KiB
    faults = [row for schedule, row in zip(found, rows, strict=True) if schedule.state.is_fault]
    return {"at_ms": source.at_ms, "schedules": rows[:ROWS_MAX], "faults": faults[:_FAULTS_MAX]}


async def list_clients(source: Source, query: Query) -> dict[str, Any]:
    """Return the connections whose client id, address, role or group contains `search`, those idle longest last."""
    search = query.text("search").lower()
    found = sorted(await source.admin.list_clients(), key=lambda client: client.idle_millis)
    wanted = [
        client
        for client in found
        if any(search in text.lower() for text in (client.client_id or "", client.address, client.role, *client.groups))
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
    """Return the broker's status, with its copies and its election."""
    del query
    return {"at_ms": source.at_ms, "status": await source.admin.describe_broker()}


_HISTORY_ROWS: Final = 720


async def show_history(source: Source, query: Query) -> dict[str, Any]:
    """Return the figures of a broker between `begin` and `end`, in seconds since 1970 or, up to 0, before now."""
    found = await _history_of(source.admin, query, has_names=query.text("names") == "1")
    return {**_shown_history(found), "groups": [*map(asdict, found.groups)], "topics": [*map(asdict, found.topics)]}


async def show_brokers(source: Source, query: Query) -> dict[str, Any]:
    """Return all brokers, each with its figures or why there are none, and the figures of all together.

    All are asked at once, but for those that `Members` does not ask. One that is known to be away is not waited for.
    """
    members = await source.cluster.all()
    answers: dict[str, BrokerHistory] = {}
    errors: dict[str, str] = {}

    async def ask(member: Member) -> None:
        try:
            if member.is_own:
                answers[member.address] = await _history_of(source.own_admin, query)
                return
            with trio.fail_after(TIMEOUT_S):
                async with await source.cluster.admin(member) as admin:
                    answers[member.address] = await _history_of(admin, query)
            source.cluster.heard(member)
        except trio.TooSlowError:
            source.cluster.missed(member, f"it has not responded within {TIMEOUT_S:g} s")
        except BrokerError as error:
            errors[member.address] = error.remark or str(error)
            source.cluster.heard(member)
        except (ReputError, OSError) as error:
            source.cluster.missed(member, str(error))

    async with trio.open_nursery() as nursery:
        for member in members:
            if member.away_ms is None and not member.not_asked:
                nursery.start_soon(ask, member)
    kept = {address: answer for address, answer in answers.items() if answer.is_kept}
    return {
        "at_ms": source.at_ms,
        "brokers": [
            {
                "address": member.address,
                "broker": member.broker_name,
                "broker_id": member.broker_id,
                "cluster": member.cluster,
                "is_own": member.is_own,
                "away_ms": member.away_ms,
                "error": member.error or errors.get(member.address, member.not_asked),
                "figures": _shown_history(answers[member.address]) if member.address in answers else None,
            }
            for member in members
        ],
        "total": added_up([*kept.values()]),
    }


async def _history_of(admin: Admin, query: Query, *, has_names: bool = False) -> BrokerHistory:
    return await admin.broker_history(
        query.signed("begin", -300),
        query.signed("end", 0),
        rows_max=query.number("rows", _HISTORY_ROWS, 1, HISTORY_ROWS_MAX),
        has_names=has_names,
    )


def _shown_history(found: BrokerHistory) -> dict[str, Any]:
    return {
        "begin_s": found.begin_seconds,
        "step_s": found.step_seconds,
        "rows": found.rows,
        "columns": shown(found.columns, found.rows),
        "events": [*map(asdict, found.events)],
        "now_ms": found.now_ms,
        "facts": found.facts,
        "is_kept": found.is_kept,
    }


def added_up(found: Sequence[BrokerHistory]) -> dict[str, Any]:
    """Return the figures of several brokers as those of one; a step that a broker lacks is without it."""
    if not found:
        return {"begin_s": 0, "step_s": 1, "rows": 0, "columns": {}}
    # Their clocks may differ by a step, and one may keep a range in longer steps.
    step_s = max(each.step_seconds for each in found)
    begin_s = min(each.begin_seconds for each in found)
    end_s = max(each.begin_seconds + each.rows * each.step_seconds for each in found)
    begin_s -= begin_s % step_s
    rows = -(-(end_s - begin_s) // step_s)
    columns: dict[str, list[float | None]] = {}
    for column in COLUMNS:
        at: list[list[float]] = [[] for _ in range(rows)]
        for each in found:
            for row, values in _by_row(each, column.name, begin_s, step_s).items():
                at[row].append(column.in_time(values))
        if any(at):
            columns[column.name] = [column.over_brokers(values) if values else None for values in at]
    return {"begin_s": begin_s, "step_s": step_s, "rows": rows, "columns": shown(columns, rows)}


def _by_row(found: BrokerHistory, name: str, begin_s: int, step_s: int) -> Mapping[int, list[float]]:
    """Return the values of a column by the longer steps that they belong to."""
    values: dict[int, list[float]] = {}
    for row, value in enumerate(found.columns.get(name, ())):
        if value is not None:
            at_s = found.begin_seconds + row * found.step_seconds
            values.setdefault((at_s - begin_s) // step_s, []).append(value)
    return values
