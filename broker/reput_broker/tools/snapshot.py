"""Copy a store directory whose broker may be running: the copy is what a kill of the broker would have left.

The broker is not asked, and no lock is taken, so that a snapshot cannot keep a broker from starting. What is copied
first claims least: the checkpoint, then queues and index, then the tables, then the log up to the end of its valid
records at that moment, which is later than all of the others. `abort` is copied too, so the next start recovers the
copy: it completes the queues, and drops what is beyond the end of the log.

Files are copied, never linked: recovery, and the truncation of a slave's log, write to them in place.

A pass is repeated if the directory has changed in a way that this order does not cover: a start or a stop, another
epoch of the log, a rebuild. Files that expire meanwhile need no repetition, because the oldest go first: each directory
is copied from its newest file on. Queues of topics that were deleted meanwhile are left out: `deletedTopics` says so,
and a start makes those of a topic that was created again.

The work is done in `TARGET.partial`. A file in its `commitlog` makes every start and every verification refuse it until
everything is on disk; then it is renamed.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeAlias

from reput_broker.store.base.checkpoint import FlushMark
from reput_broker.store.base.dispatch import DeletedTopics
from reput_broker.store.base.file_io import is_no_space, sync_directory, write_all
from reput_broker.store.opening.lock import AbortMarker, DirectoryLock
from reput_broker.store.queue.table import DELETED_DIR
from reput_broker.tools.report import Progress, no_progress
from reput_broker.tools.verify_checkpoint import valid_mark
from reput_protocol.record.scan import ScanStatus, scan_record
from reput_protocol.store.files import holds_only_zeros, stretches_of_data
from reput_protocol.store.topic_journal import TOPIC_JOURNAL

INCOMPLETE = "snapshot-is-incomplete"
"""Name of the file in `commitlog` while a snapshot is being taken."""
PASSES = 10
PASS_INTERVAL_S = 1.0
_TRIES = 100
"""How often a directory is listed again that changes while it is copied."""
_CHUNK_BYTES = 8 << 20
_LOG_DIR = "commitlog"
_LEFT_OUT = frozenset({"lock", "aside", "cut", "lost+found", _LOG_DIR})
"""What a broker does not need: its lock, and what earlier truncations have saved."""
_WITH_TABLES = ("timerlog", "staging", "config")
_DELETED = "deletedTopics"
_QUEUES = ("consumequeue", "consumequeue_ext")
_OVERWRITTEN = ("checkpoint", "timercheck")
"""Small files that are written in place."""
_REPLACED = ("abort", _DELETED, "epochFileCheckpoint", ".json", TOPIC_JOURNAL)
"""Ends of the names of files that change seldom: another modification time means another content."""
_LOG_STATE = ("commitlog", "epochFileCheckpoint", "reopen.json", "aside", "cut")
"""Names that change when a slave truncates or replaces its log."""

_Identities: TypeAlias = "dict[str, tuple[int, int]]"
_TopicTable: TypeAlias = "tuple[tuple[int, int] | None, tuple[int, int] | None]"
"""The identities of `topics.json` and of its journal."""


class SourceState(StrEnum):
    """Whose directory it is at the moment."""

    RUNNING = "running"
    STOPPED = "stopped"
    KILLED = "killed"


class Snapshot(NamedTuple):
    """What was copied."""

    state: SourceState
    """Of the source."""
    log_start: int
    log_end: int
    """End of the records if the broker was running, else of the last file."""
    files: int
    bytes: int
    """Bytes copied; holes of files are not counted."""


class SnapshotFailed(Exception):
    """No snapshot was made, and nothing is left of it.

    Attributes:
        what: failed.
        reason: why, or None.
        remedy: what to do.
    """

    def __init__(self, what: str, reason: str | None, remedy: str) -> None:
        super().__init__(what)
        self.what, self.reason, self.remedy = what, reason, remedy


class _Changed(Exception):
    """The source has changed in a way that needs another pass."""


def take_snapshot(
    root: Path, target: Path, log_dirs: Sequence[Path] = (), progress: Progress = no_progress
) -> Snapshot:
    """Copy a store directory to a new directory. Blocks.

    Args:
        log_dirs: directories of the log, if not `commitlog`; the copy has one.
        progress: receives how many bytes are copied.

    Raises:
        SnapshotFailed, OSError: the source is unchanged, and the target does not exist.
    """
    root, target = root.resolve(), target.absolute()
    log_dirs = [path.resolve() for path in log_dirs] or [root / _LOG_DIR]
    partial = _make_partial(root, target, log_dirs)
    try:
        snapshot = _Copying(root, partial, log_dirs, progress).run()
        _sync_tree(partial)
        (partial / _LOG_DIR / INCOMPLETE).unlink()
        sync_directory(partial / _LOG_DIR)
        os.rename(partial, target)
        sync_directory(target.parent)
    except BaseException as error:
        free = shutil.disk_usage(target.parent).free
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and is_no_space(error):
            needed = _allocated(root, log_dirs)
            raise SnapshotFailed(
                f"there is no room for a snapshot at {target}",
                f"{root} has {needed} bytes; when the copy failed, {free} bytes were free (or a quota was reached)",
                "--to a directory on a larger disk",
            ) from error
        raise
    return snapshot


def _make_partial(root: Path, target: Path, log_dirs: Sequence[Path]) -> Path:
    parent = target.parent.resolve()
    for source in (root, *log_dirs):
        if source in (parent, *parent.parents):
            raise SnapshotFailed(
                f"{target} is inside the store", f"{source} is part of it", "--to a directory somewhere else"
            )
    partial = target.with_name(f"{target.name}.partial")
    if os.path.lexists(target):
        raise SnapshotFailed(
            f"{target} exists", "a snapshot makes a new directory", "--to another name, or move it away"
        )
    try:
        partial.mkdir(mode=0o700)
    except FileExistsError:
        raise SnapshotFailed(
            f"{partial} exists",
            "another snapshot is being taken there, or was killed",
            f"if none is running: rm -r {partial}",
        ) from None
    except FileNotFoundError:
        raise SnapshotFailed(
            f"there is no directory {target.parent}", "is its disk mounted?", f"mkdir -p {target.parent}"
        ) from None
    return partial


class _Copying:
    def __init__(self, root: Path, copy: Path, log_dirs: Sequence[Path], progress: Progress) -> None:
        self._root = root
        self._copy = copy
        self._log_dirs = log_dirs
        self._progress = progress
        self._lock = DirectoryLock(root / "lock", AbortMarker(root / "abort"))
        self._total = _allocated(root, log_dirs)
        self._bytes = self._files = 0

    def run(self) -> Snapshot:
        reason = ""
        for number in range(PASSES):
            if number:
                time.sleep(PASS_INTERVAL_S)
            try:
                return self._pass()
            except _Changed as change:
                reason = str(change)
        raise SnapshotFailed(
            f"{self._root} changed during each of {PASSES} attempts to copy it",
            f"last: {reason}",
            "run it again when the broker neither starts nor stops",
        )

    def _pass(self) -> Snapshot:
        for path in self._copy.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._bytes = self._files = 0
        self._make_directory(self._root, self._copy)
        self._make_directory(self._log_dirs[0], self._copy / _LOG_DIR)
        (self._copy / _LOG_DIR / INCOMPLETE).touch()

        before, deleted = _identities(self._root), self._deleted_topics(self._root)
        state = self._state_of_source()
        self._copy_files_of_root()
        mark = valid_mark(self._copy)
        if state is SourceState.RUNNING and mark is None:
            raise SnapshotFailed(
                f"{self._root} is in use, but not by a broker of Reput",
                f"{self._root / 'checkpoint'} is not as a running one writes it",
                "stop the other broker, then run the command again",
            )
        for name in self._directories():
            self._copy_directory(Path(name))
        end = self._copy_tables_and_find_end(mark if state is SourceState.RUNNING else None)
        for topic, offset in self._deleted_topics(self._copy).items():
            if deleted.get(topic) != offset:
                for name in _QUEUES:
                    shutil.rmtree(self._copy / name / topic, ignore_errors=True)
        self._check_unchanged(before, mark)
        log_start, log_end = self._copy_log(end)
        if mark is not None and log_end < mark.flushed_offset:
            raise SnapshotFailed(
                f"the log in {', '.join(map(str, self._log_dirs))} ends at offset {log_end}, but had been flushed up "
                f"to {mark.flushed_offset}",
                "parts of it are somewhere else, or it is damaged",
                "--commit-log-dir for each directory of store.commit_log_dirs; or stop the broker and run "
                f"reput store verify {self._root}",
            )
        self._check_unchanged(before, None, None if end is None else _LOG_STATE)
        return Snapshot(state, log_start, log_end, self._files, self._bytes)

    def _state_of_source(self) -> SourceState:
        has_abort = (self._root / "abort").exists()
        if not self._lock.is_owned():
            return SourceState.KILLED if has_abort else SourceState.STOPPED
        if not has_abort:
            raise _Changed("it is locked and has no file `abort`: a broker starts, or a tool works on it")
        return SourceState.RUNNING

    def _check_unchanged(
        self, before: _Identities, mark: FlushMark | None, names: Collection[str] | None = None
    ) -> None:
        now = _identities(self._root)
        known = (before.keys() | now.keys()) - {_DELETED}
        changed = {name for name in known if before.get(name) != now.get(name)}
        if names is not None:
            changed &= {*names, "."}
        if changed:
            raise _Changed(f"{', '.join(sorted(changed))} was created, replaced or removed")
        if mark is not None:
            found = valid_mark(self._root)
            if (
                found is None
                or found.flushed_offset < mark.flushed_offset
                or (found.queues_offset < mark.queues_offset)
            ):
                raise _Changed("its checkpoint claims less than before: a start rebuilds queues")

    # -- everything but the log ----------------------------------------------------------------------------

    def _copy_files_of_root(self) -> None:
        names = [entry.name for entry in os.scandir(self._root) if entry.is_file() and not _is_left_out(entry.name)]
        for name in sorted(names, key=lambda name: (name != "checkpoint", name)):
            with suppress(FileNotFoundError):  # which `_check_unchanged` notices
                self._copy_file(self._root / name, self._copy / name)

    def _directories(self) -> list[str]:
        """Names of the directories that are copied before the tables."""
        return sorted(
            entry.name
            for entry in os.scandir(self._root)
            if entry.is_dir()
            and not _is_left_out(entry.name)
            and entry.name not in _WITH_TABLES
            and Path(entry.path).resolve() not in self._log_dirs
        )

    def _deleted_topics(self, root: Path) -> dict[str, int]:
        deleted = DeletedTopics(root / _DELETED)
        deleted.load()
        return dict(deleted.items())

    def _copy_directory(self, name: Path) -> None:
        """Copy a directory below the root, its newest file first."""
        source, target = self._root / name, self._copy / name
        for _ in range(_TRIES):
            try:
                entries = sorted(os.scandir(source), key=lambda entry: entry.name, reverse=True)
            except FileNotFoundError:  # its topic is being deleted
                return
            self._make_directory(source, target)
            try:
                for entry in entries:
                    if entry.name == DELETED_DIR:
                        continue
                    if entry.is_dir():
                        self._copy_directory(name / entry.name)
                    elif not _is_transient(entry.name):
                        self._copy_file(source / entry.name, target / entry.name)
                return
            except FileNotFoundError:  # the oldest file has expired
                continue
        raise _Changed(f"files of {source} disappeared while they were copied")

    def _copy_tables_and_find_end(self, mark: FlushMark | None) -> int | None:
        """Copy tables, timer log and stagings; return the end of the log's records, None without a mark.

        The topics and those deleted are those of the end, and the stagings are there that a batch decided before the
        end needs.
        """
        staging = self._root / "staging"
        for _ in range(_TRIES):
            deleted = _identities(self._root).get(_DELETED)
            with suppress(FileNotFoundError):
                self._copy_file(self._root / _DELETED, self._copy / _DELETED)
            topics = self._copy_config()
            self._copy_directory(Path("timerlog"))
            with ExitStack() as opened:
                stagings = _identities(staging)
                try:
                    fds = {name: opened.enter_context(_opened(staging / name)) for name in stagings if name != "."}
                except FileNotFoundError:
                    continue
                end = None if mark is None else self._find_end(mark)
                if (
                    _identities(staging) != stagings
                    or self._topics() != topics
                    or _identities(self._root).get(_DELETED) != deleted
                ):
                    continue
                if fds:
                    self._make_directory(staging, self._copy / "staging")
                for name, fd in fds.items():
                    self._copy_opened(fd, self._copy / "staging" / name)
                return end
        raise _Changed("topics or stagings were created or deleted all the time")

    def _copy_config(self) -> _TopicTable:
        """Copy the tables as they were at one moment; return the identity of the table of topics."""
        source = self._root / "config"
        for _ in range(_TRIES):
            before = _identities(source)
            shutil.rmtree(self._copy / "config", ignore_errors=True)
            self._copy_directory(Path("config"))
            if _identities(source) == before:
                return before.get("topics.json"), before.get(TOPIC_JOURNAL)
        raise _Changed(f"files of {source} were replaced all the time")

    def _topics(self) -> _TopicTable:
        found = _identities(self._root / "config")
        return found.get("topics.json"), found.get(TOPIC_JOURNAL)

    # -- the log -------------------------------------------------------------------------------------------

    def _log_files(self) -> list[tuple[str, Path]]:
        """Names and paths of the files in the log's directories, oldest first."""
        files: dict[str, Path] = {}
        for directory in self._log_dirs:
            for entry in list(os.scandir(directory)) if directory.is_dir() else ():
                if entry.is_dir() or _is_transient(entry.name):
                    continue
                twin = files.get(entry.name)
                # A file that could not be created in one directory and was created in another.
                if twin is not None and holds_only_zeros(Path(entry.path), entry.stat().st_size):
                    continue
                if twin is not None and not holds_only_zeros(twin, twin.stat().st_size):
                    raise SnapshotFailed(
                        f"{entry.path} and {twin} are the same part of the log",
                        "only one can be right",
                        "move the wrong one away",
                    )
                files[entry.name] = Path(entry.path)
        return sorted(files.items())

    def _find_end(self, mark: FlushMark) -> int:
        """Return the log offset where the valid records end now."""
        for name, path in reversed(self._log_files()):
            if not name.isdecimal():
                continue
            with suppress(FileNotFoundError), _opened(path) as fd:
                size = os.fstat(fd).st_size
                if not holds_only_zeros(path, size):
                    start = int(name)
                    return start + _end_of_records(fd, max(0, mark.flushed_offset - start), size)
        return 0

    def _copy_log(self, end: int | None) -> tuple[int, int]:
        """Copy the log, its newest file first; return where the copy begins and ends.

        With an `end`, files that begin there or later are left out, and what follows it in its file is zeros.
        """
        files = self._log_files()
        log_start = log_end = 0
        if end is not None:
            files = [(name, path) for name, path in files if name.isdecimal() and int(name) < end]
            log_start = log_end = end
        for number, (name, path) in reversed([*enumerate(files)]):
            try:
                with _opened(path) as fd:
                    stop = None if end is None or not name.isdecimal() else end - int(name)
                    self._copy_opened(fd, self._copy / _LOG_DIR / name, stop)
                    size = os.fstat(fd).st_size
            except FileNotFoundError:
                if any(older.exists() for _, older in files[:number]):
                    raise _Changed(f"{path} disappeared, and older files of the log are there") from None
                break  # expired, and so are all before it
            if name.isdecimal():
                log_start = int(name)
                log_end = max(log_end, log_start + size) if end is None else end
        return log_start, log_end

    # -- files ---------------------------------------------------------------------------------------------

    def _make_directory(self, source: Path, target: Path) -> None:
        """Make a directory, which may exist, with the mode and owner of its source."""
        target.mkdir(mode=0o700, exist_ok=True)
        try:
            status = source.stat()
        except FileNotFoundError:  # its topic is being deleted, or it was never made
            status = self._root.stat()
        target.chmod(0o700 | (status.st_mode & 0o777))
        if os.geteuid() == 0:
            os.chown(target, status.st_uid, status.st_gid)

    def _copy_file(self, source: Path, target: Path) -> None:
        with _opened(source) as fd:
            self._copy_opened(fd, target)

    def _copy_opened(self, fd: int, target: Path, stop: int | None = None) -> None:
        """Copy an open file up to `stop`, which keeps its length, holes, times, mode and owner."""
        status = os.fstat(fd)
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if target.name in _OVERWRITTEN:
                write_all(copy, _settled(fd), 0, target)
            else:
                os.ftruncate(copy, status.st_size)
                stop = status.st_size if stop is None else min(stop, status.st_size)
                for begin, end in stretches_of_data(fd, 0, stop):
                    for position in range(begin, end, _CHUNK_BYTES):
                        size = min(_CHUNK_BYTES, end - position)
                        _copy_bytes(fd, copy, position, size, target)
                        self._bytes += size
                        self._progress(self._bytes, max(self._total, self._bytes))
            os.fchmod(copy, status.st_mode & 0o777)
            if os.geteuid() == 0:
                os.fchown(copy, status.st_uid, status.st_gid)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(copy)
        self._files += 1


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _copy_bytes(source: int, target: int, position: int, size: int, path: Path) -> None:
    """Copy a range; in the kernel, by reference where the file system can."""
    end = position + size
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):  # not between these file systems, or there is no room: what follows will say
            while position < end:
                done = os.copy_file_range(source, target, end - position, position, position)
                if not done:
                    return  # the file has become shorter
                position += done
    while position < end:
        data = os.pread(source, min(1 << 20, end - position), position)
        if not data:
            return
        write_all(target, data, position, path)
        position += len(data)


