"""Dead letters: reading them, their origin and reason, and --filter."""

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
"""Property for filters: the number of delivery attempts."""
READER_GROUP = "reput-cli"
_PULL_MESSAGES = 256

Chosen: TypeAlias = Callable[["DeadLetter"], bool]

filter_option = click.option(
    "--filter",
    "expression",
    metavar="SQL",
    help=f"Only those whose properties match, such as \"RETRY_TOPIC = 'orders' AND {ATTEMPTS} > 3\".",
)


class DeadLetter:
    """One dead letter."""

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message
        self.properties = message.properties

    @property
    def origin_topic(self) -> str | None:
        """The topic it was first sent to; None if it was sent to the dead-letter topic directly."""
        return self.properties.get(names.RETRY_TOPIC) or self.properties.get(names.DLQ_ORIGIN_TOPIC)

    @property
    def origin_message_id(self) -> str:
        """Its id there: the unique id, else the offset id of the first copy."""
        found = self.properties
        return (
            found.get(names.UNIQ_KEY) or found.get(names.ORIGIN_MESSAGE_ID) or self.message.offset_message_id
        )

    @property
    def attempts(self) -> int:
        """The number of delivery attempts."""
        return self.message.reconsume_times

    @property
    def reason(self) -> str:
        """One of `DeadLetterReason`; `unknown` if RocketMQ's broker made it a dead letter."""
        return self.properties.get(names.DLQ_REASON, "unknown")

    @property
    def cause(self) -> str | None:
        """The error that its last consumer reported, if any."""
        return self.properties.get(names.RETRY_REASON)

    @property
    def fields(self) -> dict[str, object]:
        """Its JSON members besides those of a message."""
        return {
            "origin_topic": self.origin_topic,
            "origin_message_id": self.origin_message_id,
            "attempts": self.attempts,
            "reason": self.reason,
            "cause": self.cause,
        }


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


def bounds_of(admin: Admin, group: str) -> tuple[str, int, int]:
    """Return a group's dead-letter topic and the first and next offset of its queue.

    Raises:
        CommandFailed: the topic does not exist.
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
    """Yield the dead letters at offsets `[start, end)`, without those that expire meanwhile."""
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
    """Return the group whose committed offset is the progress of a replay.

    Each filter and target topic has its own: the same command continues an interrupted replay, another filter starts
    at the beginning.
    """
    if expression is None and target is None:
        return REPLAY_GROUP
    digest = hashlib.sha256(f"{expression or ''}\n{target or ''}".encode()).hexdigest()
    return f"{REPLAY_GROUP}_{digest[:12]}"
