"""Start and end of a query in its options: words, times, offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from reput_client.arrow.queues import QueueKey
from reput_pipeline.spark.option_reader import OptionError

EARLIEST: Final = -2
LATEST: Final = -1
GROUP: Final = -3
"""The group's committed offset."""
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST, "group": GROUP}


QueueTable: TypeAlias = Mapping[QueueKey, int]


@dataclass(frozen=True, slots=True)
class QueryBound:
    """Where a query starts or ends. The first that is set for a queue: `timestamp_ms`, `timestamps_ms`, `offsets`,
    `word`.

    The offsets -2 and -1 mean the first message and the end of the queue.
    """

    word: int
    offsets: QueueTable = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: QueueTable = field(default_factory=dict)
    latest_if_none: bool = False
    """Whether a time after the last message is the end of the queue instead of an error."""
    option: str = "startingOffsets"
    """The option to name in errors."""

    def offset_of(self, queue: QueueKey) -> int:
        """Return the offset for a queue, which may be EARLIEST, LATEST or GROUP."""
        found = lookup(self.offsets, queue)
        return self.word if found is None else found

    def timestamp_of(self, queue: QueueKey) -> int | None:
        """Return the time for a queue, or None if `offset_of` applies."""
        return self.timestamp_ms if self.timestamp_ms is not None else lookup(self.timestamps_ms, queue)

    @property
    def named_queues(self) -> list[tuple[str, QueueKey]]:
        """The queues that an option names, each with the option; they have to exist."""
        named = [(self.option, queue) for queue in self.offsets]
        return named + [(f"{self.option}ByTimestamp", queue) for queue in self.timestamps_ms]


def lookup(table: QueueTable, queue: QueueKey) -> int | None:
    """Return a queue's value; an entry without a broker applies to all."""
    found = table.get(queue)
    return table.get(queue._replace(broker="")) if found is None else found


def parse_word_or_offsets(option: str, text: str, words: tuple[str, ...]) -> tuple[int | None, QueueTable]:
    """Parse `earliest`, `latest`, ... or JSON by topic, broker and queue.

    Raises:
        OptionError: it is neither, or another word.
    """
    if not text.startswith("{"):
        word = text.lower()
        if word not in words:
            raise OptionError(option, f'is {text!r}; it is {" or ".join(words)}, or JSON such as {{"t":{{"0":23}}}}')
        return _WORDS[word], {}
    table = parse_queue_table(option, text)
    for queue, offset in table.items():
        if offset < EARLIEST:
            raise OptionError(option, f"{queue}: {offset} is not an offset; -2 is the earliest, -1 the latest")
        for value, word in ((EARLIEST, "earliest"), (LATEST, "latest")):
            if offset == value and word not in words:
                raise OptionError(option, f"{queue}: {offset} ({word}) has no meaning here")
    return None, table


def parse_queue_table(option: str, text: str) -> QueueTable:
    """Parse `{"topic":{"0":n}}`, or `{"topic":{"broker-a":{"0":n}}}` for several brokers.

    Raises:
        OptionError: it does not have that form.
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
    """Parse the option `assign`: `{"topic":[0,1]}`, or `{"topic":{"broker-a":[0,1]}}`.

    Raises:
        OptionError: it does not have that form.
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
        raise OptionError(option, f"is not JSON: {error}") from None


def _members(option: str, text: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise OptionError(option, f'{text[:80]!r} is not of the form {{"topic":{{"0":23}}}}')
    return list(value.items())


def _queue_id(option: str, value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal()):
        raise OptionError(option, f"{value!r} is not a queue id; queues are numbered from 0")
    return int(text)


def _whole(option: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(option, f"{value!r} is not an integer")
    return value
