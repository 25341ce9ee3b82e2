"""Copies of staged blocks in the log, from which another master completes a batch.

Of a broker whose master is elected, the stagings of a batch are copied into the topic `rmq_sys_reput_staged` before the
batch is decided. The log of a slave is a prefix of the master's: with a message of the batch it has the copies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

import trio

from reput_broker.staging.intent import CopyPlace, Intent, StagingFacts
from reput_broker.staging.publisher import Pace, TrailingSyncs
from reput_broker.staging.queue_records import records_from
from reput_broker.staging.staging_file import StagingFile
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.file_io import make_directories
from reput_broker.tenure import Core
from reput_protocol.names import STAGED_TOPIC
from reput_protocol.record.record import Record

_QUEUE: Final = 0
_READ_BYTES: Final = 4 << 20
_RECORD_BYTES: Final = 256
"""A record without its body, at most."""


class StagedCopies:
    """Writes the copies, and restores stagings from them.

    Args:
        piece_max: upper bound for the bytes of a record.
    """

    def __init__(self, core: Core, piece_max: int) -> None:
        self._store = store = core.store
        self._appender = core.puts.appender
        self._flushed = core.puts.progress.flushed
        self._piece_max = min(piece_max, store.options.message_bytes_max)

    async def write(self, files: Sequence[StagingFile]) -> CopyPlace | None:
        """Append the blocks of stagings; return where they begin in the log, None if there are none.

        Raises:
            Refusal: the store accepts no more now.
            OSError: a staging cannot be read.
        """
        pace = Pace(self._store.stats, time.monotonic, self._piece_max)
        syncs = TrailingSyncs(self._flushed)
        begins: CopyPlace | None = None
        for file in files:
            for start in range(0, file.size, _READ_BYTES):
                data = memoryview(await trio.to_thread.run_sync(file.raw, start, _READ_BYTES))
                while data:
                    piece, data = data[: pace.piece_bytes], data[pace.piece_bytes :]
                    record = self._record(piece)
                    result = await self._appender.append_or_refuse(
                        len(piece) + _RECORD_BYTES, partial(self._store.put_record, record), STAGED_TOPIC
                    )
                    begins = begins or CopyPlace(result.queue_offset, result.physical_offset)
                    await trio.lowlevel.checkpoint()
                    pace.others_put(own=1)
                    await syncs.appended(result.end_offset, len(piece), pace.sync_bytes)
        return begins

    def _record(self, data: memoryview) -> Record:
        host = self._store.options.host
        return Record(
            STAGED_TOPIC,
            bytes(data),
            queue_id=_QUEUE,
            born_timestamp_ms=self._store.last_put_ms,
            born_host=host,
            store_host=host,
        )

    async def restore(self, intent: Intent, directory: Path) -> list[StagingFile]:
        """Write the stagings of a batch into `directory` again; return them, ended.

        Raises:
            StoreDamaged: the log does not hold all of their blocks.
            StoreError, OSError: the log cannot be read, or a file not be written.
        """
        place = intent.copies
        assert place is not None, "there are copies"
        await trio.to_thread.run_sync(make_directories, directory)
        rest, files = b"", []
        async with aclosing(records_from(self._store, STAGED_TOPIC, _QUEUE, place.queue_offset)) as records:
            for staging in intent.stagings:
                file = await trio.to_thread.run_sync(_create_again, directory, intent, staging)
                while file.size < staging.size:
                    if not rest:
                        record = await anext(records, None)
                        if record is None:
                            raise self._damaged(intent)
                        rest = bytes(record.body)
                    wanted = staging.size - file.size
                    await trio.to_thread.run_sync(file.append, rest[:wanted], [])
                    rest = rest[wanted:]
                files.append(await trio.to_thread.run_sync(self._ended, file.path, staging, intent))
        return files

    def _ended(self, path: Path, staging: StagingFacts, intent: Intent) -> StagingFile:
        file = StagingFile.load(path)
        if file is None or (file.messages, file.checksum) != (staging.messages, staging.checksum):
            raise self._damaged(intent)
        file.end()
        return file

    def _damaged(self, intent: Intent) -> StoreDamaged:
        return StoreDamaged(
            self._store.options.data_dir / "commitlog",
            -1 if intent.copies is None else intent.copies.physical_offset,
            f"it lacks staged blocks of batch {intent.batch_id} of query {intent.query_id}, which is decided",
            "check the disk",
        )


def _create_again(directory: Path, intent: Intent, staging: StagingFacts) -> StagingFile:
    key = intent.key_of(staging)
    (directory / StagingFile.name_of(key)).unlink(missing_ok=True)
    return StagingFile.create(directory, key, bytes.fromhex(staging.born_host))
