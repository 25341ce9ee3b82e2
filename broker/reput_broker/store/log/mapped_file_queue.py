"""The files of one stream in order: roll, find by offset, truncate, delete (RocketMQ: MappedFileQueue).

One thread owns the list, an immutable tuple that is replaced as a whole, so that other threads need no lock. Workers
may meanwhile create the next files (`prepare_next`), which `last_file_for` adopts, commit, flush, and delete the oldest
file (`delete_first`).

A file is created in the first of the directories that allows it. If a disk is full, mounted read-only, unreachable or
broken, the next directory is tried. A failing directory is reported once and tried again for every file that is due
there.

What is left of a file that could not be created must not remain next to the one created elsewhere. It is removed
durably, at the latest before the next file is created in that directory. Until then the next start recognises it
because it holds only zeros (`file_io.list_files_of`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from reput_broker.store.base.errors import DirectoryLost, DiskFull, FileNotMade, FlushFailed, StoreClosed, StoreError
from reput_broker.store.base.file_io import is_no_space, list_files_of, make_directories, sync_directory
from reput_broker.store.base.options import EventHandler, ignore_event
from reput_broker.store.log.mapped_file import MappedFile, OpenMappings
from reput_protocol.store.files import file_name


@dataclass(eq=False, repr=False)
class FileMaker:
    """Creates files of `file_size` bytes; one at a time, in any thread.

    Events: `commit_log_dir_failed` when a directory begins to fail for another reason than a full disk,
    `commit_log_dir_works_again` when a file has been created in it after that.
    """

    _file_size: int
    _on_event: EventHandler
    _failed: set[Path] = field(default_factory=set, init=False)
    _leftovers: set[Path] = field(default_factory=set, init=False)

    def make(self, base_offset: int, directories: Iterable[Path]) -> MappedFile:
        """Create the file with this base offset in the first directory that allows it.

        Raises:
            DiskFull: none did, at least one of them for lack of space.
            FileNotMade: none did, or no descriptor or memory was free, which no other directory
                would change.
        """
        full: DiskFull | None = None
        failed: FileNotMade | None = None
        for directory in directories:
            path = directory / file_name(base_offset)
            try:
                make_directories(directory)
                self._sweep(directory)
                file = MappedFile(path, self._file_size, base_offset, create=True)
            except FileExistsError as error:
                refusal = FileNotMade(path, error)
                self._note_failed(directory, refusal)
                failed = failed or refusal
            except DirectoryLost as error:
                raise FileNotMade(path, error) from error
            except (DiskFull, FlushFailed, OSError) as error:
                self._note_leftover(path)
                if isinstance(error, DiskFull) or is_no_space(error):
                    full = full or DiskFull(path, self._file_size)
                    continue
                refusal = FileNotMade(path, error)
                if refusal.is_out_of_descriptors or refusal.is_out_of_memory:
                    raise refusal from error
                self._note_failed(directory, refusal)
                failed = failed or refusal
            else:
                self._note_works(directory)
                return file
        refused = full or failed
        assert refused is not None, "there is always a directory to try"
        raise refused

    def remove_leftover(self, path: Path) -> None:
        """Remove what is left of a file, now or before the next one is created in that directory."""
        self._leftovers.add(path)
        with suppress(FlushFailed, OSError):
            self._sweep(path.parent)

    def _note_leftover(self, path: Path) -> None:
        try:
            if not os.path.lexists(path):
                sync_directory(path.parent)
                return
        except FileNotFoundError:
            return  # its directory does not exist either
        except (FlushFailed, OSError):
            pass
        self._leftovers.add(path)

    def _sweep(self, directory: Path) -> None:
        """Remove leftovers from a directory; while that fails, no file is created there."""
        for path in [path for path in self._leftovers if path.parent == directory]:
            path.unlink(missing_ok=True)
            sync_directory(directory)
            self._leftovers.discard(path)

    def _note_failed(self, directory: Path, refusal: FileNotMade) -> None:
        if directory not in self._failed:
            self._failed.add(directory)
            self._on_event("commit_log_dir_failed", {"path": str(directory), "reason": str(refusal)})

    def _note_works(self, directory: Path) -> None:
        if directory in self._failed:
            self._failed.discard(directory)
            self._on_event("commit_log_dir_works_again", {"path": str(directory)})


DESTROY_INTERVAL_MS = 120_000
OPEN_MAX = 256


class MappedFileQueue:
    """A stream of bytes in consecutive files of `file_size` bytes each.

    Invariant over the whole stream: `flushed_where <= committed_where <= max_wrote_position`.

    Args:
        open_max: how many files stay mapped, besides those that are written.
    """

    def __init__(
        self, directory: Path, file_size: int, on_event: EventHandler = ignore_event, open_max: int = OPEN_MAX
    ) -> None:
        self.directory = directory
        self.file_size = file_size
        self.mappings = OpenMappings(open_max)
        self._maker = FileMaker(file_size, on_event)
        self.flushed_where = 0
        self.committed_where = 0
        self.files: tuple[MappedFile, ...] = ()
        """The files, oldest first; replaced as a whole."""
        self._create_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._list_lock = threading.Lock()
        self._prepared: deque[MappedFile] = deque()
        self._unfinished: list[Path] = []
        self._removed_in: Path | None = None
        self._closed = False

    # -- directories -----------------------------------------------------------------------------------

    @property
    def directories(self) -> Sequence[Path]:
        """Every directory that may hold files of the stream."""
        return (self.directory,)

    def directories_for(self, base_offset: int) -> Sequence[Path]:
        """Directories for the file that starts there, the preferred one first."""
        del base_offset
        return (self.directory,)

    def note_full(self, directories: frozenset[Path]) -> None:
        """Avoid these directories, whose disks are nearly full, for new files if there are others."""

    def _map(self, path: Path, base_offset: int) -> MappedFile:
        return MappedFile(path, self.file_size, base_offset, create=False)

    # -- the list ------------------------------------------------------------------------------------------

    def load(self, *, after_crash: bool = False) -> None:
        """Map every file of the directory; each counts as completely written until recovery sets its end.

        Changes nothing: `drop_unfinished` removes unfinished files.

        Args:
            after_crash: whether the last owner may have been killed while it created a file.

        Raises:
            ForeignFile: a file that this store with this file size did not write.
            StoreDamaged: a file in the middle is missing.
        """
        self._unfinished = []
        files: list[MappedFile] = []
        found = list_files_of(self.directories, self.file_size, self._unfinished, after_crash=after_crash)
        try:
            for start, path in found:
                file = self._map(path, start)
                files.append(file)
                self._watch(file)
        except BaseException:
            for file in files:
                file.close()
            raise
        self.files = tuple(files)
        self.flushed_where = self.committed_where = self.max_offset

    def _watch(self, file: MappedFile) -> None:
        file.mappings = self.mappings
        self.mappings.opened(file)

    def drop_unfinished(self) -> None:
        """Remove the unfinished files that `load` found.

        For one that can be created in another directory, a failed removal is retried before the next file is created
        there.
        """
        unfinished, self._unfinished = self._unfinished, []
        made = {file.path.name for file in self.files}
        for path in unfinished:
            elsewhere = set(self.directories_for(int(path.name))) - {path.parent}
            if path.name in made or elsewhere:
                self._maker.remove_leftover(path)
            else:
                path.unlink(missing_ok=True)
                sync_directory(path.parent)

    @property
    def first_file(self) -> MappedFile | None:
        """The oldest file."""
        files = self.files
        return files[0] if files else None

    @property
    def last_file(self) -> MappedFile | None:
        """The file that appends go to, full or not."""
        files = self.files
        return files[-1] if files else None

    def last_file_for(self, start_offset: int = 0, create: bool = True) -> MappedFile | None:
        """Return the file that the next append goes to.

        A full last file is followed by the next, created here or adopted from `prepare_next`.

        Args:
            start_offset: an empty stream begins with the file that contains this offset.
            create: create a missing file; otherwise return None (empty) or the full last file.

        Raises:
            DiskFull, FileNotMade: the file cannot be created; the stream is unchanged.
        """
        last = self.last_file
        if last is not None and not last.is_full:
            return last
        if not create:
            return last
        base_offset = start_offset - start_offset % self.file_size if last is None else last.end_offset
        if not self._adopt():  # without waiting, even while a worker creates the file after it
            with self._create_lock:  # waits for a worker that is creating this very file
                if not self._adopt():
                    file = self._create(base_offset)
                    if last is None:
                        self._set_marks(base_offset, base_offset)
                    with self._list_lock:
                        self.files = (*self.files, file)
        last = self.last_file
        assert last is not None
        assert last.base_offset == base_offset
        return last

    def _adopt(self) -> bool:
        with self._list_lock:
            if not self._prepared:
                return False
            self.files = (*self.files, self._prepared.popleft())
            return True

    def prepare_next(self, ahead: int = 1) -> MappedFile | None:
        """Create one more file after the last one ahead of need; safe in a worker thread.

        Args:
            ahead: only if fewer than this many are prepared.

        Returns:
            The file, to be adopted when it is needed; None if none was created, or there is no last file to follow.

        Raises:
            DiskFull, FileNotMade: it cannot be created; appends continue in the last file.
        """
        with self._create_lock:
            with self._list_lock:
                newest = self._prepared[-1] if self._prepared else self.last_file
                if newest is None or self._closed or len(self._prepared) >= ahead:
                    return None
            # An adoption meanwhile changes nothing: the file being created still follows that one.
            file = self._create(newest.end_offset)
            with self._list_lock:
                self._prepared.append(file)
            return file

    @property
    def prepared_count(self) -> int:
        """How many files are prepared behind the last one."""
        return len(self._prepared)

    def _create(self, base_offset: int) -> MappedFile:
        if self._closed:
            raise StoreClosed(f"{self.directory} is closed")
        file = self._maker.make(base_offset, self.directories_for(base_offset))
        self._watch(file)
        return file

    # -- positions -----------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Offset of the first byte of the oldest file, -1 if there is none."""
        files = self.files
        return files[0].base_offset if files else -1

    @property
    def max_offset(self) -> int:
        """Offset after the last byte of the newest file that may be read, 0 if there is no file."""
        files = self.files
        return files[-1].base_offset + files[-1].read_position if files else 0

    @property
    def max_wrote_position(self) -> int:
        """Offset after the last byte appended, 0 if there is no file."""
        files = self.files
        return files[-1].base_offset + files[-1].wrote_position if files else 0

    @property
    def bytes_to_flush(self) -> int:
        """Bytes appended and not yet known to be on disk."""
        return max(0, self.max_wrote_position - self.flushed_where)

    def commit(self) -> int:
        """Write everything appended before the call to the operating system; return the offset of its end.

        Blocks if there are buffers; thread-safe. `committed_where` advances file by file.

        Raises:
            DiskFull, OSError: as `MappedFile.commit`; earlier files stay committed.
        """
        with self._commit_lock:
            for file in self.files:
                if file.end_offset <= self.committed_where:
                    continue
                committed = file.base_offset + file.commit()
                self.committed_where = max(self.committed_where, committed)
                if committed < file.end_offset:
                    break
            return self.committed_where

    def flush(self) -> int:
        """Sync everything appended before the call; return the offset up to which that is certain.

        Blocks; for one worker thread. `flushed_where` advances file by file, never past one that failed.

        Raises:
            FlushFailed: a sync failed, now or earlier; final.
        """
        end = self.max_wrote_position
        for file in self.files:
            if file.end_offset <= self.flushed_where or file.base_offset >= end:
                continue
            flushed = file.base_offset + file.flush()
            if flushed > self.flushed_where:
                self.committed_where = max(self.committed_where, flushed)
                self.flushed_where = flushed
            if flushed < file.end_offset:
                break
        return self.flushed_where

    # -- finding -------------------------------------------------------------------------------------------

    def find_by_offset(self, offset: int) -> MappedFile | None:
        """Return the file that contains an offset of the stream."""
        files = self.files
        if not files:
            return None
        first = files[0]
        if first.base_offset <= offset < files[-1].end_offset:
            index = offset // self.file_size - first.base_offset // self.file_size
            file = files[index]
            assert file.base_offset <= offset < file.end_offset
            return file
        return None

    # -- truncating and deleting -----------------------------------------------------------------------

    def truncate_dirty_files(self, offset: int) -> int:
        """Truncate the stream at an offset: delete later files, zero the rest of the last one.

        Returns:
            How many bytes were overwritten with zeros (whole chunks; deleted files not counted).
        """
        self._drop_prepared()
        # From the newest on, each removal durable before the next: a crash must not leave a gap.
        while self.files and self.files[-1].base_offset > offset:
            last = self.files[-1]
            _delete_now(last)
            self.files = self.files[:-1]
            sync_directory(last.path.parent)
        rewritten = 0
        kept = self.last_file
        if kept is not None and offset < kept.end_offset:
            position = offset - kept.base_offset
            kept.set_positions(position)
            rewritten = kept.zero_tail(position)
        end = self.max_wrote_position
        self._set_marks(min(self.flushed_where, end), min(self.committed_where, end))
        return rewritten

    def delete_first(self, interval_ms: int = DESTROY_INTERVAL_MS, *, now_ms: int | None = None) -> bool:
        """Delete the oldest file, never the last one. Blocks; one worker thread at a time.

        Durable on return: two removals that reach the disk in the wrong order would leave a gap after a power failure.

        Args:
            interval_ms: how long to wait for holders of the file.
            now_ms: a monotonic clock's reading; by default the system's.

        Returns:
            False if there is none to delete, or it is still held: then it accepts no new readers and stays listed until
                a later call finds it released or its time up (RocketMQ: retryDeleteFirstFile).

        Raises:
            FlushFailed: the file is deleted, but the removal of its name is not certain.
            OSError: the file stays listed; or it is deleted, and the next call syncs that first.
        """
        self._sync_removal()
        files = self.files
        if len(files) < 2 or not files[0].destroy(interval_ms, now_ms=now_ms):
            return False
        with self._list_lock:
            self.files = self.files[1:]
        self._removed_in = files[0].path.parent
        self._sync_removal()
        return True

    def _sync_removal(self) -> None:
        if self._removed_in is not None:
            sync_directory(self._removed_in)
            self._removed_in = None

    def _drop_prepared(self) -> None:
        """Delete the prepared files durably, the newest first: there must be no gap."""
        with self._create_lock:
            while self._prepared:
                file = self._prepared[-1]
                _delete_now(file)
                self._prepared.pop()
                sync_directory(file.path.parent)

    def _set_marks(self, flushed: int, committed: int) -> None:
        self.flushed_where = flushed
        self.committed_where = max(flushed, committed)

    def set_marks(self, offset: int) -> None:
        """Declare everything before an offset flushed and committed, once recovery has verified it."""
        self._set_marks(offset, offset)

    # -- lifetime ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every file and delete unused prepared ones. Commits and flushes nothing."""
        self._closed = True
        with contextlib.suppress(OSError, StoreError):  # a file that stays is all zero: the next load drops it
            self._drop_prepared()
        for file in (*self.files, *self._prepared):
            file.close()


def _delete_now(file: MappedFile) -> None:
    """Delete a file even if it is held; its holders keep the mapping."""
    if not file.destroy():
        file.destroy(0)


class MultiPathMappedFileQueue(MappedFileQueue):
    """A `MappedFileQueue` over several directories, for example on several disks (RocketMQ: the same).

    File number k (start offset / file size) is created in directory k mod n of the n directories that accept new
    files: not read-only and not nearly full (unless all are), sorted by name. Existing files are found by listing: all
    directories together hold one stream, so directories may be added, become full or become read-only at any time.

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
