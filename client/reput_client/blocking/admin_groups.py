"""The part of the blocking admin client about consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from reput_client.admin_groups import GroupAdmin
from reput_client.blocking.client import BlockingClient
from reput_protocol.bodies_group import SubscriptionGroupConfig
from reput_protocol.bodies_progress import GroupDescription, GroupSummary
from reput_protocol.bodies_running import ConsumeDirectlyResult, ConsumerRunningInfo
from reput_protocol.bodies_stats import ConsumeStats, ConsumeTimeSpan
from reput_protocol.message import MessageQueue


class BlockingGroupAdmin(BlockingClient):
    """What `Admin` can do with consumer groups. Arguments and errors are those of `reput_client.Admin`."""

    _groups: GroupAdmin

    def list_groups(self) -> list[GroupSummary]:
        """Return every group in short, sorted by name."""
        return self._runtime.run(self._groups.list_groups())

    def group_configs(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups by name."""
        return self._runtime.run(self._groups.group_configs())

    def group_config(self, group: str) -> SubscriptionGroupConfig:
        """Return a group's settings; raises `GroupNotFound`."""
        return self._runtime.run(self._groups.group_config(group))

    def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Create a group, or give one other settings."""
        self._runtime.run(self._groups.put_group(config))

    def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a group; with `clean_offsets` its progress too."""
        self._runtime.run(self._groups.delete_group(group, clean_offsets=clean_offsets))

    def describe_group(self, group: str, topic: str | None = None) -> GroupDescription:
        """Return a group's members and its progress; raises `GroupNotFound`."""
        return self._runtime.run(self._groups.describe_group(group, topic))

    def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic now or have an offset in it."""
        return self._runtime.run(self._groups.topic_groups(topic))

    def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return a group's progress by queue as RocketMQ tells it."""
        return self._runtime.run(self._groups.consume_stats(group, topic))

    def consume_time_span(self, group: str, topic: str) -> ConsumeTimeSpan:
        """Return from when to when a topic's messages are, and how far back in time a group is."""
        return self._runtime.run(self._groups.consume_time_span(group, topic))

    def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Ask a member what it is doing; raises `NotFound` or `BrokerBusy`."""
        return self._runtime.run(self._groups.running_info(group, client_id))

    def consume_directly(self, group: str, client_id: str, offset_message_id: str) -> ConsumeDirectlyResult:
        """Have a member consume one message, beside its ordinary work."""
        return self._runtime.run(self._groups.consume_directly(group, client_id, offset_message_id))

    def plan_reset(
        self,
        group: str,
        topic: str,
        *,
        when: datetime | int | None = None,
        offset: int | None = None,
        shift: int | None = None,
        queue_id: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Return where a group would go on in each queue of a topic; nothing is set."""
        return self._runtime.run(
            self._groups.plan_reset(group, topic, when=when, offset=offset, shift=shift, queue_id=queue_id)
        )

    def set_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set where a group goes on, and tell the members that are online."""
        self._runtime.run(self._groups.set_offsets(group, offsets))

    def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        when: datetime | int | None = None,
        offset: int | None = None,
        shift: int | None = None,
        queue_id: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Do what `plan_reset` would, and return where the group goes on now."""
        return self._runtime.run(
            self._groups.reset_offsets(group, topic, when=when, offset=offset, shift=shift, queue_id=queue_id)
        )

    def clone_offsets(
        self, source: str, target: str, topic: str | None = None, *, dry_run: bool = False
    ) -> dict[MessageQueue, int]:
        """Give group `target` the offsets of `source`, and return them; with `dry_run` nothing is set."""
        return self._runtime.run(self._groups.clone_offsets(source, target, topic, dry_run=dry_run))
