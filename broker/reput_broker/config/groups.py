"""The options of consumer groups."""

from __future__ import annotations

from typing import Final

from reput_broker.config.section import Section, option
from reput_broker.config.units import Duration, Size

LOCK_TIMEOUT_MIN_S: Final = 40.0
"""Members renew their locks every 20 s and consume for 30 s after the last confirmation, RocketMQ's and our own alike
(REBALANCE_LOCK_INTERVAL, REBALANCE_LOCK_MAX_LIVE_TIME). Nobody else may have a queue by then; the rest is margin."""


class GroupsConfig(Section):
    """Consumer groups: who is a member, who holds which queue."""

    auto_create: bool = option(
        True, "create a group when a client first says that it is a member, or pulls for it", live=True
    )
    auto_create_max: int = option(
        10_000, "groups from which on none is created that way", live=True, ge=0, le=1_000_000
    )
    groups_max: int = option(
        10_000, "most groups in all, whichever request creates them", live=True, ge=1, le=1_000_000
    )
    heartbeat_timeout: Duration = option(
        120.0,
        "a member that has sent no heartbeat for so long is none any more",
        live=True,
        ge=1.0,
        le=86400.0,
    )
    notify_interval: Duration = option(
        0.1,
        "shortest time between two notifications of one group's members that the group has changed",
        live=True,
        ge=0.0,
        le=10.0,
    )
    client_memory_max: Size = option(
        512 << 10,
        "memory for the groups and subscriptions of one client: some 512 bytes for each, and their texts",
        live=True,
        ge=8192,
        le=1 << 30,
    )
    memory_max: Size = option(
        64 << 20, "the same for all clients together", live=True, ge=64 << 10, le=1 << 36
    )
    lock_timeout: Duration = option(
        60.0,
        "a queue's lock that its member has not renewed for so long is free",
        live=True,
        ge=LOCK_TIMEOUT_MIN_S,
        le=86400.0,
    )
    locks_max: int = option(
        100_000, "locks of queues that all groups together hold", live=True, ge=1, le=10_000_000
    )
    free_locks_on_unregister: bool = option(
        True, "free the locks of a member that says that it leaves, instead of letting them expire", live=True
    )
    refuse_subscription_conflicts: bool = option(
        False, "keep members out of a group whose other members subscribe to something else", live=True
    )
    reset_tells_members: bool = option(
        True,
        "when a group's offsets are reset, also tell its members by request, before they pull again",
        live=True,
    )
    lag_refresh_interval: Duration = option(
        15.0, "time between two looks at how old the messages are that groups have not consumed", live=True,
        ge=1.0, le=3600.0,
    )  # fmt: skip
