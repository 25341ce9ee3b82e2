"""Find messages by key: candidates from the index, each compared with its record (RocketMQ: queryMessage)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from reput_broker.store.base.dispatch import DeletedTopics
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.commit_log import CommitLog
from reput_protocol.commands.query import TIME_MAX_MS
from reput_protocol.properties import KEYS, UNIQ_KEY, decode_properties
from reput_protocol.record.dead_letter import replays_key
from reput_protocol.record.layout import (
    HEAD_BYTES,
    HOSTS_BYTES,
    index_hash,
    is_brokers_own,
    prepared_transaction_offset_at,
)
from reput_protocol.record.record import decode_record

QUERY_MESSAGES_MAX = 64
"""(RocketMQ: maxMsgsNumBatch.)"""
CANDIDATES_MAX = 10_000
"""Limit of the records compared with a key."""


class QueryResult(NamedTuple):
    """The records found, newest first, and the last record of the index's newest file."""

    records: tuple[bytes, ...]
    index_timestamp_ms: int
    """Store time of the last record indexed, 0 if there is none."""
    index_offset: int
    """Log offset of the last record indexed."""
    is_complete: bool
    """False while the index is behind, or if the query was too broad."""


class Doubt(Enum):
    """Why a record may be in the log although a look-up did not find it."""

    BEHIND = "the index is being completed"
    """Ends by itself."""
    GAP = "a part of the log that the index is made from cannot be read"
    """Lasts until the store has been repaired."""
    TOO_MANY = f"more than {CANDIDATES_MAX} messages share the key, or its hash"
    """Lasts until those have expired."""


class UniqueResult(NamedTuple):
    """The first record with a unique id, or None, and why there may be one even then."""

    record: bytes | None
    doubt: Doubt | None = None


class FoundReplay(NamedTuple):
    """A message that replays a dead letter, by the log offsets of both."""

    letter_offset: int
    physical_offset: int


class FoundReplays(NamedTuple):
    """The replays from one dead-letter topic, newest first, and why there may be more."""

    replays: list[FoundReplay]
    doubt: Doubt | None = None


_TOO_MANY = b""


