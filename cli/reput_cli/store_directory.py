"""Shared by the `reput store` commands: DIR, options, lock and progress bar."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import SIZE, Settings, output_options
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_broker.store.opening.lock import DirectoryLock
    from reput_broker.tools.verify import Verification
    from reput_protocol.store.layout import Geometry, StoreLayout

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """The paths of a store and the sizes given; 0: derived from the files."""

    root: Path
    commit_log_dirs: tuple[Path, ...]
    commit_log_file_size: int = 0
    consume_queue_entries: int = 0
    index_slots: int = 0
    index_entries: int = 0


class DelayLevelsType(click.ParamType["tuple[int, ...]"]):
    """The delays of RocketMQ's option messageDelayLevel; the values are in ms."""

    name = "levels"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the delays; an invalid one is refused."""
        from reput_protocol.record.delays import parse_delay_levels

        if isinstance(value, tuple):
            return value
        try:
            return parse_delay_levels(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


delay_levels_option = click.option(
    "--delay-levels",
    "delay_levels_ms",
    type=DelayLevelsType(),
    metavar="'1s 5s ...'",
    help="Delay levels of the broker that wrote DIR (messageDelayLevel).  [default: RocketMQ's 18]",
)


directory_argument = click.argument("root", metavar="DIR", type=click.Path(path_type=Path, readable=False))
commit_log_dir_option = click.option(
    "--commit-log-dir",
    "commit_log_dirs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Directory of the log.  [default: DIR/commitlog] Repeatable.",
)


def directory_options(command: _Command) -> _Command:
    """Add DIR and the output options, which the command receives as `directory` and `settings`."""

    @directory_argument
    @commit_log_dir_option
    @click.option(
        "--commit-log-file-size", type=SIZE, default="0", help="Size of a log file.  [default: what the files have]"
    )
    @click.option(
        "--consume-queue-entries",
        type=click.IntRange(0),
        default=0,
        help="Units in a queue file.  [default: what the files have]",
    )
    @click.option(
        "--index-slots",
        type=click.IntRange(0),
        default=0,
        help="Hash slots in an index file.  [default: what fits the files]",
    )
    @output_options
    @functools.wraps(command)
    def with_directory(
        root: Path,
        commit_log_dirs: tuple[Path, ...],
        commit_log_file_size: int,
        consume_queue_entries: int,
        index_slots: int,
        **arguments: Any,
    ) -> Any:
        directory = StoreDirectory(root, commit_log_dirs, commit_log_file_size, consume_queue_entries, index_slots)
        require_store(directory)
        return command(directory=directory, **arguments)

    return with_directory  # type: ignore[return-value]


def require_store(directory: StoreDirectory) -> None:
    """Refuse a directory that is not a store."""
    root = directory.root
    if not root.is_dir():
        raise CommandFailed(f"there is no directory {root}", code=ExitCode.NOT_FOUND)
    if not os.access(root, os.R_OK | os.X_OK):
        owner = root.stat()
        raise CommandFailed(
            f"user id {os.geteuid()} may not read {root}",
            reason=f"it belongs to {owner.st_uid}:{owner.st_gid}, with mode {owner.st_mode & 0o7777:o}",
            remedy=f"run the command as user id {owner.st_uid}",
        )
    if not any((root / name).exists() for name in ("commitlog", "consumequeue", "checkpoint", "config")) and not (
        directory.commit_log_dirs
    ):
        raise CommandFailed(
            f"{root} is not a store directory",
            reason="it has no commitlog, consumequeue, checkpoint or config",
            remedy="the broker's `data_dir`, or RocketMQ's `storePathRootDir`",
            code=ExitCode.NOT_FOUND,
        )


def layout_of(directory: StoreDirectory) -> StoreLayout:
    """Return the files of a store."""
    from reput_protocol.store.layout import StoreLayout

    return StoreLayout(directory.root, directory.commit_log_dirs, _geometry_of(directory))


def _geometry_of(directory: StoreDirectory) -> Geometry:
    from reput_protocol.store.layout import Geometry

    return Geometry(
        directory.commit_log_file_size, directory.consume_queue_entries, directory.index_slots, directory.index_entries
    )


def examined(
    directory: StoreDirectory,
    settings: Settings,
    what: str = "verifying",
    *,
    delay_levels_ms: tuple[int, ...] | None,
    faults_kept: int | None = None,
) -> Verification:
    """Verify a directory whose lock the caller holds; `what` is the text of the progress bar."""
    from reput_broker.tools.report import FAULTS_KEPT
    from reput_broker.tools.verify import Verification

    with progress(settings, what) as report_progress:
        verification = Verification(
            directory.root,
            commit_log_dirs=directory.commit_log_dirs,
            geometry=_geometry_of(directory),
            delay_levels_ms=delay_levels_ms,
            faults_kept=FAULTS_KEPT if faults_kept is None else faults_kept,
            progress=report_progress,
        )
        verification.run()
    return verification


@contextmanager
def locked(directory: StoreDirectory, *, to_write: bool = False) -> Iterator[DirectoryLock]:
    """Hold the directory's lock: shared, or reserved, which the caller must `acquire` before any change."""
    from reput_broker.store.base.errors import LogDirectoryLocked, StoreLocked
    from reput_broker.store.opening.lock import AbortMarker, DirectoryLock

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
        raise CommandFailed(
            f"the log directory {error.path} is in use by another store",
            reason="a broker, or another `reput store`, has it as part of another store directory",
            remedy="run the command again after that has ended, or on a copy of the directory",
        ) from error
    except StoreLocked as error:
        owner = f"process {error.pid}" if error.pid is not None else "another process"
        raise CommandFailed(
            f"{directory.root} is in use by {owner}",
            reason="a broker has it open, or another `reput store` works on it",
            remedy="run the command again after that has ended, or on a copy of the directory",
        ) from error
    finally:
        lock.release()


@contextmanager
def progress(settings: Settings, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal; yields a function of bytes done and total."""
    if settings.quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, no_color=not settings.color),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or 1)
