"""Flow control: how much of one queue a member may hold before it pulls no more of it. Pure.

(RocketMQ: pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

_LEAST_PART: Final = 4
"""What part of a queue's messages must be handled before more is pulled."""


class Room(NamedTuple):
    """How much the next pull of a queue may bring."""

    messages: int
    size_b: int


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Bounds on what is pulled and not yet handled.

    Attributes:
        prefetch_messages, prefetch_bytes: over all queues; each queue's pull brings at most its share.
        queue_messages_max, queue_bytes_max: of one queue. Bytes count whole pulls: one message keeps its pull alive.
        queue_span_max: from the first offset that is not handled to the last that was pulled. One handler that hangs
            would otherwise hold the commit back without end, and what must come again after a crash would grow.
    """

    prefetch_messages: int = 2048
    prefetch_bytes: int = 16 * 1024 * 1024
    queue_messages_max: int = 1000
    queue_bytes_max: int = 100 * 1024 * 1024
    queue_span_max: int = 2000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")

    def room(
        self,
        queues: int,
        messages: int,
        size_b: int,
        span: int,
        *,
        pull_messages: int,
        pull_bytes: tuple[int, int],
    ) -> Room | None:
        """Return what may be pulled of a queue that holds so much, one of `queues`; None: nothing for now.

        `pull_messages` and `pull_bytes` bound any pull; below the lower of the two sizes none is worth its while, nor
        is one for a few messages while there are others to be handled first.
        """
        if span >= self.queue_span_max or size_b >= self.queue_bytes_max:
            return None
        share = max(1, min(pull_messages, self.prefetch_messages // queues))
        share_b = self.prefetch_bytes // queues
        room = self.queue_messages_max - messages
        if room < min(share, max(1, self.queue_messages_max // _LEAST_PART)):
            return None
        return Room(
            min(share, room),
            max(pull_bytes[0], min(pull_bytes[1], share_b, self.queue_bytes_max - size_b)),
        )
