"""Dead letters: reading them, their origin and reason, and --filter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from typing import TypeAlias

import click

from reput_cli.failures import CommandFailed
from reput_cli.positions import Position
from reput_client.blocking import Admin, PullConsumer
from reput_client.received import ReceivedMessage
from reput_protocol import properties as names
from reput_protocol.errors import TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.names import REPLAY_GROUP, check_group, dlq_topic
from reput_protocol.properties import encode_properties
from reput_protocol.record.dead_letter import dead_letter_origin

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
        self.origin = dead_letter_origin(self.properties, message.offset_message_id)

    @property
    def attempts(self) -> int:
        """The number of delivery attempts."""
        return self.message.reconsume_times

    @property
    def fields(self) -> dict[str, object]:
        """Its JSON members in addition to those of a message."""
        return {
            "origin_topic": self.origin.topic,
            "origin_message_id": self.origin.message_id,
            "attempts": self.attempts,
            "reason": self.origin.reason,
            "cause": self.origin.cause,
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


@dataclass(frozen=True, slots=True)
class LetterSpans:
    """Dead letters of a group: offsets `[start, end)` of its dead-letter topic's queue, by broker."""

    topic: str
    spans: Mapping[str, tuple[int, int]]

    @classmethod
    def of_group(cls, admin: Admin, group: str) -> LetterSpans:
        """Return all of a group.

        Raises:
            CommandFailed: the topic does not exist.
        """
        topic = dlq_topic(check_group(group))
        try:
            spans = {
                name: (
                    admin.min_offset(topic, 0, broker_name=name),
                    admin.max_offset(topic, 0, broker_name=name),
                )
                for name in admin.topic_configs(topic)
            }
        except TopicNotFound as error:
            raise CommandFailed(
                f"group {group} has no dead letters",
                reason=f"there is no topic {topic}",
                remedy="reput dlq list",
                code=ExitCode.NOT_FOUND,
            ) from error
        return cls(topic, spans)

    def __len__(self) -> int:
        return sum(end - start for start, end in self.spans.values())

    def within(self, admin: Admin, first: Position, last: Position | None) -> LetterSpans:
        """Return those between two positions, which are looked up in each queue."""
        spans = {}
        for name, (_, end) in self.spans.items():
            until = end if last is None else min(end, last.resolve(admin, self.topic, 0, name))
            spans[name] = (min(first.resolve(admin, self.topic, 0, name), until), until)
        return LetterSpans(self.topic, spans)

    def after(self, done: Mapping[str, int]) -> LetterSpans:
        """Return those from an offset on, by broker."""
        spans = {
            name: (max(start, min(end, done.get(name, 0))), end) for name, (start, end) in self.spans.items()
        }
        return LetterSpans(self.topic, spans)

    def read(self, consumer: PullConsumer) -> Iterator[DeadLetter]:
        """Yield them, oldest first, without those that expire meanwhile."""
        queues = [self._read_queue(consumer, name) for name in self.spans]
        return merge(*queues, key=lambda letter: letter.message.store_timestamp_ms)

    def _read_queue(self, consumer: PullConsumer, broker_name: str) -> Iterator[DeadLetter]:
        offset, end = self.spans[broker_name]
        while offset < end:
            number = min(_PULL_MESSAGES, end - offset)
            result = consumer.pull(
                self.topic, 0, offset, max_messages=number, wait_s=0.0, broker_name=broker_name
            )
            for message in result.messages:
                if message.queue_offset < end:
                    yield DeadLetter(message)
            if result.next_begin_offset <= offset:
                return
            offset = result.next_begin_offset


def committed(consumer: PullConsumer, letters: LetterSpans) -> dict[str, int]:
    """Return the consumer's progress by broker."""
    return {name: consumer.committed(letters.topic, 0, broker_name=name) or 0 for name in letters.spans}


def replayed_until(expression: str | None, target: str | None) -> str:
    """Return the group whose committed offset is the progress of a replay.

    Each filter and target topic has its own: the same command continues an interrupted replay, another filter starts
    at the beginning.
    """
    if expression is None and target is None:
        return REPLAY_GROUP
    digest = hashlib.sha256(f"{expression or ''}\n{target or ''}".encode()).hexdigest()
    return f"{REPLAY_GROUP}_{digest[:12]}"
