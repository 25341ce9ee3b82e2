"""The steps at which a broker dies, and the points at which a driver does."""

from __future__ import annotations

from typing import Any, Final

from reput_broker.processors.query import FetchProcessor
from support.sink_broker import STEPS

SINK_STEPS: Final = (*(step for step in STEPS if step != "piece"), "piece:1", "piece:2")
SOURCE_STEPS: Final[dict[str, tuple[Any, str, bool]]] = {
    "bounds": (FetchProcessor, "bounds", False),
    "fetch": (FetchProcessor, "fetch", False),
    "fetched": (FetchProcessor, "fetch", True),
}
"""As those of the sink: before it says where queues end, before and after it reads a block of records."""

FAILOVER_STEPS: Final = (
    "staged",
    "ended",
    "committing",
    "deciding",
    "decided",
    "piece:1",
    "marking",
    "marking!",
    "marked",
    "noted",
)
"""As those of the sink, where another master finds something different: at `!`, nothing of the batch."""

STREAM_POINTS: Final = ("before-staging", "after-staging", "before-commit", "after-commit", "after-checkpoint")
REPLAY_POINTS: Final = ("before-staging", "after-staging", "before-commit", "after-commit", "after-batch")
ARCHIVE_POINTS: Final = (
    "before-plan",
    "after-plan",
    "half-a-file",
    "between-files",
    "before-manifest",
    "after-manifest",
    "after-batch",
)