class KeyLookup:
    """Looks up messages by key, in any thread: records are read by positional reads.

    Args:
        has_gap: whether the index lacks records for good.
    """

    def __init__(
        self,
        index: IndexService | None,
        log: CommitLog,
        deleted: DeletedTopics,
        flags: RunningFlags,
        *,
        has_gap: Callable[[], bool],
    ) -> None:
        self._index = index
        self._log = log
        self._deleted = deleted
        self._flags = flags
        self._has_gap = has_gap

    def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
        *,
        for_clients: bool = True,
    ) -> QueryResult:
        """Find messages by unique id or key, or by time alone, newest first (RocketMQ: queryMessage).

        May read the disk: call it in a worker thread. Call `complete_index` first, in the thread that dispatches, to
        find messages that were dispatched a moment ago. Records that merely share a hash are left out.

        Args:
            key: empty: any. Messages without unique id and key are not in the index.
            max_messages: limited to `QUERY_MESSAGES_MAX`.
            begin_ms, end_ms: range of store times, both included.
            for_clients: only what clients may see: after a failover the index may have more.

        Raises:
            StoreClosed: the store is not open.
        """
        index = self._open_index()
        if index is None:
            return QueryResult((), 0, 0, is_complete=False)
        log_end = self._log.visible_end() if for_clients else self._log.max_offset
        wanted = min(max(1, max_messages), QUERY_MESSAGES_MAX)
        records: list[bytes] = []
        is_complete = not index.is_behind
        for record in self._candidates(index, topic, key, begin_ms, end_ms, log_end):
            if record is _TOO_MANY:
                is_complete = False
            elif _matches(record, topic, key, begin_ms, end_ms):
                records.append(record)
                if len(records) == wanted:
                    break
        header = index.last_header
        return QueryResult(
            tuple(records),
            0 if header is None else header.end_timestamp_ms,
            0 if header is None else header.end_physical_offset,
            is_complete and not self._has_gap(),
        )

    def find_by_unique_key(
        self,
        topic: str,
        unique_key: str,
        begin_ms: int = 0,
        *,
        accept: Callable[[bytes], bool] = lambda _: True,
        accept_head: Callable[[bytes], bool] | None = None,
    ) -> UniqueResult:
        """Find the message with a unique id that was stored first, whether or not consumers see it; otherwise as
        `query_message`.

        Messages that merely have the id among their keys do not count, nor those whose record
        `accept` rejects. Those whose first `HOSTS_BYTES` `accept_head` rejects do not count towards
        `CANDIDATES_MAX` either, so that no number of them causes doubt.

        Raises:
            StoreClosed: the store is not open.
        """
        index = self._open_index()
        if index is None:
            return UniqueResult(None, Doubt.BEHIND)
        first: bytes | None = None
        doubt = Doubt.BEHIND if index.is_behind else None
        log_end = self._log.max_offset
        for record in self._candidates(index, topic, unique_key, begin_ms, TIME_MAX_MS, log_end, accept_head):
            if record is _TOO_MANY:
                doubt = Doubt.TOO_MANY
            else:
                decoded = decode_record(record)
                if (
                    decoded.topic == topic
                    and decoded.store_timestamp_ms >= begin_ms
                    and decoded.unique_key == unique_key
                    and accept(record)
                ):
                    first = record
        if self._has_gap() and doubt is not Doubt.TOO_MANY:
            doubt = Doubt.GAP
        return UniqueResult(first, doubt)

    def find_replays(self, topic: str) -> FoundReplays:
        """Find the messages as which dead letters of the dead-letter topic `topic` were replayed; otherwise as
        `find_by_unique_key`.

        Reads the head of each message only: that a broker made it, and the field that names the dead letter, which is 0
        in the messages of clients.

        Raises:
            StoreClosed: the store is not open.
        """
        index = self._open_index()
        if index is None:
            return FoundReplays([], Doubt.BEHIND)
        doubt = Doubt.BEHIND if index.is_behind else None
        found: dict[int, None] = {}
        replays: list[FoundReplay] = []
        for physical_offset in index.find(index_hash(replays_key(topic)), 0, TIME_MAX_MS):
            if physical_offset in found or self._deleted.hides(topic, physical_offset):
                continue
            found[physical_offset] = None
            head = self._log.head_at(physical_offset, HEAD_BYTES, cold=True)
            if head is None or not is_brokers_own(head):
                continue
            named = prepared_transaction_offset_at(head)
            if named:
                replays.append(FoundReplay(max(0, named), physical_offset))
        return FoundReplays(replays, Doubt.GAP if self._has_gap() else doubt)

    def _open_index(self) -> IndexService | None:
        if not self._flags.is_open:
            raise self._flags.closed()
        return self._index

    def _candidates(
        self,
        index: IndexService,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        log_end: int,
        accept_head: Callable[[bytes], bool] | None = None,
    ) -> Iterator[bytes]:
        """Yield records before `log_end` whose key has the hash of `key`, newest first; then `_TOO_MANY`
        if there are more."""
        seen: set[int] = set()
        found = (
            index.find(index_hash(f"{topic}#{key}"), begin_ms, end_ms) if key else index.find_by_time(begin_ms, end_ms)
        )
        for physical_offset in found:
            if physical_offset in seen:
                continue  # two of its keys have this hash, or it was indexed again after a crash
            if accept_head is not None:
                head = self._log.head_at(physical_offset, HOSTS_BYTES, cold=True)
                if head is None or not accept_head(head):
                    continue
            if len(seen) == CANDIDATES_MAX:
                yield _TOO_MANY
                return
            seen.add(physical_offset)
            if self._deleted.hides(topic, physical_offset):
                continue
            record = self._log.message_at(physical_offset, log_end, cold=True)
            if record is not None:
                yield record


def _matches(record: bytes, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
    decoded = decode_record(record)
    if decoded.topic != topic or not begin_ms <= decoded.store_timestamp_ms <= end_ms:
        return False
    found = decode_properties(decoded.properties)
    return not key or key == found.get(UNIQ_KEY) or key in found.get(KEYS, "").split(" ")
