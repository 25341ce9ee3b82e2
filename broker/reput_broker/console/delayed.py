"""Delayed messages: those that are not delivered yet, the next one first, and cancelling them."""

from __future__ import annotations

from typing import Any, Final

import structlog

from reput_broker.console.source import Query, Source
from reput_protocol.codes import RequestCode
from reput_protocol.commands.delay import (
    CancelDelayedHeader,
    CancelResult,
    DelayedMessage,
    DelayedMessageList,
    ListDelayedHeader,
)

log = structlog.get_logger(__name__)

_LISTED_MAX: Final = 100


async def list_delayed(source: Source, query: Query) -> dict[str, Any]:
    """Return delayed messages, of one `topic` or with one `key` if they are given, from `cursor` on."""
    header = ListDelayedHeader(
        query.text("topic") or None,
        query.text("key") or None,
        query.number("count", 50, 1, _LISTED_MAX),
        query.text("cursor") or None,
    )
    found = DelayedMessageList.from_json((await source.ask(RequestCode.LIST_DELAYED_MESSAGES, header)).body)
    delays = source.figures.delays
    return {
        "at_ms": source.figures.clock_ms(),
        "total": 0 if delays is None else max(0, sum(delays.stats.waiting.values())),
        "late_s": 0.0 if delays is None else delays.due_s(),
        "messages": [_message(message) for message in found.messages],
        "cursor": found.cursor,
    }


def _message(message: DelayedMessage) -> dict[str, Any]:
    return {
        "id": message.offset_message_id,
        "unique_id": message.unique_id,
        "topic": message.topic,
        "queue": message.queue_id,
        "due_ms": message.deliver_timestamp,
        "stored_ms": message.store_timestamp,
        "level": message.delay_level or None,
        "size_b": message.size,
        "tag": message.tag,
        "keys": message.keys,
    }


async def cancel(source: Source, query: Query) -> dict[str, Any]:
    """Cancel the delayed messages for `topic` with a unique id or key; it is on disk when this returns."""
    topic, key = query.needed("topic"), query.needed("key")
    answer = await source.ask(RequestCode.CANCEL_DELAYED_MESSAGE, CancelDelayedHeader(topic, key))
    outcomes = [
        {"unique_id": message.unique_id, "outcome": message.outcome.value.lower()}
        for message in CancelResult.from_json(answer.body).messages
    ]
    log.info("console_cancelled", topic=topic, count=len(outcomes))
    return {"messages": outcomes}
