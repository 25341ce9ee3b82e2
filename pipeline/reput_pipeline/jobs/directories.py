"""Directories of jobs: a store directory with its lock, and a new archive's directory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from reput_broker.store.base.errors import LogDirectoryLocked, StoreLocked
from reput_broker.store.opening.lock import AbortMarker, DirectoryLock
from reput_broker.tools.verify_parts import Directory
from reput_client.arrow.urls import directory_of, without_secret
from reput_client.errors import NotAStore
from reput_pipeline.archives.manifests import Archive
from reput_pipeline.jobs.run import ArgumentError, JobFailed
from reput_pipeline.spark.errors import NotAnArchive
from reput_protocol.record.delays import parse_delay_levels
from reput_protocol.store.layout import Geometry

_Function = TypeVar("_Function", bound=Callable[..., Any])


def directory_arguments(function: _Function) -> _Function:
    """Add the arguments of a store directory, which the job receives as `directory`."""

    @click.option("--path", required=True, metavar="DIR", help="The store directory, at this path on every executor.")
    @click.option(
        "--commit-log-dir",
        "commit_log_dirs",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Directory of the log.  [default: DIR/commitlog] Repeatable.",
    )
    @click.option(
        "--commit-log-file-size", type=click.IntRange(0), default=0, help="In bytes.  [default: as the files]"
    )
    @click.option(
        "--consume-queue-entries", type=click.IntRange(0), default=0, help="Units in a file.  [default: as the files]"
    )
    @click.option("--index-slots", type=click.IntRange(0), default=0, help="Hash slots.  [default: as the files]")
    @click.option("--index-entries", type=click.IntRange(0), default=0, help="Entries.  [default: as the files]")
    @click.option(
        "--delay-levels",
        metavar="'1s 5s ...'",
        help="Delay levels of the broker that wrote DIR.  [default: RocketMQ's 18]",
    )
    @functools.wraps(function)
    def with_directory(
        *given: Any,
        path: str,
        commit_log_dirs: tuple[Path, ...],
        commit_log_file_size: int,
        consume_queue_entries: int,
        index_slots: int,
        index_entries: int,
        delay_levels: str | None,
        **arguments: Any,
    ) -> Any:
        try:
            levels = None if delay_levels is None else tuple(parse_delay_levels(delay_levels))
        except ValueError as error:
            raise ArgumentError("--delay-levels", str(error)) from None
        root = directory_of(path).absolute()
        for log_dir in commit_log_dirs:
            if not log_dir.is_dir():
                raise ArgumentError("--commit-log-dir", f"there is no directory {log_dir}")
        if not root.is_dir():
            raise NotAStore(path, "there is no such directory")
        if not (root / "commitlog").is_dir() and not commit_log_dirs:
            raise NotAStore(path, "it has no directory commitlog")
        directory = Directory(
            root,
            tuple(log_dir.absolute() for log_dir in commit_log_dirs),
            Geometry(commit_log_file_size, consume_queue_entries, index_slots, index_entries),
            levels,
        )
        return function(*given, directory=directory, **arguments)

    return with_directory  # type: ignore[return-value]


class _ArchivePlace(click.ParamType[Path]):
    """A local path, or a `file:` URL; a URL of another file system would become a directory of that name."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        try:
            return value if isinstance(value, Path) else directory_of(value)
        except NotAStore:
            self.fail(
                f"this is a local directory, not {without_secret(value)}; only `archive --to` writes to object stores, "
                "and any reader of Parquet reads an archive there",
                param,
                ctx,
            )


ARCHIVE_PLACE: Final = _ArchivePlace()
"""The type of an argument that is the directory of an archive."""


def check_target(archive: Archive) -> None:
    """Check that a new archive can be created in the directory of `--to`.

    Raises:
        ArgumentError: the directory is not empty, or cannot be created.
    """
    try:
        archive.check_new()
    except NotAnArchive as error:
        raise ArgumentError("--to", str(error)) from None


@contextmanager
def locked(directory: Directory, *, to_write: bool = False) -> Iterator[DirectoryLock]:
    """Hold the directory's lock: shared, or reserved, which the caller must `acquire` before any change.

    Raises:
        JobFailed: a broker or another tool has it.
    """
    root = directory.root
    log_dirs = directory.commit_log_dirs or (root / "commitlog",)
    lock = DirectoryLock(root / "lock", AbortMarker(root / "abort"), log_dirs)
    try:
        if to_write:
            lock.reserve()
        else:
            lock.acquire_shared()
        yield lock
    except LogDirectoryLocked as error:
        raise JobFailed(
            f"the log directory {error.path} is in use by another store; try again after that has ended, or on a copy"
        ) from None
    except StoreLocked as error:
        owner = f"process {error.pid}" if error.pid is not None else "another process"
        raise JobFailed(
            f"{root} is in use by {owner}, a broker or a store tool; try again after it has ended, or on a copy"
        ) from None
    finally:
        lock.release()
