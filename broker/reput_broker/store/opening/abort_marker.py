"""The file `abort`: exists while a broker runs, and tells the next start how the last run ended.

It holds the process id as decimal text, without a newline (RocketMQ: DefaultMessageStore). Only a
complete, orderly stop removes it; if a start finds it, the queues and the log may not agree.
"""

from __future__ import annotations

import os
from pathlib import Path

from reput_broker.store.base.errors import FlushFailed
from reput_broker.store.base.file_io import sync_directory, write_all


class AbortMarker:
    """The marker of one store directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether the last owner is still running, or ended without an orderly stop."""
        return self.path.exists()

    @property
    def pid(self) -> int | None:
        """Process id of that owner, None if the file is missing or holds none."""
        try:
            text = self.path.read_text("ascii", "replace").strip()
        except OSError:
            return None
        return int(text) if text.isdecimal() else None

    def create(self, pid: int | None = None) -> None:
        """Write the marker durably, before anything is appended.

        Raises:
            DiskFull: there is no room.
            FlushFailed: the sync failed.
        """
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, str(os.getpid() if pid is None else pid).encode("ascii"), 0, self.path)
            os.fsync(fd)
        except OSError as error:
            raise FlushFailed(self.path, error) from error
        finally:
            os.close(fd)
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Delete the marker durably, after everything else is durable."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
