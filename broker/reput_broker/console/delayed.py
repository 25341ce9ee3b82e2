"""Delayed messages: those that are not delivered yet, the next one first, and cancelling them."""

from __future__ import annotations

from typing import Any, Final

import structlog
from msgspec.structs import asdict

from reput_broker.console.source import Query, Source

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
