"""The system calls on which durability rests, each with a fallback for platforms that lack it.

The files of a stream have one size, and are named by the offset of their first byte in the stream, 20 decimal digits
(RocketMQ: UtilAll, MappedFileQueue). Listing a directory detects a wrong configuration and files of another origin.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from reput_broker.store.base.errors import DiskFull, FlushFailed, ForeignFile, StoreDamaged
from reput_protocol.buffers import Buffer
from reput_protocol.store.files import file_name, holds_only_zeros, is_file_name, stretches_of_data

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_CHUNK_BYTES = 1 << 20
_STATUS_BLOCK_BYTES = 512  # what st_blocks counts, whatever the blocks of the file system are
_ZEROS = bytes(_CHUNK_BYTES)


PAGE_BYTES = 4096
"""Page size by which flush thresholds count (RocketMQ: DefaultMappedFile.OS_PAGE_SIZE)."""


def is_able_to_flush(flushed: int, written: int, file_size: int, least_pages: int) -> bool:
    """Whether enough of a stream is unsynced to sync it (RocketMQ: DefaultMappedFile.isAbleToFlush).

    True if the file that contains the flushed position is full, or at least `least_pages` pages were begun in it since;
    with 0, if anything is unsynced. Both positions are bytes of the stream.
    """
    if written <= flushed:
        return False
    if written // file_size > flushed // file_size:
        return True
    pages = written % file_size // PAGE_BYTES - flushed % file_size // PAGE_BYTES
    return pages >= least_pages


def is_no_space(error: OSError | FlushFailed) -> bool:
    """Whether the disk or the quota is full."""
    return (error.cause_errno if isinstance(error, FlushFailed) else error.errno) in _NO_SPACE


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether the process or the system has reached its limit of open files."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def sync_data(fd: int) -> None:
    """Sync a file's data without holding the interpreter lock.

    `mmap.flush` keeps the lock: a sync of a few milliseconds would stop every thread.
    """
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def sync_directory(path: Path | str) -> None:
    """Make the names in a directory durable: a synced file whose name is lost is lost too.

    Raises:
        FlushFailed: the sync failed.
    """
    with _directory(path) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            raise FlushFailed(path, error) from error


def sync_names(path: Path) -> None:
    """As `sync_directory`, for files that are written again after an error. Raises OSError."""
    with _directory(path) as fd:
        os.fsync(fd)


@contextlib.contextmanager
def _directory(path: Path | str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        yield fd
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a small file durably: after a kill it has its old content or the new one. Blocks.

    Raises:
        DiskFull, FlushFailed, OSError: the old content stays.
    """
    new = path.with_name(f"{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data, 0, new)
        os.fsync(fd)
    finally:
        os.close(fd)
    new.replace(path)
    sync_directory(path.parent)


def set_aside(path: Path, why: str) -> Path:
    """Rename `path` to `NAME.WHY-1` (or the next free number) and return the new path. Blocks. Raises OSError."""
    number = 1
    while (aside := path.with_name(f"{path.name}.{why}-{number}")).exists() or aside.is_symlink():
        number += 1
    os.rename(path, aside)
    return aside


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, and make each new name durable."""
    if path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(exist_ok=True)
    try:
        sync_directory(path.parent)
    except BaseException:
        # The next attempt would find the directory and take its name for durable.
        with contextlib.suppress(OSError):
            path.rmdir()
        raise


def allocate(fd: int, size: int) -> None:
    """Reserve disk space for a new file and fill it with `size` bytes of zeros.

    Writing to a mapping over a hole kills the process with SIGBUS when the disk is full. Raises the plain OSError;
    ENOSPC leaves the file shorter than requested.
    """
    if _fallocate(fd, size):
        return
    position = 0
    while position < size:
        position += os.pwrite(fd, memoryview(_ZEROS)[: size - position], position)


def reserve_space(fd: int, size: int, path: Path) -> None:
    """Reserve disk space for all `size` bytes of an existing file, as `allocate` does for a new one.

    A file that was copied, truncated by hand or made by another broker may have holes. Contents and modification time
    stay the same. Nothing else may write to it meanwhile.

    Raises:
        DiskFull: there is no room. If that can be known in advance, no space was taken.
        OSError: the system call failed.
    """
    status = os.fstat(fd)
    missing = max(0, size - status.st_blocks * _STATUS_BLOCK_BYTES)
    if missing > _free_bytes(fd):
        raise DiskFull(path, missing)
    try:
        if not _fallocate(fd, size):
            _write_back(fd, size)
    except OSError as error:
        if is_no_space(error):
            raise DiskFull(path, missing) from error
        raise
    with contextlib.suppress(OSError):  # not the owner of the file
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def _fallocate(fd: int, size: int) -> bool:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return True
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    return False


def _free_bytes(fd: int) -> int:
    """Bytes this process may still write to the disk; quotas are not considered."""
    disk = os.fstatvfs(fd)
    return disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)


def _write_back(fd: int, size: int) -> None:
    """Fill the holes of a file with blocks."""
    position = 0
    while position < size:
        chunk = os.pread(fd, min(_CHUNK_BYTES, size - position), position)
        if not chunk:  # shorter than it should be
            return
        position += os.pwrite(fd, chunk, position)


def create_file(path: Path, size: int) -> int:
    """Create a file of `size` zeros on reserved disk space; return its descriptor for reading and writing.

    Its bytes and its name are durable. On failure no file is left behind, unless the disk refuses to remove it.

    Raises:
        DiskFull: there is no room.
        FlushFailed: it could not be made durable.
        FileExistsError: the file already exists.
        OSError: it cannot be created there, or no descriptor is free (`is_out_of_descriptors`).
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        allocate(fd, size)
        os.fsync(fd)
        sync_directory(path.parent)
    except BaseException as error:
        os.close(fd)
        with contextlib.suppress(OSError):  # the disk may refuse this too
            path.unlink()
        if isinstance(error, OSError):
            if is_no_space(error):
                raise DiskFull(path, size) from error
            if not is_out_of_descriptors(error):
                raise FlushFailed(path, error) from error
        raise
    return fd


def map_file(fd: int, size: int, path: Path, *, access: int = mmap.ACCESS_WRITE) -> mmap.mmap:
    """Map a whole file into memory.

    Raises:
        OSError: it cannot be mapped, for example for lack of memory; the error names the file, unlike mmap's.
    """
    try:
        return mmap.mmap(fd, size, access=access)
    except OSError as error:
        raise OSError(error.errno, f"mapping {size} bytes: {error.strerror}", str(path)) from error


def write_all(fd: int, data: Buffer, position: int, path: Path | str) -> None:
    """Write all of `data` at `position`.

    Raises:
        DiskFull: there was no room for all of it; any part may have been written.
    """
    size = len(data)
    try:
        written = os.pwrite(fd, data, position)
        while written < size:
            written += os.pwrite(fd, memoryview(data)[written:], position + written)
    except OSError as error:
        if is_no_space(error):
            raise DiskFull(path, size) from error
        raise


def zero_range(fd: int, start: int, end: int, path: Path | str) -> int:
    """Zero every byte in `[start, end)`, writing only where needed; return the bytes rewritten.

    Holes and preallocated extents are skipped, so the cost depends on what was written there.
    """
    rewritten = 0
    for position, stop in stretches_of_data(fd, start, end):
        while position < stop:
            chunk = os.pread(fd, min(_CHUNK_BYTES, stop - position), position)
            if not chunk:  # the file is shorter than `end`
                return rewritten
            if chunk != _ZEROS[: len(chunk)]:
                write_all(fd, memoryview(_ZEROS)[: len(chunk)], position, path)
                rewritten += len(chunk)
            position += len(chunk)
    return rewritten


def list_stream_files(
    directory: Path, file_size: int, unfinished: list[Path], *, strays: list[Path] | None
) -> list[int]:
    """Return the start offsets of a stream's files, ascending and without a gap. Changes nothing.

    Sub-directories and an empty last file are skipped; that file is added to `unfinished` for the caller to remove.

    With `strays`, for a stream that can be rebuilt, the list ends where a file is missing or empty, because a power
    failure can lose unsynced names and lengths; the files from there on are added to `strays` for the caller to remove.

    Raises:
        ForeignFile: a name is not an offset, or a length is not `file_size`.
        StoreDamaged: a file between two others is missing.
    """
    files = list_files_of((directory,), file_size, unfinished, strays=strays)
    return [start for start, _ in files]


def list_files_of(
    directories: Iterable[Path],
    file_size: int,
    unfinished: list[Path],
    *,
    after_crash: bool = False,
    strays: list[Path] | None = None,
) -> list[tuple[int, Path]]:
    """Return start offset and directory entry of a stream's files in several directories.

    As `list_stream_files`. After a crash, a last file that is too short and holds only zeros is added to `unfinished`,
    too: a process was killed while it created the file. Of files with the same name, so are those that hold only zeros:
    the beginning of a file that could not be created there. A missing directory has no files.

    Raises:
        ForeignFile: also if two directories hold the same part of the stream and neither is empty.
        StoreDamaged: as `list_stream_files` does.
    """
    directories = tuple(directories)
    # With several directories, one that takes no new files may keep an unfinished one for more than
    # one run.
    may_be_begun = after_crash or len(directories) > 1
    entries = sorted(
        (entry.name, entry.stat().st_size, directory)
        for directory in directories
        if directory.is_dir()
        for entry in os.scandir(directory)
        if not entry.is_dir()
    )
    entries = _without_leftovers(entries, unfinished)
    files: list[tuple[int, Path]] = []
    for index, (name, size, directory) in enumerate(entries):
        path = directory / name
        start = _parse_start(path, file_size)
        if index and entries[index - 1][0] == name:
            raise ForeignFile(
                path,
                f"{entries[index - 1][2]} has a file of that name too, and only one can be part of the log; "
                "move the wrong one away",
            )
        expected = files[-1][0] + file_size if files else start
        if size != file_size:
            unwritten = size == 0 or (may_be_begun and size < file_size and holds_only_zeros(path, size))
            if index == len(entries) - 1 and unwritten:
                unfinished.append(path)
                break
            if strays is not None and size == 0:
                strays.append(path)
                continue
            raise ForeignFile(
                path,
                f"it has {size} bytes and the configured file size is {file_size}; "
                "open the directory with the size it was created with, or move the file away",
            )
        if strays or (strays is not None and start != expected):
            strays.append(path)
            continue
        if start != expected:
            before = files[-1][1]
            raise StoreDamaged(
                before.with_name(file_name(expected)),
                0,
                f"the file is missing between {before.name} and {name}",
                "restore it from a copy, or run `reput store repair`",
            )
        files.append((start, path))
    return files


def _without_leftovers(entries: list[tuple[str, int, Path]], unfinished: list[Path]) -> list[tuple[str, int, Path]]:
    """Keep one of files with the same name that hold only zeros; add the others to `unfinished`."""
    kept: list[tuple[str, int, Path]] = []
    for name, twins in groupby(entries, key=itemgetter(0)):
        group = list(twins)
        for entry in group[:] if len(group) > 1 else ():
            if len(group) > 1 and holds_only_zeros(entry[2] / name, entry[1]):
                group.remove(entry)
                unfinished.append(entry[2] / name)
        kept += group
    return kept


def _parse_start(path: Path, file_size: int) -> int:
    name = path.name
    if not is_file_name(name):
        raise ForeignFile(path, "its name is not a 20-digit offset; move it out of the directory")
    start = int(name)
    if start % file_size:
        raise ForeignFile(
            path,
            f"its name is not a multiple of the configured file size {file_size}; "
            "open the directory with the size it was created with",
        )
    return start
