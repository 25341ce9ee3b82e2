"""Rows of an outbox, and what a relay needs of the table that they are in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import uuid4

from reput_client.produce.queue_selector import AnyBroker
from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import EXPIRES_AFTER, EXPIRES_AT
from reput_protocol.record.delays import Delay
from reput_protocol.record.message import NOT_SERIALIZED, Message

PAGE_BYTES: Final = 4 << 20
"""Bytes of bodies after which a store gives a relay no further rows at a time."""
_EXPIRY: Final = frozenset({EXPIRES_AFTER, EXPIRES_AT})
"""Properties that a message has by `ttl_s` and `expires_at`, besides a delay or a priority."""


def first_of(sizes: Iterable[tuple[int, int]]) -> list[int]:
    """Return the ids of the first rows with `PAGE_BYTES` bytes of bodies together, of ids and sizes; at least one."""
    ids: list[int] = []
    total = 0
    for row_id, size in sizes:
        total += size
        if ids and total > PAGE_BYTES:
            break
        ids.append(row_id)
    return ids


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message of an outbox.

    Attributes:
        id: in the order of insertion.
        options: JSON: tag, keys, properties, flag, delay or priority, expiry, queue id, ordering key, if there are any.
        unique_id: by which the broker recognises the message if it is sent again.
        created_ms: when it was inserted, in ms since 1970, on the clock of the program.
    """

    id: int
    topic: str
    body: bytes
    options: str
    unique_id: str
    created_ms: int

    def message(self) -> tuple[Message, dict[str, Any]]:
        """Return the message, and the arguments of `Producer.post` that go with it.

        Raises:
            InvalidMessage: the row was not made by `columns_of`.
        """
        options = json.loads(self.options)
        message = Message(
            self.topic,
            bytes(self.body),
            options.get("tag"),
            options.get("keys", ()),
            options.get("properties"),
            options.get("flag", 0),
            self.unique_id,
        )
        if "delay" in options:
            message.delay = Delay(*options["delay"])
        if "expiry" in options:  # not above: users' properties cannot have these names
            message.properties = {**message.properties, **options["expiry"]}
        terms = {name: options[name] for name in ("queue_id", "ordering_key") if name in options}
        if options.get("any_broker"):
            terms["queue_id"] = AnyBroker(terms["queue_id"])
        return message, terms


def columns_of(
    message: Message, *, queue_id: int | None = None, ordering_key: str | None = None
) -> dict[str, Any]:
    """Return the columns of a new row, by name, for a message.

    Args:
        queue_id, ordering_key: as of `Producer.send`.

    Raises:
        InvalidMessage: the message has a value and no body.
    """
    if message.body is NOT_SERIALIZED:
        raise InvalidMessage("an outbox stores bodies; give the message body= in place of value=")
    expiry = {name: text for name, text in message.properties.items() if name in _EXPIRY}
    options = {
        "tag": message.tag,
        "keys": message.keys,
        "properties": {name: text for name, text in message.properties.items() if name not in expiry},
        "expiry": expiry,
        "flag": message.flag,
        "delay": message.delay,
        "queue_id": queue_id,
        "any_broker": isinstance(queue_id, AnyBroker),
        "ordering_key": ordering_key,
    }
    return {
        "topic": message.topic,
        "body": bytes(message.body),
        "options": json.dumps(
            {name: value for name, value in options.items() if value or (name == "queue_id" and value == 0)}
        ),
        "unique_id": message.unique_id or uuid4().hex,
        "created_ms": time.time_ns() // 1_000_000,
        "error": "",
    }


@dataclass(slots=True)
class Outcome:
    """What became of rows.

    Attributes:
        sent: ids of rows that the broker has stored.
        refused: ids of rows that it refuses for good, with the reason.
        failure: why the others, if any, are not sent.
    """

    sent: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    failure: Exception | None = None

    def refused_by_reason(self) -> dict[str, list[int]]:
        """Return the ids of refused rows by the reason."""
        found: dict[str, list[int]] = {}
        for row_id, reason in self.refused.items():
            found.setdefault(reason, []).append(row_id)
        return found


class OutboxStore(Protocol):
    """The table of an outbox: columns `id` and those of `columns_of`; `error` is empty until a row is refused."""

    def relay(self, rows_max: int, send: Callable[[Sequence[OutboxRow]], Outcome]) -> Outcome:
        """Give `send` the first rows without an error, by id, and delete those that it has sent.

        It gets `rows_max` rows at most, and no further one after `PAGE_BYTES` bytes of bodies.
        Until this returns no other relay gets these rows. If the process is killed meanwhile, one gets them again.

        Raises:
            Exception: the database cannot be used; rows that were sent may be there still.
        """
        ...

    def retry(self) -> int:
        """Clear the errors of refused rows, so that they are sent again; return how many."""
        ...

    def close(self) -> None:
        """Let other relays have the table."""
        ...
