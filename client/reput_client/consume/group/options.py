"""The options of a group member, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Generic, Literal, NamedTuple, TypeAlias

from reput_client.consume.group.allocation import AllocationStrategy, averagely
from reput_client.consume.group.failures import OnFailure, check_on_failure
from reput_client.consume.group.subscriptions import Start, Subscriptions, check_start, parse_topics
from reput_client.consume.pull import PULL_BYTES_MAX, PULL_MESSAGES_MAX
from reput_client.offset_store import OffsetStore
from reput_client.received import V
from reput_client.transport.options import ClientOptions
from reput_client.transport.session import wall_clock_ms
from reput_protocol.codes import MessageModel
from reput_protocol.names import check_client_group
from reput_protocol.record.message import MessageQueue

Mode: TypeAlias = Literal["clustering", "broadcasting"]
"""How a group gets messages: each member a part of them, or each member all of them."""

_MODELS: Final[Mapping[str, MessageModel]] = {
    "clustering": MessageModel.CLUSTERING,
    "broadcasting": MessageModel.BROADCASTING,
}


_LEAST_PART: Final = 4
"""The fraction (one in so many) of a queue's messages that must be handled before more are pulled."""
_PULL_BYTES_MIN: Final = 64 * 1024


class Room(NamedTuple):
    """How much the next pull of a queue may return."""

    messages: int
    size_b: int


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits on what is pulled and not handled.

    Attributes:
        prefetch_messages, prefetch_bytes: over all queues; each queue's pull gets at most an equal share.
        queue_messages_max, queue_bytes_max: for one queue. Bytes count whole pulls, since a message keeps its pull.
        queue_span_max: from the first unhandled offset to the last pulled one. Otherwise a hanging handler would hold
            back the commit without limit, and ever more messages would be redelivered after a crash.
    """

    prefetch_messages: int
    prefetch_bytes: int
    queue_messages_max: int
    queue_bytes_max: int
    queue_span_max: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")

    def room(self, queues: int, messages: int, size_b: int, span: int) -> Room | None:
        """Return how much to pull of one of `queues` queues that has `messages`, `size_b` and `span`, or None.

        No pull asks for less than `_PULL_BYTES_MIN`, and none is made for a few messages while others wait to be
        handled.
        """
        if span >= self.queue_span_max or size_b >= self.queue_bytes_max:
            return None
        share = max(1, min(PULL_MESSAGES_MAX, self.prefetch_messages // queues))
        share_b = self.prefetch_bytes // queues
        room = self.queue_messages_max - messages
        if room < min(share, max(1, self.queue_messages_max // _LEAST_PART)):
            return None
        return Room(min(share, room), max(_PULL_BYTES_MIN, min(PULL_BYTES_MAX, share_b, self.queue_bytes_max - size_b)))


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ClientOptions, Generic[V]):
    """See `Consumer`."""

    group: str
    topic: str | None = None
    topics: Iterable[str] | Mapping[str, str] | re.Pattern[str] | None = None
    tags: str = "*"
    sql: str | None = None
    start: Start = "earliest"
    mode: Mode = "clustering"
    deserializer: Callable[[bytes], V] | None = None
    orderly: bool = False
    allocation: AllocationStrategy = averagely
    on_assigned: Callable[[list[MessageQueue]], object] | None = None
    on_revoked: Callable[[list[MessageQueue]], object] | None = None
    on_failure: OnFailure | None = None
    handler_timeout_s: float = 900.0  # RocketMQ: consumeTimeout, 15 minutes
    prefetch_messages: int = 2048
    prefetch_bytes: int = 16 * 1024 * 1024
    queue_messages_max: int = 1000
    queue_bytes_max: int = 100 * 1024 * 1024
    queue_span_max: int = 2000
    commit_interval_s: float = 5.0
    heartbeat_interval_s: float = 30.0
    offset_store: OffsetStore | None = None
    wait_for_topic: bool = True
    instance: str = "DEFAULT"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_client_group(self.group)
        check_start(self.start)
        check_on_failure(self.on_failure)
        if self.mode not in _MODELS:
            raise ValueError(f"mode is 'clustering' or 'broadcasting', not {self.mode!r}")
        if self.commit_interval_s < 0 or self.heartbeat_interval_s <= 0 or self.handler_timeout_s <= 0:
            raise ValueError(
                "commit_interval_s must be 0 or more, heartbeat_interval_s and handler_timeout_s more than 0"
            )

    @property
    def model(self) -> MessageModel:
        """How messages are divided among the members."""
        return _MODELS[self.mode]

    @property
    def limits(self) -> FlowLimits:
        """When to stop pulling."""
        return FlowLimits(
            self.prefetch_messages,
            self.prefetch_bytes,
            self.queue_messages_max,
            self.queue_bytes_max,
            self.queue_span_max,
        )

    @cached_property
    def subscriptions(self) -> Subscriptions:
        """The subscriptions, as of their first use.

        Raises:
            InvalidName, FilterSyntaxError, ValueError, TypeError: `topic`, `topics`, `tags` or `sql` is not valid.
        """
        retries = self.model is MessageModel.CLUSTERING
        return parse_topics(
            self.group, self.topic, self.topics, self.tags, self.sql, retries=retries, version=wall_clock_ms()
        )
