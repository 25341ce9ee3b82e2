"""What every job has in common: arguments, the session, progress, the last line, the exit code.

A job is a module of `reput_pipeline` with a click command named `command`. It is started as `reput pipeline NAME`,
as `python -m reput_pipeline.jobs.NAME`, and by `spark-submit` on the module's file.
"""

from __future__ import annotations

from typing import Final

JOBS: Final = {
    "archive": "Copy topics to Parquet, batch by batch, and go on where it stopped.",
    "replay": "Send the messages of an archive to a broker.",
    "audit": "Check everything in a store directory against everything else.",
    "rebuild": "Make queues and index of a store directory anew from its log.",
    "report": "Rates, sizes and top keys by topic, tag and hour: a table and a page with plots.",
    "lag": "How far groups are behind, in messages and in time, and how that came about.",
    "find": "Look messages up by key, id or text.",
    "compact": "Keep the latest message of every key of an archive, or one of each unique id.",
    "dlq": "Group dead letters by origin, reason and attempts; send chosen ones back.",
}
"""Every job and one line of help; the module is `reput_pipeline.jobs.NAME`."""
