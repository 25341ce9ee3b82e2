"""Make what is derived from the log anew, beside what is there, and put it in its place at the end.

Each new directory is complete and on the disk before it takes the place of the old one, in one step
(`directory_swap.py`); then the checkpoint says what is there now, so that the next start has nothing to do.

Being killed leaves what was there, or what was made. Beside it there may be directories `rebuild-N.tmp`, which nobody
minds and the next rebuild removes. If queues or index are new and the checkpoint does not say so yet, a start compares
the queues with all of the log, and makes the index anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from reput_broker.store.checkpoint import StoreCheckpoint
from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.dispatch import DispatchBatch, rows_by_queue
from reput_broker.store.errors import FlushFailed, ForeignFile
from reput_broker.store.file_io import sync_directory
from reput_broker.store.opening.directory_swap import put_back, replaced, swap
from reput_broker.store.options import DELAY_LEVELS_MS
from reput_broker.store_tools.layout import StoreLayout
from reput_broker.store_tools.log_reader import LogBatch, LogEnd, read_log
from reput_broker.store_tools.rebuild_index import IndexRebuild
from reput_broker.store_tools.rebuild_queues import QueuesRebuild
from reput_broker.store_tools.report import Progress, no_progress
from reput_protocol.dispatch_rows import scan_dispatch


class Derived(Protocol):
    """Something that is derived from the log, while it is made anew in a directory of its own."""

    directory: Path
    """Where it belongs in the end."""

    def dispatch(self, batch: DispatchBatch) -> None:
        """Take the next batch of the log."""

    def finish(self) -> str:
        """Bring everything to the disk, and say what was made."""

    def close(self) -> None:
        """Close all files."""

    def note(self, checkpoint: StoreCheckpoint, end_offset: int, *, stopped: bool) -> None:
        """Let the checkpoint say what is in the directory now.

        Args:
            checkpoint: as it was before.
            end_offset: where the log ends.
            stopped: whether the last broker stopped in order; if not, the next start recovers.
        """


DerivedFactory = Callable[[StoreLayout, Path], Derived]
"""Begins to make one kind anew: gets the layout and the empty directory to make it in."""

Fill = Callable[[StoreLayout, Sequence[Derived], DeletedTopics], None]
"""Hands the log out to what is made, in another way than `hand_out`."""

REBUILDERS: dict[str, DerivedFactory] = {"queues": QueuesRebuild, "index": IndexRebuild}
"""Everything that can be made anew, by the name of its option."""


def rebuild(
    layout: StoreLayout,
    end_offset: int,
    kinds: Sequence[DerivedFactory],
    *,
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    progress: Progress = no_progress,
    fill: Fill | None = None,
) -> list[str]:
    """Make what is derived from the log anew, and return what was made.

    Args:
        layout: the directory, which the caller has locked as its owner, and whose log is sound.
        end_offset: where the log ends.
        kinds: what to make.
        delay_levels_ms: the delay levels of the broker that wrote the log.
        progress: told how many bytes of the log are done.
        fill: fills what is made from the log; by default `hand_out` does.

    Raises:
        ForeignFile: something is in the way that is no part of a store; nothing was changed.
        DiskFull, FlushFailed, OSError: each kind is as it was before, or as it was made. What of that could not be
            noted in the checkpoint the next start finds out. After FlushFailed the directories `rebuild-N.tmp` stay:
            the disk may know one of them by the name of the kind.
    """
    if put_back(layout.root):
        layout = StoreLayout(layout.root, layout.log.directories, layout.geometry)
    deleted = DeletedTopics(layout.root / "deletedTopics")
    deleted.load()
    checkpoint = StoreCheckpoint(layout.root / "checkpoint")
    checkpoint.load()
    temporaries = [layout.root / f"rebuild-{number}.tmp" for number in range(len(kinds))]
    made: list[Derived] = []
    try:
        _remove_leftovers(layout)
        try:
            for factory, temporary in zip(kinds, temporaries, strict=True):
                temporary.mkdir()
                made.append(factory(layout, temporary))
                if made[-1].directory.is_symlink():
                    raise ForeignFile(
                        made[-1].directory, "it is a symbolic link, and a directory would take its place"
                    )
            if fill is None:
                hand_out(layout, end_offset, made, deleted, delay_levels_ms, progress)
            else:
                fill(layout, made, deleted)
            words = [derived.finish() for derived in made]
        finally:
            for derived in made:
                derived.close()
        for derived, temporary in zip(made, temporaries, strict=True):
            sync_directory(temporary)
            swap(temporary, derived.directory)
    except FlushFailed:
        # It is not certain on the disk which directory has which name, and none may go. To sync again proves nothing:
        # the system tells of a failed sync once.
        raise
    except BaseException:
        _remove(layout.root, temporaries)
        raise
    _remove(layout.root, temporaries)
    before = (checkpoint.mark, checkpoint.index_msg_timestamp_ms)
    for derived in made:
        derived.note(checkpoint, end_offset, stopped=not layout.abort.exists())
    try:
        if before != (checkpoint.mark, checkpoint.index_msg_timestamp_ms):
            checkpoint.flush()
    finally:
        checkpoint.close()
    return words


def _remove(root: Path, temporaries: Sequence[Path]) -> None:
    """Remove what was not needed, or has been replaced, once the names are certain on the disk."""
    sync_directory(root)
    for temporary in temporaries:
        shutil.rmtree(temporary, ignore_errors=True)


def hand_out(
    layout: StoreLayout,
    end_offset: int,
    kinds: Sequence[Derived],
    deleted: DeletedTopics,
    levels_ms: Sequence[int],
    progress: Progress,
) -> None:
    """Hand the log out, batch by batch, as reput does."""
    for part in read_log(layout.log):
        if isinstance(part, LogEnd) or (isinstance(part, LogBatch) and part.offset >= end_offset):
            break
        if not isinstance(part, LogBatch):
            continue
        data = part.data[: min(part.end, end_offset - part.offset)]
        rows = scan_dispatch(data, base_physical_offset=part.offset, levels_ms=levels_ms)
        assert rows.consumed == len(data), "the log was found sound"
        queues = rows_by_queue(rows, deleted if len(deleted) else None)
        batch = DispatchBatch(part.offset, part.offset + len(data), data, rows, queues)
        for derived in kinds:
            derived.dispatch(batch)
        progress(part.offset + len(data) - layout.log.min_offset, end_offset - layout.log.min_offset)


def _remove_leftovers(layout: StoreLayout) -> None:
    """Remove what a rebuild left that was killed: new directories that are not whole, old ones that had given way."""
    sync_directory(layout.root)
    old = [replaced(place) for place in (layout.consume_queue_dir, layout.index_dir)]
    for directory in (*layout.root.glob("rebuild-*.tmp"), *old):
        if directory.is_dir():
            shutil.rmtree(directory)
