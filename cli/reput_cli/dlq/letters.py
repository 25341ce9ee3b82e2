"""Dead letters: reading them, their origin and reason, and --filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from typing import TypeAlias

import click

from reput_cli.failures import CommandFailed
from reput_cli.positions import Position
from reput_client.admin_dead_letters import DeadLetter, DeadLetters
from reput_client.blocking import Admin
from reput_protocol import properties as names
from reput_protocol.errors import TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.names import dlq_topic
from reput_protocol.properties import encode_properties

ATTEMPTS = "ATTEMPTS"
"""Property for filters: the number of delivery attempts."""
_GROUP = "reput-cli"

Chosen: TypeAlias = Callable[["DeadLetter"], bool]

filter_option = click.option(
    "--filter",
    "expression",
    metavar="SQL",
    help=f"Only those whose properties match, such as \"RETRY_TOPIC = 'orders' AND {ATTEMPTS} > 3\".",
)


def chosen_by(expression: str | None) -> Chosen:
    """Return a predicate of dead letters for an expression; None matches all.

    Raises:
        FilterSyntaxError: the expression is invalid.
    """
    if expression is None:
        return lambda _: True
    wanted = SqlFilter.parse(expression)
    return lambda letter: wanted.matches(
        encode_properties({**letter.properties, ATTEMPTS: str(letter.attempts)})
    )


def without_origin(expression: str | None) -> str:
    """Return the expression for the matching dead letters that have no origin topic."""
    nowhere = f"{names.RETRY_TOPIC} IS NULL AND {names.DLQ_ORIGIN_TOPIC} IS NULL"
    return nowhere if expression is None else f"({expression}) AND {nowhere}"


def letters_of(admin: Admin, group: str) -> DeadLetters:
    """Return the dead letters of a group.

    Raises:
        CommandFailed: there are none.
    """
    try:
        return admin.dead_letters(group)
    except TopicNotFound as error:
        raise CommandFailed(
            f"group {group} has no dead letters",
            reason=f"there is no topic {dlq_topic(group)}",
            remedy="reput dlq list",
            code=ExitCode.NOT_FOUND,
        ) from error


def within(admin: Admin, letters: DeadLetters, first: Position, last: Position | None) -> DeadLetters:
    """Return those between two positions, which are looked up in each queue."""
    spans = {}
    for name, (_, end) in letters.spans.items():
        until = end if last is None else min(end, last.resolve(admin, letters.topic, 0, name))
        spans[name] = (min(first.resolve(admin, letters.topic, 0, name), until), until)
    return DeadLetters(letters.topic, spans)


def read(admin: Admin, letters: DeadLetters) -> Iterator[DeadLetter]:
    """Yield them, oldest first, without those that expire meanwhile."""
    queues = [_read_queue(admin, letters.topic, name, *span) for name, span in letters.spans.items()]
    return merge(*queues, key=lambda letter: letter.message.store_timestamp_ms)


def _read_queue(admin: Admin, topic: str, broker_name: str, offset: int, end: int) -> Iterator[DeadLetter]:
    while offset < end:
        found = admin.fetch_messages(topic, 0, offset, end, broker_name=broker_name, group=_GROUP)
        for message in found.messages:
            if message.queue_offset < end:
                yield DeadLetter(message)
        if found.next_offset <= offset:
            return
        offset = found.next_offset
