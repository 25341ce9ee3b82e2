"""The offset file of a member that broadcasts: where it lies, and that nobody else writes it.

(RocketMQ: LocalFileOffsetStore keeps `~/.rocketmq_offsets/<ip@instance>/<group>/offsets.json`, for any number of
writers.)
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from reput_client.errors import OffsetStoreInUse

DIRECTORY_VARIABLE: Final = "REPUT_OFFSETS_DIR"


def offset_file(group: str, instance: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return where `instance` keeps the offsets of `group` on this machine, for this user."""
    base = environment.get(DIRECTORY_VARIABLE)
    directory = Path(base) if base else Path.home() / ".reput_offsets"
    return directory / instance / group / "offsets.json"


class FileOwner:
    """Keeps others from writing an offset file, in this process and in others, from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the file for us; twice does no harm.

        Raises:
            OffsetStoreInUse: somebody has it.
            OSError: the directory cannot be made or written to.
        """
        if self._descriptor is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise OffsetStoreInUse(str(self._path)) from None
        self._descriptor = descriptor

    def release(self) -> None:
        """Leave the file to others."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
