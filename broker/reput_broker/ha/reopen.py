"""What must be done to the store of a slave before it can copy its master's log.

    1  the slave notes it in `reopen.json` of the data directory, durably, and closes the store
    2  the next opening of the store does what the note says: it moves the log aside (`set_aside`), or truncates it and
       forgets the progress that its end had (`Storage`)
    3  the note is removed

Both consist of many steps. After a kill before step 3 the next start completes them, in any role.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from reput_broker.store.errors import StoreDamaged
from reput_broker.store.file_io import replace_file, sync_directory


@dataclass(frozen=True, slots=True)
class Reopen:
    """How a store must be opened. Its methods block."""

    truncate_to: int | None = None
    """The log offset where the log must end."""
    aside: str | None = None
    """The name under which the log must be moved aside."""
    reason: str = ""

    def note(self, data_dir: Path) -> None:
        """Note it for the next opening, durably.

        Raises:
            DiskFull, FlushFailed, OSError: nothing is noted.
        """
        replace_file(_path(data_dir), msgspec.json.encode(self))

    @classmethod
    def noted(cls, data_dir: Path) -> Reopen:
        """Return the noted steps; none if there is no note.

        Raises:
            StoreDamaged: the note is not readable.
        """
        path = _path(data_dir)
        if not os.access(path, os.F_OK):  # nor if the directory is missing or unusable; the store says which
            return cls()
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.MsgspecError as error:
            raise StoreDamaged(
                path, 0, f"it does not say what to do: {error}", "remove it; the slave decides again"
            ) from None

    def done(self, data_dir: Path) -> None:
        """Remove the note, durably, if there is one."""
        path = _path(data_dir)
        if path.exists():
            path.unlink()
            sync_directory(data_dir)


def _path(data_dir: Path) -> Path:
    return data_dir / "reopen.json"
