"""How much one micro-batch takes of what is there."""

from __future__ import annotations

import math
from collections.abc import Mapping

from reput_pipeline.source.places import QueueKey


def limited(
    start: Mapping[QueueKey, int], available: Mapping[QueueKey, int], most: int
) -> dict[QueueKey, int]:
    """Return where a batch of about `most` messages ends, split over the queues in proportion to what each has.

    The rule is that of Spark's Kafka source: every queue with messages gives at least one, so that none starves; so a
    batch may be larger than `most` by as many messages as there are queues.

    Args:
        start: where the batch begins.
        available: where each queue ends, not before its beginning.
        most: how many messages are wanted.
    """
    backlog = {queue: end - start[queue] for queue, end in available.items() if end > start[queue]}
    total = sum(backlog.values())
    if total <= most:
        return dict(available)
    ends = {}
    for queue, end in available.items():
        share = most * backlog.get(queue, 0) / total
        ends[queue] = min(end, start[queue] + (math.ceil(share) if share < 1 else math.floor(share)))
    return ends
