"""What a start reads: stagings, and the last batch of each query."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from reput_broker.staging.batches import CommittedBatches
from reput_broker.staging.staging_table import StagingTable
from reput_broker.tables.table_saver import TableSaver


class StagingState:
    """The files, and the tables that hold their content. A master reads the stagings once it has the markers."""

    def __init__(
        self,
        data_dir: Path,
        clock_ms: Callable[[], int],
        on_saved: Callable[[str, Exception | None], None],
    ) -> None:
        directory = data_dir / "staging"
        self.staging = StagingTable(directory, trio.current_time)
        self.batches = CommittedBatches(data_dir / "config" / "sinkBatches.json", clock_ms)
        self.saver = TableSaver(self.batches, partial(on_saved, "sinkBatches"))
        self.clock_ms = clock_ms
