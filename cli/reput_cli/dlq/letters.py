"""Dead letters as the commands see them: where each came from, why it is one, and which are chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import click

from reput_cli.failures import CommandFailed
from reput_client.blocking import Admin, PullConsumer
from reput_client.received import ReceivedMessage
from reput_protocol import properties as names
from reput_protocol.errors import TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.names import REPLAY_GROUP, check_group, dlq_topic
from reput_protocol.properties import encode_properties

ATTEMPTS = "ATTEMPTS"
"""The name by which a filter knows how often a message was tried."""
READER_GROUP = "reput-cli"
_PULL_MESSAGES = 256

Chosen: TypeAlias = Callable[["DeadLetter"], bool]

filter_option = click.option(
    "--filter",
    "expression",
    metavar="SQL",
    help=f"Only these, by their properties, as \"RETRY_TOPIC = 'orders' AND {ATTEMPTS} > 3\".",
)


class DeadLetter:
    """One dead letter."""

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message
        self.properties = message.properties

    @property
    def origin_topic(self) -> str | None:
        """The topic that the message was sent to at first; None if it does not say, since it was sent here directly."""
        return self.properties.get(names.RETRY_TOPIC) or self.properties.get(names.DLQ_ORIGIN_TOPIC)

    @property
    def origin_message_id(self) -> str:
        """The id that the message had there: its producer's if there is one, else the first copy's offset id."""
        found = self.properties
        return (
            found.get(names.UNIQ_KEY) or found.get(names.ORIGIN_MESSAGE_ID) or self.message.offset_message_id
        )

    @property
    def attempts(self) -> int:
        """How often a consumer has tried it."""
        return self.message.reconsume_times

    @property
    def reason(self) -> str:
        """Why it is a dead letter: one of `DeadLetterReason`, `unknown` if another broker made it one."""
        return self.properties.get(names.DLQ_REASON, "unknown")

    @property
    def cause(self) -> str | None:
        """What its last consumer said went wrong."""
        return self.properties.get(names.RETRY_REASON)

    @property
    def fields(self) -> dict[str, object]:
        """What a dead letter has beyond a message, for JSON."""
        return {
            "origin_topic": self.origin_topic,
            "origin_message_id": self.origin_message_id,
            "attempts": self.attempts,
            "reason": self.reason,
            "cause": self.cause,
        }


def chosen_by(expression: str | None) -> Chosen:
    """Return what tells whether a dead letter is chosen.

    Raises:
        FilterSyntaxError: the expression cannot be read; it says where.
    """
    if expression is None:
        return lambda _: True
    wanted = SqlFilter.parse(expression)
    return lambda letter: wanted.matches(
        encode_properties({**letter.properties, ATTEMPTS: str(letter.attempts)})
    )


def without_origin(expression: str | None) -> str:
    """Return the filter for those of the chosen ones that do not say where they came from."""
    nowhere = f"{names.RETRY_TOPIC} IS NULL AND {names.DLQ_ORIGIN_TOPIC} IS NULL"
    return nowhere if expression is None else f"({expression}) AND {nowhere}"


def bounds_of(admin: Admin, group: str) -> tuple[str, int, int]:
    """Return a group's dead-letter topic and where its queue begins and ends.

    Raises:
        CommandFailed: it has none.
    """
    topic = dlq_topic(check_group(group))
    try:
        return topic, admin.min_offset(topic, 0), admin.max_offset(topic, 0)
    except TopicNotFound as error:
        raise CommandFailed(
            f"group {group} has no dead letters",
            reason=f"there is no topic {topic}",
            remedy="reput dlq list",
            code=ExitCode.NOT_FOUND,
        ) from error


def read_letters(
    consumer: PullConsumer, topic: str, start: int, end: int, max_messages: int = _PULL_MESSAGES
) -> Iterator[DeadLetter]:
    """Walk over the dead letters `[start, end)`; what expires meanwhile is left out."""
    offset = start
    while offset < end:
        result = consumer.pull(topic, 0, offset, max_messages=min(max_messages, end - offset), wait_s=0.0)
        for message in result.messages:
            if message.queue_offset < end:
                yield DeadLetter(message)
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset


def replayed_until(expression: str | None, target: str | None) -> str:
    """Return the group under which a replay keeps how far it has come; both None is a replay of everything.

    There is one for each filter and target topic. So an interrupted replay continues when the same command is given
    again, and one with another filter begins at the beginning.
    """
    if expression is None and target is None:
        return REPLAY_GROUP
    digest = hashlib.sha256(f"{expression or ''}\n{target or ''}".encode()).hexdigest()
    return f"{REPLAY_GROUP}_{digest[:12]}"
