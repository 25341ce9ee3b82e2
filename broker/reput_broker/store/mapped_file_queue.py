"""The files of one stream in order: roll to the next, find by offset, cut, expire (RocketMQ: MappedFileQueue).

One thread owns the list. It is an immutable tuple that is replaced whole, so that the flush thread and readers in
workers see a consistent list without a lock. Two things may run in workers beside the owner: creating the next file
ahead (`prepare_next`), which has its final name but belongs to the list only once `last_file_for` has adopted it; and
deleting the oldest one (`delete_first`). Whoever reads a file that is not the last one holds it meanwhile.
"""

from __future__ import annotations

import threading
from pathlib import Path

from .errors import StoreClosed
from .file_io import make_directories, sync_directory
from .file_names import file_name, list_stream_files
from .mapped_file import MappedFile

DESTROY_INTERVAL_MS = 120_000


class MappedFileQueue:
    """A stream of bytes kept in consecutive files of `file_size` bytes each.

    Two marks run over the whole stream: `flushed_where <= committed_where <= max_wrote_position`.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.flushed_where = 0
        self.committed_where = 0
        self._files: tuple[MappedFile, ...] = ()
        self._create_lock = threading.Lock()
        self._list_lock = threading.Lock()
        self._prepared: MappedFile | None = None
        self._unfinished: list[Path] = []
        self._closed = False

    # -- the list ------------------------------------------------------------------------------------------

    def load(self, *, after_crash: bool = False) -> None:
        """Map every file of the directory; each counts as completely written until recovery knows better.

        Nothing is changed: what a killed owner left of a file that it was creating is for `drop_unfinished` to remove,
        before anything is appended.

        Args:
            after_crash: whether the last owner may have been killed while it created a file.

        Raises:
            ForeignFile: a file that this store with this file size did not write.
            StoreDamaged: a file in the middle is missing.
        """
        self._unfinished = []
        if not self.directory.is_dir():
            return
        files: list[MappedFile] = []
        starts = list_stream_files(self.directory, self.file_size, self._unfinished, after_crash=after_crash)
        try:
            for start in starts:
                path = self.directory / file_name(start)
                files.append(MappedFile(path, self.file_size, start, create=False))
        except BaseException:
            for file in files:
                file.close()
            raise
        self._files = tuple(files)
        self.flushed_where = self.committed_where = self.max_offset

    def drop_unfinished(self) -> None:
        """Remove what `load` found of a file that was never finished."""
        unfinished, self._unfinished = self._unfinished, []
        for path in unfinished:
            path.unlink(missing_ok=True)
        if unfinished:
            sync_directory(self.directory)

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files, oldest first."""
        return self._files

    @property
    def first_file(self) -> MappedFile | None:
        """The oldest file."""
        files = self._files
        return files[0] if files else None

    @property
    def last_file(self) -> MappedFile | None:
        """The file that appends go to, full or not."""
        files = self._files
        return files[-1] if files else None

    def last_file_for(self, start_offset: int = 0, create: bool = True) -> MappedFile | None:
        """Return the file that the next append goes to.

        An empty stream begins with the file that contains `start_offset`; a full last file is followed by the
        next, made here or adopted from `prepare_next`.

        Args:
            start_offset: offset in the stream that an empty stream shall begin at.
            create: make the file if it is missing; otherwise answer None (empty) or the full last file.

        Raises:
            DiskFull: the file cannot be made; the stream is as it was.
        """
        last = self.last_file
        if last is not None and not last.is_full:
            return last
        if not create:
            return last
        base_offset = start_offset - start_offset % self.file_size if last is None else last.end_offset
        with self._create_lock:  # waits for a worker that is just making this very file
            file, self._prepared = self._prepared, None
            if file is None:
                file = self._create(base_offset)
            assert file.base_offset == base_offset
            if last is None:
                self._set_marks(base_offset, base_offset)
            with self._list_lock:
                self._files = (*self._files, file)
        return file

    def prepare_next(self) -> bool:
        """Create the file after the last one ahead of its need; safe in a worker thread.

        Returns:
            True if there is a prepared file now, False if there is no last file to follow.

        Raises:
            DiskFull: there is no room; nothing is left behind, appends go on in the last file.
        """
        last = self.last_file
        if last is None:
            return False
        with self._create_lock:
            if self._prepared is None and not self._closed and self.last_file is last:
                self._prepared = self._create(last.end_offset)
            return self._prepared is not None

    @property
    def has_prepared(self) -> bool:
        """Whether the next file lies ready."""
        return self._prepared is not None

    def _create(self, base_offset: int) -> MappedFile:
        if self._closed:
            raise StoreClosed(f"{self.directory} is closed")
        make_directories(self.directory)
        return MappedFile(self.directory / file_name(base_offset), self.file_size, base_offset, create=True)

    # -- positions -----------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Offset of the first byte of the oldest file, -1 if there is none."""
        files = self._files
        return files[0].base_offset if files else -1

    @property
    def max_offset(self) -> int:
        """Offset after the last byte that may be read, 0 if there is no file."""
        return self.max_wrote_position

    @property
    def max_wrote_position(self) -> int:
        """Offset after the last byte appended, 0 if there is no file."""
        files = self._files
        return files[-1].base_offset + files[-1].wrote_position if files else 0

    @property
    def bytes_to_commit(self) -> int:
        """Bytes appended and not yet handed to the operating system."""
        return max(0, self.max_wrote_position - self.committed_where)

    @property
    def bytes_to_flush(self) -> int:
        """Bytes appended and not yet known to be on the disk."""
        return max(0, self.max_wrote_position - self.flushed_where)

    def commit(self) -> int:
        """Hand everything appended to the operating system; return the offset up to which that is so."""
        for file in self._files:
            if file.end_offset > self.committed_where:
                self.committed_where = max(self.committed_where, file.base_offset + file.commit())
        return self.committed_where

    def flush(self) -> int:
        """Bring everything appended before the call to the disk; return the offset up to which that is certain.

        Blocks; meant for one worker thread. The mark moves file by file, never past one that failed.

        Raises:
            FlushFailed: a sync failed, now or earlier; final.
        """
        end = self.max_wrote_position
        for file in self._files:
            if file.end_offset <= self.flushed_where or file.base_offset >= end:
                continue
            flushed = file.base_offset + file.flush()
            if flushed > self.flushed_where:
                self.committed_where = max(self.committed_where, flushed)
                self.flushed_where = flushed
        return self.flushed_where

    # -- finding -------------------------------------------------------------------------------------------

    def find_by_offset(self, offset: int, first_if_missing: bool = False) -> MappedFile | None:
        """Return the file that contains an offset of the stream.

        Args:
            offset: offset in the stream, in bytes.
            first_if_missing: answer the oldest file (if any) where no file contains the offset.
        """
        files = self._files
        if not files:
            return None
        first = files[0]
        if first.base_offset <= offset < files[-1].end_offset:
            index = offset // self.file_size - first.base_offset // self.file_size
            file = files[index]
            assert file.base_offset <= offset < file.end_offset
            return file
        return first if first_if_missing else None

    def find_by_timestamp(self, timestamp_ms: int) -> MappedFile | None:
        """Return the oldest file last modified at or after a time, else the newest; None without files."""
        files = self._files
        for file in files:
            if file.last_modified_ms >= timestamp_ms:
                return file
        return files[-1] if files else None

    # -- cutting and expiring ------------------------------------------------------------------------------

    def reset_offset(self, offset: int) -> bool:
        """Let the stream go on at an earlier offset.

        Walks from the newest file to the oldest: files that start after the offset are deleted, the file that
        contains it continues there and is zero from there on. (RocketMQ 4.3.1 walked from the wrong end, reset
        nothing and reported success; its successors leave the later files lying on the disk, where the next
        start finds their old bytes.)

        Returns:
            False, with nothing changed, if the offset lies more than two files before the end, before the
            oldest file or after the last byte written.
        """
        files = self._files
        if not files:
            return False
        end = self.max_wrote_position
        if end - offset > 2 * self.file_size or not files[0].base_offset <= offset <= end:
            return False
        self.truncate_dirty_files(offset)
        return True

    def truncate_dirty_files(self, offset: int) -> int:
        """Cut the stream off at an offset: later files are deleted, the rest of the one containing it zeroed.

        Returns:
            How many bytes had to be overwritten with zeros (whole chunks; deleted files not counted).
        """
        self._drop_prepared()
        # From the newest on, each removal durable before the next: a crash in between must not leave a gap.
        while self._files and self._files[-1].base_offset > offset:
            _delete_now(self._files[-1])
            self._files = self._files[:-1]
            sync_directory(self.directory)
        rewritten = 0
        last = self.last_file
        if last is not None and offset < last.end_offset:
            position = offset - last.base_offset
            last.set_positions(position)
            rewritten = last.zero_tail(position)
        end = self.max_wrote_position
        self._set_marks(min(self.flushed_where, end), min(self.committed_where, end))
        return rewritten

    def delete_first(self, interval_ms: int = DESTROY_INTERVAL_MS, *, now_ms: int | None = None) -> bool:
        """Delete the oldest file, never the last one. Blocks; one worker thread at a time.

        Durable on return, before the next one can be deleted: were two removals to reach the disk in the wrong order,
        a power cut would leave a gap between the files.

        Args:
            interval_ms: how long holders of the file are waited for before it is given up.
            now_ms: a monotonic clock's reading; taken from the system if it is not given.

        Returns:
            False if there is none to delete, or if somebody still holds it: then it lets no new reader in and stays
            listed until the same call, repeated, finds it released or its time up (RocketMQ: retryDeleteFirstFile).

        Raises:
            FlushFailed: the file is gone, but the removal of its name is not certain.
            OSError: its name could not be removed; it stays listed and may be tried again.
        """
        files = self._files
        if len(files) < 2 or not files[0].destroy(interval_ms, now_ms=now_ms):
            return False
        with self._list_lock:
            self._files = self._files[1:]
        sync_directory(self.directory)
        return True

    def delete_last(self) -> bool:
        """Delete the newest file; False without files. The stream then ends with the file before it."""
        files = self._files
        if not files:
            return False
        _delete_now(files[-1])
        self._files = files[:-1]
        self._drop_prepared()
        sync_directory(self.directory)
        end = self.max_wrote_position
        self._set_marks(min(self.flushed_where, end), min(self.committed_where, end))
        return True

    def _drop_prepared(self) -> None:
        with self._create_lock:
            prepared, self._prepared = self._prepared, None
        if prepared is not None:
            _delete_now(prepared)

    def _set_marks(self, flushed: int, committed: int) -> None:
        self.flushed_where = flushed
        self.committed_where = max(flushed, committed)

    def set_marks(self, offset: int) -> None:
        """Declare everything before an offset flushed and committed, as recovery does once it has checked it."""
        self._set_marks(offset, offset)

    # -- lifetime ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every file; a prepared file that was never needed is deleted. Flushes nothing."""
        self._closed = True
        self._drop_prepared()
        for file in self._files:
            file.close()

    def destroy(self) -> None:
        """Delete every file and, if it is empty then, the directory; the stream can begin anew afterwards."""
        self._drop_prepared()
        for file in self._files:
            _delete_now(file)
        self._files = ()
        self._set_marks(0, 0)
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()
            sync_directory(self.directory.parent)


def _delete_now(file: MappedFile) -> None:
    """Delete a file whoever still holds it; a holder keeps its mapping until it lets go."""
    if not file.destroy():
        file.destroy(0)
