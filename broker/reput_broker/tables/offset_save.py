"""Replace `consumerOffset.json` and its journal together. Each step is safe to be the last one:

1. the new JSON is written to consumerOffset.json.tmp and synced          old JSON + old journal count
2. an empty journal that continues it is written to
   consumerOffset.journal.next and synced                                 (commits meanwhile go to the old
3. what was committed since the copy was made is appended to that one      journal, and are remembered)
4. consumerOffset.json becomes .bak                                       .bak + old journal count
5. consumerOffset.json.tmp becomes consumerOffset.json                    new JSON + journal.next count
6. consumerOffset.journal.next becomes consumerOffset.journal             new JSON + new journal count
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from reput_broker.tables.config_file import ConfigFile, encode
from reput_broker.tables.offset_journal import JournalIdentity, OffsetJournal


class SavedOffsets(Protocol):
    """What a save needs of the table of offsets."""

    file: ConfigFile
    journal_path: Path
    next_journal_path: Path

    def adopt_journal(self, journal: OffsetJournal) -> None:
        """Go on with this journal."""

    def save_abandoned(self) -> None:
        """The old files count."""


class OffsetSave:
    """One save of the offsets."""

    def __init__(
        self, table: SavedOffsets, members: Callable[[], dict[str, Any]], next_sequence: int
    ) -> None:
        self._table = table
        self._members = members
        self._next_sequence = next_sequence
        self._records: list[bytes] = []
        self._count = 0
        self._journal: OffsetJournal | None = None

    def remember(self, records: bytes, count: int) -> None:
        """Take note of commits made while the job runs."""
        self._records.append(records)
        self._count += count

    def write(self) -> None:
        """Steps 1 and 2. Blocks: for a worker thread. Raises OSError."""
        members = self._members()
        data = encode(members)
        self._table.file.write_temporary(data)
        identity = JournalIdentity.of(data, members["dataVersion"]["counter"])
        self._journal = OffsetJournal.create(self._table.next_journal_path, identity, self._next_sequence)

    def adopt(self) -> None:
        """Steps 3 to 6, for the owner of the table.

        Raises:
            JournalWriteFailed, OSError: before step 5 is done the old files count. After it the new ones do,
                whatever the journal's file is called.
        """
        journal = self._journal
        assert journal is not None, "write comes first"
        if self._records:
            journal.append_records(b"".join(self._records), self._count)
        self._table.file.adopt_temporary()
        self._journal = None
        self._table.adopt_journal(journal)
        journal.rename(self._table.journal_path)

    def sync(self) -> None:
        """Make the names durable. Blocks: for a worker thread. Raises OSError."""
        self._table.file.sync_directory()

    def abandon(self) -> None:
        """Give up; files of this save that nothing relies on are removed."""
        table = self._table
        if self._journal is not None:
            self._journal.close()
            with suppress(OSError):
                self._journal.path.unlink()
        with suppress(OSError):
            table.file.temporary.unlink(missing_ok=True)
        table.save_abandoned()
