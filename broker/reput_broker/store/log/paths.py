"""A log in several directories, for example on several disks (RocketMQ: MultiPathMappedFileQueue).

File number k (start offset / file size) is created in directory k mod n of the n directories that accept new files: not
read-only and not nearly full (unless all are), sorted by name. Existing files are found by listing: all directories
together hold one stream, so directories may be added, become full or become read-only at any time.
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
        directories: where new files are created; at least one must not be read-only.
        read_only: where no new file is created. Files there are written only if the log ends in one.
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
        """Directories for the file that starts there, the preferred one first.

        The others follow in case that a disk turns out to be full or broken.
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
    """Order paths like Java's strings, so that RocketMQ chooses the same directory."""
    return str(path).encode("utf-16-be", "surrogatepass")
