"""Counters of the store: plain integers, read by the metrics page at scrape time.

An integer add costs a twentieth of a labelled metric call, so the hot paths do nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreStats:
    """Totals since the store was opened; bytes and messages unless the name says otherwise.

    Written by the owner of the store and, for the `flush*` fields, by the flush thread; a reader in
    another thread may see values of slightly different moments.
    """

    put_blocks: int = 0
    put_messages: int = 0
    put_bytes: int = 0
    put_refused: int = 0
    """Puts with any status but PUT_OK, and blocks refused as malformed."""

    get_calls: int = 0
    get_found: int = 0
    get_messages: int = 0
    get_bytes: int = 0
    get_cold: int = 0
    """Gets whose records are presumed not to be in the page cache."""

    get_longest_s: float = 0.0
    """The longest look-up of messages that were not filtered by properties."""

    dispatched_messages: int = 0
    dispatch_behind_max: int = 0
    """The most bytes of the log that a step has found not dispatched."""
    dispatch_damage: int = 0
    """Records that dispatch could not read; dispatch stops once this is not 0."""

    flushes: int = 0
    flushed_bytes: int = 0
    flush_failures: int = 0

    commit_failures: int = 0
    """Commits that failed for good: at most one, because the store is read-only then."""

    files_prepared: int = 0
