"""Dead letters: reading them, their origin and reason, and --filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from typing import TypeAlias

import click

from reput_cli.failures import CommandFailed
from reput_cli.output import Printer
from reput_client.admin.undelivered import DeadLetter, DeadLetters
from reput_client.blocking import Admin
from reput_client.positions import Position
from reput_protocol import properties as names
from reput_protocol.commands.dead_letters import REPLAYED_AT_ONCE_MAX, Replay, Replays
from reput_protocol.errors import BrokerError, PermissionDenied, TopicNotFound
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
    """Return the expression for the matching dead letters of which a broker need not know where they came from."""
    nowhere = f"{names.DLQ_REASON} IS NULL OR {names.RETRY_TOPIC} IS NULL"
    return nowhere if expression is None else f"({expression}) AND ({nowhere})"


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


class Replayed:
    """Which dead letters of a group were replayed, asked of the brokers in parts.

    Attributes:
        is_known: whether the brokers can tell; if one cannot, the reason is printed once.
    """

    def __init__(self, admin: Admin, group: str, printer: Printer) -> None:
        self._admin = admin
        self._group = group
        self._printer = printer
        self._parts: dict[str, tuple[int, int, dict[int, Replay]]] = {}
        self.is_known = True

    def of(self, letter: DeadLetter) -> Replay | None:
        """Return the message as which a letter was replayed; None if it was not, or if that is not known."""
        name, offset = letter.message.broker_name, letter.message.queue_offset
        begin, end, found = self._parts.get(name, (0, 0, {}))
        if not begin <= offset < end:
            answer = self._ask(name, offset, offset + REPLAYED_AT_ONCE_MAX)
            if answer is None:
                return None
            found = {replay.letter_offset: replay for replay in answer.replays}
            self._parts[name] = offset, max(offset + 1, answer.next_offset), found
        return found.get(offset)

    def total(self, letters: DeadLetters) -> int | None:
        """Return how many of all letters were replayed; None if that is not known."""
        answers = [self._ask(name) for name in letters.spans]
        return sum(answer.replayed for answer in answers if answer is not None) if self.is_known else None

    def _ask(self, broker_name: str, begin: int = 0, end: int = 0) -> Replays | None:
        if not self.is_known:
            return None
        try:
            return self._admin.replays(self._group, begin, end, broker_name=broker_name)
        except PermissionDenied:
            raise
        except BrokerError as error:
            self.is_known = False
            self._printer.note(f"which dead letters of {self._group} were replayed is not known: {error}")
            return None


def read(admin: Admin, letters: DeadLetters) -> Iterator[DeadLetter]:
    """Yield them, oldest first, without those that expire meanwhile."""
    queues = [read_queue(admin, letters.topic, name, *span) for name, span in letters.spans.items()]
    return merge(*queues, key=lambda letter: letter.message.store_timestamp_ms)


def read_queue(admin: Admin, topic: str, broker_name: str, offset: int, end: int) -> Iterator[DeadLetter]:
    """Yield those of one broker at `[offset, end)`, without those that expire meanwhile."""
    while offset < end:
        found = admin.fetch_messages(topic, 0, offset, end, broker_name=broker_name, group=_GROUP)
        for message in found.messages:
            if message.queue_offset < end:
                yield DeadLetter(message)
        if found.next_offset <= offset:
            return
        offset = found.next_offset
