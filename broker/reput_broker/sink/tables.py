"""What is on the disk about sinks, which a start reads: stagings, the intent, the last batch of each query."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from reput_broker.sink.batches import CommittedBatches
from reput_broker.sink.intent import IntentFile
from reput_broker.sink.staging_table import StagingTable
from reput_broker.tables.table_saver import TableSaver, save_now


class SinkTables:
    """What is on the disk about sinks: stagings, the intent, the last batch of each query."""

    def __init__(
        self,
        data_dir: Path,
        clock_ms: Callable[[], int],
        on_saved: Callable[[str, Exception | None], None],
    ) -> None:
        directory = data_dir / "staging"
        self.staging = StagingTable(directory, trio.current_time)
        self.intents = IntentFile(directory)
        self.batches = CommittedBatches(data_dir / "config" / "sinkBatches.json", clock_ms)
        self.saver = TableSaver(self.batches, partial(on_saved, "sinkBatches"))
        self.clock_ms = clock_ms

    def load(self, now_s: float) -> None:
        """Read all of it; stagings are kept for their time from `now_s` on, by trio's clock. Blocks.

        Raises:
            ConfigFileDamaged: the table of batches cannot be used.
            StoreDamaged: the intent cannot be used.
            OSError: something cannot be read.
        """
        self.batches.load()
        intent = self.intents.read()
        self.staging.load(now_s, () if intent is None else intent.staging_ids)

    def persist(self) -> None:
        """Write the table of batches if it has changed. Blocks. Raises OSError; the markers hold it all the same."""
        save_now(self.batches)
