"""A log in several directories, each perhaps on a disk of its own (RocketMQ: MultiPathMappedFileQueue).

File number k, its start offset divided by the file size, is made in the k mod n-th of the directories that may have new
files: those that are not read-only and not nearly full, sorted by their names. Were all nearly full, fullness would not
count. Where a file really lies is not computed but seen: all directories together hold one stream, so that directories
may be added, become full or become read-only at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.mapped_file_queue import OPEN_MAX, MappedFileQueue
from reput_broker.store.options import EventHandler, ignore_event


class MultiPathMappedFileQueue(MappedFileQueue):
    """A `MappedFileQueue` over several directories.

    Args:
        directories: where new files are made, at least one that is not read-only too.
        read_only: where no new file is made. What lies there is read, and written only if the log ends in it.
        file_size: bytes of each file.
        on_event, open_max: see `MappedFileQueue`.
    """

    def __init__(
        self,
        directories: Iterable[Path],
        read_only: Iterable[Path],
        file_size: int,
        on_event: EventHandler = ignore_event,
        open_max: int = OPEN_MAX,
    ) -> None:
        self._read_only = frozenset(read_only)
        named = dict.fromkeys(directories)
        self._writable = sorted((path for path in named if path not in self._read_only), key=_java_order)
        super().__init__(self._writable[0], file_size, on_event, open_max)
        self._all = tuple(dict.fromkeys([*self._writable, *sorted(self._read_only, key=_java_order)]))
        self._full: frozenset[Path] = frozenset()

    @property
    def directories(self) -> Sequence[Path]:
        """Every directory that may hold files of the stream."""
        return self._all

    def directories_for(self, base_offset: int) -> Sequence[Path]:
        """Where the file that starts there may be made, the best directory first.

        The others follow for the case that a disk turns out to be full, or to take no file, although nobody has noticed
        yet.
        """
        full = self._full
        roomy = [path for path in self._writable if path not in full] or self._writable
        first = base_offset // self.file_size % len(roomy)
        rest = [path for path in self._writable if path not in roomy]
        return (*roomy[first:], *roomy[:first], *rest)

    def note_full(self, directories: frozenset[Path]) -> None:
        """Avoid these directories, whose disks are nearly full, for new files if there are others.

        (RocketMQ: setFullStorePaths.)
        """
        self._full = directories

    def _map(self, path: Path, base_offset: int) -> MappedFile:
        read_only = path.parent in self._read_only
        return MappedFile(path, self.file_size, base_offset, create=False, may_be_read_only=read_only)


def _java_order(path: Path) -> bytes:
    """Sort key that puts paths in the order of Java's strings, so that RocketMQ chooses the same directory."""
    return str(path).encode("utf-16-be", "surrogatepass")
