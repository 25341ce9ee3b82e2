"""Where to begin and where to end: words, times, and offsets by topic and queue as options say them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from reput_pipeline.source.known_options import OptionError

EARLIEST: Final = -2
LATEST: Final = -1
GROUP: Final = -3
"""Stands for the group's committed offset."""
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST, "group": GROUP}


class QueueKey(NamedTuple):
    """One queue. `broker` is empty for a store directory, and in an option that leaves it open."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.broker}/{self.queue_id}" if self.broker else f"{self.topic}/{self.queue_id}"
        )


QueueTable: TypeAlias = Mapping[QueueKey, int]

TopicKey: TypeAlias = tuple[str, str]
"""A topic of one broker: their names."""

Generations: TypeAlias = Mapping[TopicKey, str]
"""The generation of topics: another one after a topic was deleted and created again.

It is empty for a topic that the broker did not create itself. A topic that is not named is one of an older broker, or
of an older checkpoint: nothing is known of it.
"""


def is_remade(queue: QueueKey, before: Generations, now: Generations) -> bool:
    """Tell whether the topic of a queue has certainly been deleted and created again."""
    was, there = before.get((queue.topic, queue.broker)), now.get((queue.topic, queue.broker))
    return was is not None and bool(there) and was != there


@dataclass(frozen=True, slots=True)
class Place:
    """Where all queues begin or end. What is more exact counts: `timestamp_ms`, `timestamps_ms`, `offsets`, `word`.

    Offsets of -2 and -1 mean the first message and the end of the queue.
    """

    word: int
    offsets: QueueTable = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: QueueTable = field(default_factory=dict)
    latest_if_none: bool = False
    """Whether a time that no message has reached means the end of the queue; an error otherwise."""
    option: str = "startingOffsets"
    """What to name when it cannot be so."""

    def offset_of(self, queue: QueueKey) -> int:
        """Return the offset for a queue, which may be EARLIEST, LATEST or GROUP."""
        found = lookup(self.offsets, queue)
        return self.word if found is None else found

    def timestamp_of(self, queue: QueueKey) -> int | None:
        """Return the time that decides about a queue, or None if the offset does."""
        return self.timestamp_ms if self.timestamp_ms is not None else lookup(self.timestamps_ms, queue)

    @property
    def named_queues(self) -> list[tuple[str, QueueKey]]:
        """The queues that options name, each with the option: they have to exist."""
        named = [(self.option, queue) for queue in self.offsets]
        return named + [(f"{self.option}ByTimestamp", queue) for queue in self.timestamps_ms]


def lookup(table: QueueTable, queue: QueueKey) -> int | None:
    """Return what a table says of a queue, whether it names the broker or not."""
    found = table.get(queue)
    return table.get(queue._replace(broker="")) if found is None else found


def parse_word_or_offsets(option: str, text: str, words: tuple[str, ...]) -> tuple[int | None, QueueTable]:
    """Read `earliest`, `latest`, ... or JSON by topic, broker and queue.

    Raises:
        OptionError: it is neither, or a word that this option does not take.
    """
    if not text.startswith("{"):
        word = text.lower()
        if word not in words:
            raise OptionError(
                option, f'is {text!r}; it is {" or ".join(words)}, or JSON such as {{"t":{{"0":23}}}}'
            )
        return _WORDS[word], {}
    table = parse_queue_table(option, text)
    for queue, offset in table.items():
        if offset < EARLIEST:
            raise OptionError(option, f"{queue}: {offset} is no offset; -2 is the earliest, -1 the latest")
        for value, word in ((EARLIEST, "earliest"), (LATEST, "latest")):
            if offset == value and word not in words:
                raise OptionError(option, f"{queue}: {offset} ({word}) has no meaning here")
    return None, table


def parse_queue_table(option: str, text: str) -> QueueTable:
    """Read `{"topic":{"0":n}}`, or with one more level `{"topic":{"broker-a":{"0":n}}}` for several brokers.

    Raises:
        OptionError: it is not of that form.
    """
    table: dict[QueueKey, int] = {}
    for topic, queues in _members(option, text, _load(option, text)):
        for name, value in _members(option, text, queues):
            if isinstance(value, dict):
                for number, inner in _members(option, text, value):
                    table[QueueKey(topic, name, _queue_id(option, number))] = _whole(option, inner)
            else:
                table[QueueKey(topic, "", _queue_id(option, name))] = _whole(option, value)
    if not table:
        raise OptionError(option, "names no queue")
    return table


def parse_assign(text: str) -> tuple[QueueKey, ...]:
    """Read the option `assign`: `{"topic":[0,1]}`, or `{"topic":{"broker-a":[0,1]}}`.

    Raises:
        OptionError: it is not of that form.
    """
    option = "assign"
    queues: list[QueueKey] = []
    for topic, value in _members(option, text, _load(option, text)):
        brokers = value.items() if isinstance(value, dict) else [("", value)]
        for broker, numbers in brokers:
            if not isinstance(numbers, list) or not numbers:
                raise OptionError(option, f'topic {topic!r} has no list of queue ids; write {{"t":[0,1]}}')
            queues += [QueueKey(topic, broker, _queue_id(option, number)) for number in numbers]
    if not queues:
        raise OptionError(option, "names no queue")
    if len(set(queues)) < len(queues):
        raise OptionError(option, "names a queue twice")
    return tuple(queues)


def _load(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(option, f"is no JSON: {error}") from None


def _members(option: str, text: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise OptionError(option, f'{text[:80]!r} is not of the form {{"topic":{{"0":23}}}}')
    return list(value.items())


def _queue_id(option: str, value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal()):
        raise OptionError(option, f"{value!r} is no queue id; queues are numbered from 0")
    return int(text)


def _whole(option: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(option, f"{value!r} is no whole number")
    return value
