"""The decided batch and its progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reput_broker.staging.intent import Intent
from reput_broker.staging.publisher import Queue
from reput_broker.store.message_store import MessageStore


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
