"""Find messages by key: candidates from the index, each compared with its record (RocketMQ: queryMessage)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.commit_log import CommitLog
from reput_protocol.properties import KEYS, UNIQ_KEY, decode_properties
from reput_protocol.record.hashing import index_hash
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
    """False while the index is behind, or if the query was too broad: records in the log may be missing."""


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


def query_message(
    log: CommitLog,
    index: IndexService,
    deleted: DeletedTopics,
    topic: str,
    key: str,
    max_messages: int,
    begin_ms: int,
    end_ms: int,
    readable_end: int,
) -> QueryResult:
    """Return up to `max_messages` records of `topic` with `key`, stored in `[begin_ms, end_ms]`, newest
    first.

    The key is a message's unique id or one of its keys. The index holds hashes only; records that
    merely share one are left out. Thread-safe: records are read by positional reads.
    """
    wanted = min(max(1, max_messages), QUERY_MESSAGES_MAX)
    records: list[bytes] = []
    is_complete = not index.is_behind
    for record in _candidates(log, index, deleted, topic, key, begin_ms, end_ms, readable_end):
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
        is_complete,
    )


def find_by_unique_key(
    log: CommitLog,
    index: IndexService,
    deleted: DeletedTopics,
    topic: str,
    unique_key: str,
    begin_ms: int,
    end_ms: int,
    readable_end: int,
    accept: Callable[[bytes], bool],
) -> UniqueResult:
    """Return the record of `topic` with this unique id that was stored first in `[begin_ms, end_ms]`.

    As `query_message`, but messages that merely have the id among their keys do not count, nor
    those that `accept` rejects.
    """
    first: bytes | None = None
    doubt = Doubt.BEHIND if index.is_behind else None
    for record in _candidates(log, index, deleted, topic, unique_key, begin_ms, end_ms, readable_end):
        if record is _TOO_MANY:
            doubt = Doubt.TOO_MANY
        else:
            decoded = decode_record(record)
            if (
                decoded.topic == topic
                and begin_ms <= decoded.store_timestamp_ms <= end_ms
                and decoded.unique_key == unique_key
                and accept(record)
            ):
                first = record
    return UniqueResult(first, doubt)


_TOO_MANY = b""


def _candidates(
    log: CommitLog,
    index: IndexService,
    deleted: DeletedTopics,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int,
    readable_end: int,
) -> Iterator[bytes]:
    """Yield records whose key has the hash of `key`, each once, newest first; then `_TOO_MANY` if
    there are more."""
    seen: set[int] = set()
    for physical_offset in index.find(index_hash(f"{topic}#{key}"), begin_ms, end_ms):
        if physical_offset in seen:
            continue  # two of its keys have this hash, or it was indexed again after a crash
        if len(seen) == CANDIDATES_MAX:
            yield _TOO_MANY
            return
        seen.add(physical_offset)
        if deleted.hides(topic, physical_offset):
            continue
        record = log.message_at(physical_offset, readable_end, cold=True)
        if record is not None:
            yield record


def _matches(record: bytes, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
    decoded = decode_record(record)
    if decoded.topic != topic or not begin_ms <= decoded.store_timestamp_ms <= end_ms:
        return False
    found = decode_properties(decoded.properties)
    return key == found.get(UNIQ_KEY) or key in found.get(KEYS, "").split(" ")
