"""Records about to be read, with their files held (RocketMQ: SelectMappedBufferResult).

Retention may delete a file between finding records and reading them in another thread. A file that is held is only shut
down, and deleted when its last holder releases it. If that takes too long, its name is removed, and the bytes stay for
the holder alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.results import Extent
from reput_protocol.record.head import properties_of, properties_of_tail, read_head, tail_position
from reput_protocol.record.layout import HEAD_BYTES_MAX

_READ_WHOLE_BYTES_MAX = 16_384
"""Records up to this size are read completely: a second read costs more than the body."""


class HeldExtents:
    """Extents whose files are held from construction until `release`; also a context manager.

    Raises (on construction):
        FileMissing: one of the files has been deleted, or is being deleted; nothing is held.
    """

    __slots__ = ("_extents", "_files", "_last_file", "_view")

    def __init__(self, log: CommitLog, extents: Sequence[Extent]) -> None:
        self._extents = tuple(extents)
        self._files: list[MappedFile] = []
        self._last_file: MappedFile | None = None
        self._view: memoryview | None = None
        """The whole mapping of the file that was used last."""
        try:
            start = end = 0
            for physical_offset, _ in self._extents:
                if not start <= physical_offset < end:
                    file = self._file_of(physical_offset) if self._files else None
                    if file is None:
                        file = log.hold_file_at(physical_offset)
                        self._files.append(file)
                    start, end = file.base_offset, file.end_offset
        except BaseException:
            self.release()
            raise

    def _file_of(self, physical_offset: int) -> MappedFile | None:
        for file in self._files:
            if file.base_offset <= physical_offset < file.end_offset:
                return file
        return None

    def read(self, extents: Sequence[Extent] | None = None, *, cold: bool = True) -> bytes:
        """Return the bytes of the extents, joined; before `release`.

        With `cold`, by positional reads that block no other thread; else out of the mapping. Any extents in the held
        files may be read; by default those that were held.
        """
        parts: list[bytes] = []
        start = end = 0
        for physical_offset, size in self._extents if extents is None else extents:
            if not start <= physical_offset < end:
                file = self._file_of(physical_offset)
                assert file is not None, "released extents are not read"
                start, end = file.base_offset, file.end_offset
                read = file.read_held if cold else file.copy_of
            parts.append(read(physical_offset - start, size))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def properties_at(self, extent: Extent, *, cold: bool) -> bytes | None:
        """Return the properties text of the record at this extent, None if it is not valid; before `release`.

        The extent is in one of the held files. The body is skipped, unless reading it costs less than a second read.
        """
        physical_offset, size = extent
        file = self._last_file
        if file is None or not file.base_offset <= physical_offset < file.end_offset:
            file = self._file_of(physical_offset)
            assert file is not None, "what is looked at was held before"
            self._last_file = file
            self._close_view()
        position = physical_offset - file.base_offset
        if not cold:
            view = self._view
            if view is None:
                view = self._view = file.slice(0, file.read_position)
            return properties_of(view, position, size)
        if size <= _READ_WHOLE_BYTES_MAX:
            return properties_of(file.read_held(position, size), 0, size)
        head = file.read_held(position, HEAD_BYTES_MAX)
        tail = tail_position(head, 0, size) if len(head) == HEAD_BYTES_MAX else None
        if tail is None:
            return None
        rest = file.read_held(position + tail, size - tail)
        return properties_of_tail(rest, 0, len(rest), read_head(head).magic)

    def _close_view(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.release()

    def release(self) -> None:
        """Release the files. The last holder of a file that is being deleted unmaps it, which takes time."""
        self._close_view()
        files, self._files = self._files, []
        for file in files:
            file.release()

    def __enter__(self) -> HeldExtents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
