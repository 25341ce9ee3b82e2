"""Records about to be read: the files they lie in stay until the reader lets go (RocketMQ: SelectMappedBufferResult).

Between finding records and reading them in another thread, retention may delete the file. Whoever holds it first reads
on undisturbed: the file is only shut down, and goes when the last holder has left (or has taken far too long; then its
name goes, and the bytes stay for that holder alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from reput_broker.store.commit_log import CommitLog
from reput_broker.store.mapped_file import MappedFile
from reput_broker.store.results import Extent


class HeldExtents:
    """Extents with their files held from construction until `release`; also a context manager that releases.

    Raises (on construction):
        FileMissing: one of the files has been deleted, or is being deleted; nothing is held.
    """

    __slots__ = ("_extents", "_files")

    def __init__(self, log: CommitLog, extents: Sequence[Extent]) -> None:
        self._extents = tuple(extents)
        self._files: list[MappedFile] = []
        try:
            for extent in self._extents:
                if self._file_of(extent) is None:
                    self._files.append(log.hold_file_at(extent.physical_offset))
        except BaseException:
            self.release()
            raise

    def _file_of(self, extent: Extent) -> MappedFile | None:
        for file in self._files:
            if file.base_offset <= extent.physical_offset < file.end_offset:
                return file
        return None

    def read(self) -> bytes:
        """The bytes of the extents, joined, by positional reads, for which no other thread waits; before `release`."""
        parts: list[bytes] = []
        for extent in self._extents:
            file = self._file_of(extent)
            assert file is not None, "released extents are not read"
            parts.append(file.read_held(extent.physical_offset - file.base_offset, extent.size))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Let go. The last one to leave a file that is being deleted unmaps it, which takes time: best in a worker."""
        files, self._files = self._files, []
        for file in files:
            file.release()

    def __enter__(self) -> HeldExtents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
