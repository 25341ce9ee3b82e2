"""Make the ConsumeQueues anew from the log."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from reput_broker.store.checkpoint import StoreCheckpoint
from reput_broker.store.dispatch import DispatchBatch
from reput_broker.store.errors import ForeignFile
from reput_broker.store.file_io import sync_directory
from reput_broker.store.opening.foreign_files import files_below
from reput_broker.store.options import StoreOptions, ignore_event
from reput_broker.store.queue.builder import RecoveringQueueBuilder
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_broker.store.queue.unit import PRE_BLANK_SIZE, UNIT_BYTES
from reput_broker.store_tools.layout import QueueDirectory, StoreLayout
from reput_broker.store_tools.queue_ends import queues_digest
from reput_broker.store_tools.unit_files import OpenFiles, UnitFiles
from reput_broker.store_tools.verify import Verification
from reput_protocol.counted import counted


class QueuesRebuild:
    """The ConsumeQueues."""

    def __init__(self, layout: StoreLayout, temporary: Path) -> None:
        self.directory = layout.consume_queue_dir
        self._layout = layout
        options = StoreOptions(data_dir=layout.root, commit_log_file_size=layout.log.file_size or 1 << 30)
        if layout.queue_file_size:
            options = replace(options, consume_queue_entries=-(-layout.queue_file_size // UNIT_BYTES))
        self._entries = options.consume_queue_entries
        self._table = ConsumeQueueTable(temporary, options)
        self._temporary = temporary
        self._builder = RecoveringQueueBuilder(self._table, from_beginning=True, on_event=ignore_event)

    def dispatch(self, batch: DispatchBatch) -> None:
        """Put the units of a batch."""
        self._builder.dispatch(batch)

    def finish(self) -> str:
        """Keep what the log no longer holds, and bring all of it to the disk."""
        self._table.flush()
        made = self._count()
        kept = self._keep_expired()
        count = len(self._table)
        words = f"{counted(made, 'unit')} in {counted(count, 'queue')}"
        return f"{words}; {_kept_words(kept)}" if kept else words

    def close(self) -> None:
        """Close all files."""
        self._table.close()

    def note(self, checkpoint: StoreCheckpoint, end_offset: int, *, stopped: bool) -> None:
        """Say after an orderly stop that the queues are complete, so that the next start need not compare them."""
        mark = checkpoint.mark
        if stopped and mark is not None:
            layout = StoreLayout(self._layout.root, self._layout.log.directories, self._layout.geometry)
            checkpoint.mark = mark._replace(queues_offset=end_offset, queues_digest=queues_digest(layout))

    def _count(self) -> int:
        return sum(queue.max_queue_offset - queue.min_queue_offset for queue in self._table)

    def _keep_expired(self) -> int:
        """Copy the queues whose messages have all left the log: without them message numbers would begin again at 0."""
        made = {(queue.topic, queue.queue_id) for queue in self._table if queue.has_files}
        files = OpenFiles()
        kept = 0
        try:
            for queue in self._layout.queues:
                if (queue.topic, queue.queue_id) not in made and self._is_expired(queue, files):
                    target = self._temporary / queue.topic / str(queue.queue_id)
                    target.mkdir(parents=True)
                    for file in queue.stream.files:
                        _copy(file.path, target / file.path.name)
                    for directory in (target, target.parent, target.parent.parent):
                        sync_directory(directory)
                    kept += 1
        finally:
            files.close()
        return kept

    def _is_expired(self, queue: QueueDirectory, files: OpenFiles) -> bool:
        units = UnitFiles(queue.stream, files)
        if units.end <= units.first:
            return False
        offset, size, _ = units.read(units.end - 1, 1)[0]
        is_real = 0 < size < PRE_BLANK_SIZE and offset >= 0
        return is_real and offset + size <= self._layout.log.min_offset


def refuse_other_queues(root: Path) -> None:
    """Refuse a directory with queues of a form that this rebuild would not make.

    Raises:
        ForeignFile: naming the first such file. Nothing was changed.
    """
    for name, kind in (
        ("batchconsumequeue", "batch queues (queue.type=BatchCQ)"),
        ("consumequeue_ext", "extended queue entries (enableConsumeQueueExt)"),
    ):
        directory = root / name
        for path in files_below(directory):
            raise ForeignFile(
                path, f"a rebuild does not make {kind}; move {directory} away to go on without them"
            )


def refuse_other_delays(verification: Verification) -> None:
    """Refuse to make queues anew as long as it is a guess when parked messages are due.

    Raises:
        ForeignFile: most units of a queue give other times than RocketMQ's delay levels do. Nothing was changed.
    """
    if verification.other_delays is not None and not verification.delay_levels_given:
        raise ForeignFile(
            verification.other_delays,
            "its messages are due at other times than by RocketMQ's delay levels; name those of the broker that wrote "
            "them with --delay-levels (messageDelayLevel in its configuration)",
        )


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _kept_words(kept: int) -> str:
    queues, were = ("queue", "was") if kept == 1 else ("queues", "were")
    return f"{kept} {queues} whose messages have all left the log {were} kept"
