"""The job `archive` to a Delta or Iceberg table: the run from the first batch to the last line."""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

import pyarrow as pa

from reput_pipeline.archives.plan import gone_lines
from reput_pipeline.jobs.broker_wait import BrokerWait
from reput_pipeline.jobs.outcomes import Outcome
from reput_pipeline.jobs.run import JobRun
from reput_pipeline.lake.copying import Copying, Stopping
from reput_pipeline.lake.table import LakeTable
from reput_pipeline.source.options import SourceOptions
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted

_TIDY_EVERY_S: Final = 3600.0


def copy_to_table(
    run: JobRun,
    table: LakeTable,
    schema: pa.Schema,
    options: SourceOptions,
    *,
    as_broker: str,
    same_source: bool,
    follow_s: float | None,
    batches: int | None,
    most: int,
    keep_s: float | None,
) -> Outcome:
    """Copy messages to a table until the end of the topics or, if they are followed, until a signal.

    Args:
        run: of the job.
        table: the table.
        schema: of the rows.
        options: of the source.
        as_broker: the broker whose directory is read; empty if it is not given, or for brokers.
        same_source: whether the table's topics are of this source, under another address.
        follow_s: seconds to wait for new messages; None: end when there are none.
        batches: most batches.
        most: approximate number of messages of a batch.
        keep_s: age of versions that are deleted; None: none are.

    Raises:
        Exception: as `Copying.next` and `LakeTable.tidy`.
    """
    copying = Copying(table, options, schema, as_broker=as_broker, same_source=same_source)
    stopping = Stopping()
    broker = BrokerWait(run, waits=follow_s is not None)
    lost = 0
    tidied_at = monotonic()
    with stopping.signals():
        while not stopping.requested and (batches is None or copying.batches < batches):
            since = monotonic()
            found = broker.attempt(lambda: copying.next(most))
            if found is None:
                stopping.wait(broker.pause_s(follow_s or 0.0))
                continue
            rows, has_more = found
            for line in gone_lines(copying.lost):
                run.note(line)
            lost += sum(part.size for part in copying.lost)
            if rows:
                run.note(f"batch {copying.batches}: {counted(rows, 'message')}, {monotonic() - since:.1f} s")
            if has_more:
                continue
            if follow_s is None:
                break
            if keep_s is not None and monotonic() - tidied_at >= _TIDY_EVERY_S:
                run.note(table.tidy(keep_s))
                tidied_at = monotonic()
            stopping.wait(follow_s)
    if stopping.requested:
        run.note("interrupted; the table is consistent, and the next run continues from there")
    elif keep_s is not None:
        run.note(table.tidy(keep_s))
    figures: dict[str, Any] = {
        "table": table.where,
        "source": options.where,
        "batches": copying.batches,
        "rows": copying.rows,
        "lost": lost,
        **table.figures(),
    }
    is_cut_short = stopping.requested and follow_s is None
    return Outcome(figures, ExitCode.INTERRUPTED if is_cut_short else ExitCode.DONE)
