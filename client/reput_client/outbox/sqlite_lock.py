"""The lock by which one relay at a time has a table of SQLite, which does not lock single rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

FIND_FILE: Final = "SELECT file FROM pragma_database_list WHERE name = 'main'"
"""The statement by which a connection returns the path of its database; empty for a database in memory."""
_PRIMARY: Final = 0xFF  # of an extended error code


class SqliteLock:
    """A lock next to a database file, held until `release` or the end of the process, however it ends.

    It is the lock of another SQLite file, so the database itself stays free for its programs.

    Args:
        path: the database file; empty for a database in memory: there is no other process, and no lock.
        name: what is locked. Relays with other names do not wait for each other.
    """

    def __init__(self, path: str, name: str) -> None:
        self._path = Path(f"{path}-relay-{quote(name, safe='')}") if path else None
        self._held: sqlite3.Connection | None = None

    def acquire(self) -> bool:
        """Take the lock, unless another relay has it; return whether this one has.

        Raises:
            sqlite3.Error: the file cannot be written.
        """
        if self._path is None or self._held is not None:
            return True
        connection = sqlite3.connect(self._path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            # Writes, so that a directory or a disk where this is not possible is noticed.
            connection.execute("PRAGMA user_version = 1")
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            connection.close()
            if error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_BUSY:
                return False
            raise
        self._held = connection
        return True

    def release(self) -> None:
        """Let another relay have it."""
        if self._held is not None:
            self._held.close()
            self._held = None
