"""The options of a group member, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Generic, Literal, TypeAlias

from reput_client.consume.group.allocation import AllocationStrategy, averagely
from reput_client.consume.group.failures import OnFailure, check_on_failure
from reput_client.consume.group.fetcher import FlowLimits
from reput_client.consume.group.subscriptions import Start, Subscriptions, check_start, parse_topics
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
