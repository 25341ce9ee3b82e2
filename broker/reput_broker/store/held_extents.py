"""Records about to be read, with their files held (RocketMQ: SelectMappedBufferResult).

Retention may delete a file between finding records and reading them in another thread. A file that is held is only shut
down, and deleted when its last holder releases it. If that takes too long, its name is removed, and the bytes stay for
the holder alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from reput_broker.store.base.results import Extent
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.mapped_file import MappedFile


class HeldExtents:
    """Extents whose files are held from construction until `release`; also a context manager.

    Raises (on construction):
        FileMissing: one of the files has been deleted, or is being deleted; nothing is held.
    """

    __slots__ = ("_extents", "_file_size", "_files")

    def __init__(self, log: CommitLog, extents: Sequence[Extent]) -> None:
        self._extents = tuple(extents)
        self._file_size = log.files.file_size
        self._files: dict[int, MappedFile] = {}
        """By number: the file with number n begins at log offset n times the size of a file."""
        try:
            for physical_offset, _ in self._extents:
                number = physical_offset // self._file_size
                if number not in self._files:
                    self._files[number] = log.hold_file_at(physical_offset)
        except BaseException:
            self.release()
            raise

    def file_at(self, physical_offset: int) -> MappedFile:
        """Return the held file with a log offset; before `release`."""
        return self._files[physical_offset // self._file_size]

    def read(self, extents: Sequence[Extent] | None = None, *, cold: bool = True) -> bytes:
        """Return the bytes of the extents, joined; before `release`.

        With `cold`, by positional reads that block no other thread; else out of the mapping. Any extents in the held
        files may be read; by default those that were held.
        """
        parts: list[bytes] = []
        for physical_offset, size in self._extents if extents is None else extents:
            file = self._files[physical_offset // self._file_size]
            read = file.read_held if cold else file.copy_of
            parts.append(read(physical_offset - file.base_offset, size))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Release the files. The last holder of a file that is being deleted unmaps it, which takes time."""
        files, self._files = self._files, {}
        for file in files.values():
            file.release()

    def __enter__(self) -> HeldExtents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
