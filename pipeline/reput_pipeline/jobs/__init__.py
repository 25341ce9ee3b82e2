"""The jobs, a module each with a click command named `command`.

A job starts as `reput pipeline NAME`, as `python -m reput_pipeline.jobs.NAME`, or by `spark-submit` with its file.
Shared: `run` runs it, with its session, output, errors and exit codes; `messages` and `directories` are its inputs.
"""

from __future__ import annotations

from typing import Final

JOBS: Final = {
    "archive": "Copy topics to Parquet, batch by batch; continues where it stopped.",
    "replay": "Send the messages of an archive to a broker.",
    "audit": "Check all files of a store directory against each other.",
    "rebuild": "Rebuild queues and index of a store directory from its log.",
    "report": "Rates, sizes and top keys by topic, tag and hour: a table and a page with plots.",
    "lag": "Lag of groups, in messages and in time, with a history.",
    "find": "Look messages up by key, id or text.",
    "compact": "Keep the latest message of every key of an archive, or one of each unique id.",
    "package": "Pack Reput for the executors of a cluster: what spark-submit gets.",
    "dlq": "Group dead letters by origin, reason and attempts; send selected ones back.",
}
"""Jobs by name, with a line of help."""
