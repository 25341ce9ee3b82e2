"""The configuration of a group member."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from reput_client.consume.group.allocation import AllocationStrategy, averagely
from reput_client.consume.group.fetcher import FlowLimits
from reput_client.consume.group.subscriptions import Start, Subscriptions
from reput_client.offset_store import OffsetStore
from reput_protocol.codes import MessageModel


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """See `Consumer` for each option."""

    group: str
    subscriptions: Subscriptions
    start: Start = "earliest"
    model: MessageModel = MessageModel.CLUSTERING
    orderly: bool = False
    allocation: AllocationStrategy = averagely
    limits: FlowLimits = field(default_factory=FlowLimits)
    commit_interval_s: float = 5.0
    heartbeat_interval_s: float = 30.0
    handler_timeout_s: float = math.inf
    offset_store: OffsetStore | None = None
    wait_for_topic: bool = True
