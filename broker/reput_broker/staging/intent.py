"""The batch that is decided and its progress; and the marker that decides it: only the log records that it will be
published.

The marker is appended to the topic of the markers before the first message of the batch. It names the stagings in their
order, and where each queue ended before: published messages of the batch follow there, in that order. A broker that
has one message of the batch, as a copy or after a crash, therefore has the marker, too, and completes the batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from reput_broker.staging.staging_file import StagingKey
from reput_broker.store.message_store import MessageStore

_STAGINGS = "stagings"

Queue = tuple[str, int]
"""Topic and queue id."""


class QueuePlace(NamedTuple):
    """A queue of a batch: all messages of the batch are at queue offset `look_from` or later."""

    topic: str
    queue_id: int
    look_from: int


class StagingFacts(NamedTuple):
    """A complete staging as the marker names it; `born_host` is in hexadecimal."""

    staging_id: str
    partition_id: int
    born_host: str
    size: int
    messages: int
    checksum: int


class CopyPlace(NamedTuple):
    """Where the copies of the staged blocks begin in the log."""

    queue_offset: int
    physical_offset: int


@dataclass(slots=True, frozen=True)
class Intent:
    """A decided batch."""

    query_id: str
    batch_id: int
    stagings: list[StagingFacts]
    messages: int
    queues: list[QueuePlace]
    topics: list[dict[str, Any]]
    """The settings of the topics, since another master may not know a new one."""
    copies: CopyPlace | None = None
    """None: the staged blocks are only in the stagings."""

    def key_of(self, staging: StagingFacts) -> StagingKey:
        """Return the key of one of the stagings."""
        return StagingKey(self.query_id, self.batch_id, staging.partition_id, staging.staging_id)


def begin_marker(intent: Intent) -> bytes:
    """Return the body of the marker that decides a batch."""
    return json.dumps(asdict(intent), separators=(",", ":")).encode()


def give_up_marker(intent: Intent) -> bytes:
    """Return the body of the marker after which a decided batch is not completed any more."""
    members = {"query_id": intent.query_id, "batch_id": intent.batch_id, _STAGINGS: None}
    return json.dumps(members, separators=(",", ":")).encode()


def is_intent(members: Mapping[str, Any]) -> bool:
    """Whether a marker decides a batch, or gives one up; other markers say that a batch is committed."""
    return _STAGINGS in members


def read_intent(members: Mapping[str, Any]) -> Intent | None:
    """Return the batch that a marker decides; None if it gives one up.

    Raises:
        KeyError, TypeError: it is not a valid marker.
    """
    if members[_STAGINGS] is None:
        return None
    copies = members["copies"]
    return Intent(
        members["query_id"],
        members["batch_id"],
        [StagingFacts(*facts) for facts in members[_STAGINGS]],
        members["messages"],
        [QueuePlace(*place) for place in members["queues"]],
        members["topics"],
        None if copies is None else CopyPlace(*copies),
    )


class Decision:
    """At most one batch at a time. Belongs to the event loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.intent: Intent | None = None
        self.counts: dict[Queue, int] = {}
        """How many of its messages are in the log, by queue."""
        self._in_work: tuple[str, int] | None = None
        self._begins_at: int | None = 0

    @property
    def begins_at(self) -> int | None:
        """Log offset from which on the log is needed to complete the batch; None without one.

        0 until a start has read the markers.
        """
        return self._begins_at

    def covers(self, query_id: str, batch_id: int) -> bool:
        """Whether a batch is decided or about to be, so that its stagings must stay."""
        intent = self.intent
        names = None if intent is None else (intent.query_id, intent.batch_id)
        return (query_id, batch_id) in (names, self._in_work)

    @contextmanager
    def about(self, query_id: str, batch_id: int) -> Iterator[None]:
        """Keep the stagings of a batch, and the log from here on, while it is checked and decided."""
        self._in_work = (query_id, batch_id)
        if self._begins_at is None:
            self._begins_at = self._store.max_physical_offset
        try:
            yield
        finally:
            self._in_work = None
            if self.intent is None:
                self._begins_at = None

    def make(self, intent: Intent, counts: dict[Queue, int], begins_at: int) -> None:
        """Decide a batch, of which `counts` messages are in the log.

        Args:
            begins_at: log offset of its marker, or of the copies before that.
        """
        self.intent, self.counts, self._begins_at = intent, counts, begins_at

    def close(self) -> None:
        """End the decision: the batch is published and its marker in the log; or there was none at a start."""
        self.intent, self.counts, self._begins_at = None, {}, None
