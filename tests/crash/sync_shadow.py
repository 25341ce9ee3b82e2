"""Record what a power cut would leave: a shadow of everything that was synced.

Runs inside the broker process. `install` wraps `os.fsync` and `os.fdatasync` so that each call, after it has succeeded,
leaves in a shadow directory the content that it made durable: `inodes/N` for a file, `names/RELATIVE-DIR.json` for a
directory (which names it then held, and which inode each meant). Content is read before the sync starts: whatever is
written while it runs may or may not be durable, so it does not count. Renames and removals keep the durable content of
inodes that lose their name, because an unsynced directory may bring the old name back.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

_real_rename = os.rename


class SyncShadow:
    """Record every sync below `data_dir` in `shadow_dir`."""

    def __init__(self, data_dir: Path, shadow_dir: Path) -> None:
        self._data_dir = os.path.realpath(data_dir)
        self._inodes = shadow_dir / "inodes"
        self._names = shadow_dir / "names"
        self._lock = threading.Lock()
        self._dead = sum(1 for path in self._inodes.glob("dead-*")) if self._inodes.exists() else 0
        for directory in (self._inodes, self._names):
            directory.mkdir(parents=True, exist_ok=True)

    def install(self) -> None:
        """Wrap the calls of `os` that make something durable or take a name away."""
        os.fsync = self._recording(os.fsync)  # type: ignore[assignment]
        os.fdatasync = self._recording(os.fdatasync)  # type: ignore[assignment]
        real_replace, real_unlink = os.replace, os.unlink

        def replace(source: str, target: str, **options: int) -> None:
            self._forget(target)
            real_replace(source, target, **options)

        def unlink(path: str, **options: int) -> None:
            self._forget(path)
            real_unlink(path, **options)

        os.replace = os.rename = replace  # type: ignore[assignment]
        os.unlink = os.remove = unlink  # type: ignore[assignment]

    def _recording(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: object) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()  # type: ignore[attr-defined]
            path = os.readlink(f"/proc/self/fd/{number}")
            if not path.startswith(self._data_dir):
                real(number)
                return
            status = os.fstat(number)
            if stat.S_ISDIR(status.st_mode):
                names = {entry.name: entry.inode() for entry in os.scandir(path)}
                real(number)
                self._keep_names(os.path.relpath(path, self._data_dir), names)
            else:
                content = Path(path).read_bytes()
                real(number)
                self._keep_content(status.st_ino, content)

        return sync

    def _keep_content(self, inode: int, content: bytes) -> None:
        with self._lock:
            _write(self._inodes / str(inode), content)

    def _keep_names(self, directory: str, names: dict[str, int]) -> None:
        with self._lock:
            text = json.dumps({name: str(inode) for name, inode in names.items()})
            _write(self._names / f"{directory.replace('/', '%2F')}.json", text.encode())

    def _forget(self, path: str | os.PathLike[str]) -> None:
        """Keep the durable content of a file that loses its name under a key that no new file can get."""
        full = os.path.realpath(path)
        if not full.startswith(self._data_dir) or not os.path.exists(full):
            return
        inode = str(os.stat(full).st_ino)
        with self._lock:
            kept = self._inodes / inode
            self._dead += 1
            dead = f"dead-{self._dead}"
            if kept.exists():
                _real_rename(kept, self._inodes / dead)
            for listing in self._names.glob("*.json"):
                names = json.loads(listing.read_text())
                if inode in names.values():
                    _write(
                        listing,
                        json.dumps({n: dead if i == inode else i for n, i in names.items()}).encode(),
                    )


def seed_shadow(data_dir: Path, shadow_dir: Path) -> None:
    """Make a shadow that takes everything below `data_dir` as durable: the state after a power cut."""
    names, inodes = shadow_dir / "names", shadow_dir / "inodes"
    for directory in (names, inodes):
        directory.mkdir(parents=True)
    for current in [data_dir, *(path for path in data_dir.rglob("*") if path.is_dir())]:
        relative = os.path.relpath(current, data_dir)
        listing = {path.name: str(path.stat().st_ino) for path in current.iterdir()}
        _write(names / f"{relative.replace('/', '%2F')}.json", json.dumps(listing).encode())
    for path in data_dir.rglob("*"):
        if path.is_file():
            _write(inodes / str(path.stat().st_ino), path.read_bytes())


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new-{threading.get_ident()}")
    fresh.write_bytes(content)
    _real_rename(fresh, path)
