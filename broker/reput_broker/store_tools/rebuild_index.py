"""Make the key index anew from the log, with the classes that make it in the running broker."""

from __future__ import annotations

from pathlib import Path

from reput_broker.store.checkpoint import StoreCheckpoint
from reput_broker.store.dispatch import DispatchBatch
from reput_broker.store.errors import ForeignFile
from reput_broker.store.index.service import IndexService
from reput_broker.store_tools.index_sizes import index_sizes
from reput_broker.store_tools.layout import StoreLayout
from reput_protocol.counted import counted

_YEAR_9999_MS = 253_370_764_800_000


class IndexSizesUnknown(ValueError):
    """Nothing says how many slots and entries an index file has."""


class IndexRebuild:
    """The index files, named by the store times of the records that they begin with."""

    def __init__(self, layout: StoreLayout, temporary: Path) -> None:
        """Begin.

        Raises:
            IndexSizesUnknown: neither the caller nor a file tells the sizes.
            ForeignFile: something that is no index file lies among them, and would be removed.
        """
        self.directory = layout.index_dir
        sizes = index_sizes(layout)
        if sizes is None:
            raise IndexSizesUnknown(f"no file in {self.directory} tells how many slots and entries it has")
        index_files = layout.index_files()
        for path in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            if path not in index_files:
                raise ForeignFile(path, "it is no index file; move it away")
        self._index = IndexService(temporary, *sizes, clock_ms=lambda: self._time_ms)
        self._time_ms = 0
        self._digest = 0
        self._position = 0

    def dispatch(self, batch: DispatchBatch) -> None:
        """Insert the keys of a batch."""
        self._time_ms = min(max(self._time_ms, batch.rows.last_store_timestamp_ms), _YEAR_9999_MS)
        self._index.dispatch(batch)
        self._index.flush_full_files()

    def finish(self) -> str:
        """Insert what is left, and bring all of it to the disk."""
        self._index.settle()
        self._index.flush_full_files()
        self._index.flush()
        self._digest, self._position = self._index.digest, self._index.position
        files = self._index.files
        return f"{counted(sum(file.header.next_entry - 1 for file in files), 'key')} in {counted(len(files), 'file')}"

    def close(self) -> None:
        """Close all files."""
        self._index.close()

    def note(self, checkpoint: StoreCheckpoint, _end_offset: int, *, stopped: bool) -> None:
        """Say which files are full, and after an orderly stop, that the index is complete."""
        checkpoint.index_msg_timestamp_ms = self._index.full_until_ms
        if stopped and checkpoint.mark is not None:
            checkpoint.mark = checkpoint.mark._replace(index_offset=self._position, index_digest=self._digest)
