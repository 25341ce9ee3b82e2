"""The file `abort`: there while a broker runs, so that the next start knows how the last one ended.

It holds the process id as decimal text, without a newline (RocketMQ: DefaultMessageStore). It is removed only by
an exit that left nothing to do; found at a start, it means that the queues and the log may not agree.
"""

from __future__ import annotations

import os
from pathlib import Path

from reput_broker.store.errors import FlushFailed
from reput_broker.store.file_io import sync_directory, write_all


class AbortMarker:
    """The marker of one store directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether the last owner is still running, or ended without cleaning up."""
        return self.path.exists()

    @property
    def pid(self) -> int | None:
        """Process id of that owner, None if the file is missing or says nothing."""
        try:
            text = self.path.read_text("ascii", "replace").strip()
        except OSError:
            return None
        return int(text) if text.isdecimal() else None

    def create(self, pid: int | None = None) -> None:
        """Write the marker and make it durable: before anything is appended.

        Raises:
            DiskFull: there is no room.
            FlushFailed: the disk did not take it.
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
        """Delete the marker and make that durable: after everything else is."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