def _settled(fd: int) -> bytes:
    """Read a small file that is overwritten in place, until two readings agree."""
    data = os.pread(fd, 1 << 16, 0)
    while data != (again := os.pread(fd, 1 << 16, 0)):
        data = again
    return data


def _end_of_records(fd: int, position: int, size: int) -> int:
    """Return where the records of a log file end that follow a record's boundary."""
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        while position < size:
            scan = scan_record(view, position, size, check_crc=True)
            if scan.status is ScanStatus.BLANK:
                return size
            if scan.status is not ScanStatus.RECORD:
                break
            position += scan.size
    return position


def _is_transient(name: str) -> bool:
    """Whether a file is replaced or renamed before anything relies on it."""
    return name.endswith((".tmp", ".new"))


def _is_left_out(name: str) -> bool:
    return name in _LEFT_OUT or name.startswith("repair-") or _is_transient(name)


def _identities(directory: Path) -> _Identities:
    """Inodes of a directory, as `.`, and of what is in it, the latter with times of files that are `_REPLACED`.

    The inode alone would not do: a second replacement may get that of the file before.
    """
    found: _Identities = {}
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        found["."] = directory.stat().st_ino, 0
        for entry in entries:
            if not _is_transient(entry.name):
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    time_ns = status.st_mtime_ns if entry.name.endswith(_REPLACED) else 0
                    found[entry.name] = status.st_ino, time_ns
    return found


def _allocated(root: Path, log_dirs: Sequence[Path]) -> int:
    """Bytes that the files of a store take on the disk."""
    total = 0
    for directory in {root, *log_dirs}:
        for parent, _, names in os.walk(directory):
            for name in names:
                with suppress(OSError):
                    total += 512 * os.stat(os.path.join(parent, name)).st_blocks
    return total


def _sync_tree(directory: Path) -> None:
    """Make everything below a directory durable."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            with _opened(Path(parent, name)) as fd:
                os.fsync(fd)
        sync_directory(parent)
