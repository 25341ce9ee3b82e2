"""The disk of a simulated machine: real small files, of which a power cut takes back what was not synced.

A killed process leaves its files as they are: whatever it wrote is in the page cache of the operating system.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from crash.power_cut import cut_power
from crash.sync_shadow import DurableInMemory, SyncShadow, take_as_durable


class Disk:
    """The store directory of one machine.

    Attributes:
        on_sync: called before each sync below the directory.
    """

    _all: ClassVar[dict[str, Disk]] = {}
    """The disks by the beginning of their paths."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.data_dir = directory / "store"
        self._image_dir = directory / "image"
        self._chance = chance
        self._cut_pages: int | None = None
        self.on_sync: Callable[[], None] | None = None
        self.lost_pages = 0
        directory.mkdir()
        self._begin()
        self._all[str(self.data_dir)] = self

    def _begin(self) -> None:
        self._durable = DurableInMemory()
        self._shadow = SyncShadow(self.data_dir, self._durable)

    @classmethod
    def install(cls) -> None:
        """Let the disks see the calls of `os` that make something durable or take a name away."""
        real_replace, real_unlink = os.replace, os.unlink
        real_fsync, real_fdatasync = os.fsync, os.fdatasync

        def sync(fd: Any, real: Callable[[int], None]) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            path = _path_of(number)
            disk = cls._of(path)
            if disk is not None and disk.on_sync is not None:
                disk.on_sync()
            if disk is None:
                real(number)
            else:
                disk._shadow.record(number, path, real)

        def fsync(fd: Any) -> None:
            sync(fd, real_fsync)

        def fdatasync(fd: Any) -> None:
            sync(fd, real_fdatasync)

        def forget(path: Any) -> None:
            disk = cls._of(os.fspath(path))
            if disk is not None:
                disk._shadow.forget(path)

        def replace(source: Any, target: Any, **options: Any) -> None:
            forget(target)
            real_replace(source, target, **options)

        def unlink(path: Any, **options: Any) -> None:
            forget(path)
            real_unlink(path, **options)

        os.fsync, os.fdatasync = fsync, fdatasync
        os.replace = os.rename = replace  # type: ignore[assignment]
        os.unlink = os.remove = unlink

    @classmethod
    def _of(cls, path: str) -> Disk | None:
        return next((disk for start, disk in cls._all.items() if path.startswith(start)), None)

    def lose_power(self) -> None:
        """Decide now what is left; the store directory is replaced by that in `restore`."""
        if self.data_dir.exists():
            self._cut_pages = cut_power(self.data_dir, self._durable, self._image_dir, self._chance)

    def restore(self) -> None:
        """Make the directory ready for the next process: free of the last one's lock, and cut if power was lost."""
        self._release_locks()
        if self._cut_pages is None:
            return
        self.lost_pages += self._cut_pages
        self._cut_pages = None
        shutil.rmtree(self.data_dir)
        os.rename(self._image_dir, self.data_dir)
        self._begin()
        take_as_durable(self.data_dir, self._durable)

    def log_digest(self, end: int) -> str:
        """Return a digest of the whole log up to `end`."""
        digest = hashlib.sha256()
        for path in sorted((self.data_dir / "commitlog").iterdir()):
            if path.name.isdigit():
                digest.update(path.read_bytes()[: max(0, end - int(path.name))])
        return digest.hexdigest()[:16]

    def _release_locks(self) -> None:
        """Close what the killed process had open, with the locks on it; its objects keep descriptors of nothing."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if _path_of(fd).startswith(f"{self.data_dir}/"):
                    os.dup2(null, fd, inheritable=False)
        os.close(null)


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")
