"""Record what a power cut would leave: the durable content and names of everything that was synced.

Runs inside the broker process. Each call of `os.fsync` and `os.fdatasync`, after it has succeeded, keeps what it made
durable: the content of a file by its inode, or the names in a directory with the inode that each meant. Content is read
before the sync starts: whatever is written while it runs may or may not be durable, so it does not count. Renames and
removals keep the durable content of inodes that lose their name, because an unsynced directory may bring the old name
back.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_real_rename = os.rename


class Durable(Protocol):
    """What is durable of one directory tree. Directories are named by their path in it."""

    def names(self, directory: str) -> dict[str, str]:
        """Return the names of a directory's last sync, with the inode of each; none if there was no sync."""
        ...

    def keep_names(self, directory: str, names: dict[str, str]) -> None:
        """Replace the names of a directory."""
        ...

    def content(self, inode: str) -> bytes | None:
        """Return a file's content at its last sync; None if it was never synced."""
        ...

    def keep_content(self, inode: str, content: bytes) -> None:
        """Replace the content of a file."""
        ...

    def bury(self, inode: str) -> None:
        """Keep what an inode that loses its name has under a key that no new file can get."""
        ...


class DurableInFiles:
    """Keeps it in a directory, for a process that is killed: `inodes/N` and `names/RELATIVE-DIR.json`."""

    def __init__(self, directory: Path) -> None:
        self._inodes = directory / "inodes"
        self._names = directory / "names"
        for path in (self._inodes, self._names):
            path.mkdir(parents=True, exist_ok=True)
        self._dead = sum(1 for _ in self._inodes.glob("dead-*"))

    def names(self, directory: str) -> dict[str, str]:
        listing = self._listing(directory)
        names: dict[str, str] = json.loads(listing.read_text()) if listing.exists() else {}
        return names

    def keep_names(self, directory: str, names: dict[str, str]) -> None:
        _write(self._listing(directory), json.dumps(names).encode())

    def content(self, inode: str) -> bytes | None:
        kept = self._inodes / inode
        return kept.read_bytes() if kept.exists() else None

    def keep_content(self, inode: str, content: bytes) -> None:
        _write(self._inodes / inode, content)

    def bury(self, inode: str) -> None:
        kept = self._inodes / inode
        self._dead += 1
        dead = f"dead-{self._dead}"
        if kept.exists():
            _real_rename(kept, self._inodes / dead)
        for listing in self._names.glob("*.json"):
            names = json.loads(listing.read_text())
            if inode in names.values():
                renamed = {name: dead if one == inode else one for name, one in names.items()}
                _write(listing, json.dumps(renamed).encode())

    def _listing(self, directory: str) -> Path:
        return self._names / f"{directory.replace('/', '%2F')}.json"


class DurableInMemory:
    """Keeps it in this process."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._names: dict[str, dict[str, str]] = {}
        self._dead = 0

    def names(self, directory: str) -> dict[str, str]:
        return self._names.get(directory, {})

    def keep_names(self, directory: str, names: dict[str, str]) -> None:
        self._names[directory] = names

    def content(self, inode: str) -> bytes | None:
        return self._contents.get(inode)

    def keep_content(self, inode: str, content: bytes) -> None:
        self._contents[inode] = content

    def bury(self, inode: str) -> None:
        self._dead += 1
        dead = f"dead-{self._dead}"
        if inode in self._contents:
            self._contents[dead] = self._contents.pop(inode)
        for directory, names in self._names.items():
            if inode in names.values():
                self._names[directory] = {name: dead if one == inode else one for name, one in names.items()}


class SyncShadow:
    """Record every sync below `data_dir` in `durable`."""

    def __init__(self, data_dir: Path, durable: Durable) -> None:
        self._data_dir = os.path.realpath(data_dir)
        self._durable = durable
        self._lock = threading.Lock()

    def install(self) -> None:
        """Wrap the calls of `os` that make something durable or take a name away."""
        real_replace, real_unlink = os.replace, os.unlink

        def replace(source: str, target: str, **options: int) -> None:
            self.forget(target)
            real_replace(source, target, **options)

        def unlink(path: str, **options: int) -> None:
            self.forget(path)
            real_unlink(path, **options)

        def recording(real: Callable[[int], None]) -> Callable[[int], None]:
            def sync(fd: object) -> None:
                number = fd if isinstance(fd, int) else fd.fileno()  # type: ignore[attr-defined]
                self.record(number, os.readlink(f"/proc/self/fd/{number}"), real)

            return sync

        os.fsync = recording(os.fsync)  # type: ignore[assignment]
        os.fdatasync = recording(os.fdatasync)  # type: ignore[assignment]
        os.replace = os.rename = replace  # type: ignore[assignment]
        os.unlink = os.remove = unlink  # type: ignore[assignment]

    def record(self, number: int, path: str, real: Callable[[int], None]) -> None:
        """Sync the descriptor of a path, and keep what that makes durable if it is below the directory."""
        if not path.startswith(self._data_dir):
            real(number)
            return
        status = os.fstat(number)
        if stat.S_ISDIR(status.st_mode):
            names = {entry.name: str(entry.inode()) for entry in os.scandir(path)}
            real(number)
            with self._lock:
                self._durable.keep_names(os.path.relpath(path, self._data_dir), names)
        else:
            with open(path, "rb", buffering=0) as file:
                content = file.readall()
            real(number)
            with self._lock:
                self._durable.keep_content(str(status.st_ino), content)

    def forget(self, path: str | os.PathLike[str]) -> None:
        """Keep the durable content of a file that is about to lose its name."""
        full = os.path.realpath(path)
        if full.startswith(self._data_dir) and os.path.exists(full):
            with self._lock:
                self._durable.bury(str(os.stat(full).st_ino))


def take_as_durable(data_dir: Path, durable: Durable) -> None:
    """Take everything below `data_dir` as durable: the state after a power cut."""
    for current, _, files in os.walk(data_dir):
        with os.scandir(current) as entries:
            names = {entry.name: str(entry.inode()) for entry in entries}
        durable.keep_names(os.path.relpath(current, data_dir), names)
        for name in files:
            durable.keep_content(names[name], Path(current, name).read_bytes())


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new-{threading.get_ident()}")
    fresh.write_bytes(content)
    _real_rename(fresh, path)
