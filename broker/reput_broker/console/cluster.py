"""The figures of all brokers of the cluster, by broker and added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio
from msgspec.structs import asdict

from reput_broker.console.figures import shown
from reput_broker.console.members import TIMEOUT_S, Member
from reput_broker.console.source import Query, Source
from reput_broker.observe.history.columns import COLUMNS
from reput_protocol.commands.history import ROWS_MAX, BrokerHistory
from reput_protocol.errors import BrokerError, ReputError

if TYPE_CHECKING:
    from reput_client.admin import Admin

_ROWS: Final = 720


async def show_history(source: Source, query: Query) -> dict[str, Any]:
    """Return the figures of a broker between `begin` and `end`, in seconds since 1970 or, up to 0, before now."""
    found = await _read(source.admin, query, has_names=query.text("names") == "1")
    return {**_plain(found), "groups": [*map(asdict, found.groups)], "topics": [*map(asdict, found.topics)]}


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
                answers[member.address] = await _read(source.own_admin, query)
                return
            with trio.fail_after(TIMEOUT_S):
                async with await source.cluster.admin(member) as admin:
                    answers[member.address] = await _read(admin, query)
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
                "figures": _plain(answers[member.address]) if member.address in answers else None,
            }
            for member in members
        ],
        "total": added_up([*kept.values()]),
    }


async def _read(admin: Admin, query: Query, *, has_names: bool = False) -> BrokerHistory:
    return await admin.broker_history(
        query.signed("begin", -300),
        query.signed("end", 0),
        rows_max=query.number("rows", _ROWS, 1, ROWS_MAX),
        has_names=has_names,
    )


def _plain(found: BrokerHistory) -> dict[str, Any]:
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
