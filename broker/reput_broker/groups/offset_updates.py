"""Set a group's offsets on behalf of an administrator, and have its members go on there (RocketMQ: Broker2Client).

The new offsets go into the table, durably, and are pending until the group pulls again (`offset_setting.py`), so that
no member takes them back. Held pulls are answered at once. Members are told by request 220 too, where
`groups.reset_tells_members` is on: they drop what they have taken and not handled yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from reput_broker.body_turns import write_in_turns
from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.progress import GroupProgress
from reput_broker.long_polling import PullRequestHoldService
from reput_broker.tables.offsets import Commit, ConsumerOffsetManager
from reput_protocol.codes import LanguageCode, RequestCode
from reput_protocol.commands.consumers import ResetOffsetHeader
from reput_protocol.commands.offset import ResetOffsetBody, ResetOffsetList
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType


class PendingResets:
    """Offsets that an administrator has set and members do not know of yet (RocketMQ: resetOffsetTable).

    Members keep their offsets in memory and commit them every few seconds. Until the next pull of the queue, which is
    answered with the new offset, what members commit there is ignored. Not kept over a restart; the new offsets are.
    """

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str, int], int] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Have the group's next pull of a queue answered with `offset`."""
        self._pending[group, topic, queue_id] = offset

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether the group does not know its new offset of a queue yet."""
        return bool(self._pending) and (group, topic, queue_id) in self._pending

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the new offset for a member that pulls, and forget it; None if there is none."""
        if not self._pending:
            return None
        return self._pending.pop((group, topic, queue_id), None)

    def forget_group(self, group: str) -> None:
        """Forget a group that is deleted."""
        for key in [key for key in self._pending if key[0] == group]:
            del self._pending[key]

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is deleted."""
        for key in [key for key in self._pending if key[1] == topic]:
            del self._pending[key]


class OffsetCommits:
    """The way of members' offsets into the table.

    Args:
        offsets: the table.
        resets: offsets that an administrator has set and the members do not know of yet.
        progress: told of the commit.
        on_commit: called after each.
        clock_ms: the time of day.
    """

    def __init__(
        self,
        offsets: ConsumerOffsetManager,
        resets: PendingResets,
        progress: GroupProgress,
        on_commit: Callable[[], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._offsets = offsets
        self._resets = resets
        self._progress = progress
        self._on_commit = on_commit
        self._clock_ms = clock_ms

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, increase_only: bool = False
    ) -> None:
        """Commit an offset of a group, topic and queue that exist; it survives `kill -9` then.

        Negative ones mean "nothing yet", and are ignored. So are those of members that have not heard yet of a reset,
        and lower ones than the committed offset of members that only go on, `increase_only`.

        Raises:
            JournalWriteFailed: it is not committed.
        """
        if offset < 0 or self._resets.is_pending(group, topic, queue_id):
            return
        self._offsets.commit(group, topic, queue_id, offset, increase_only=increase_only)
        self._progress.committed(group, topic, queue_id, self._clock_ms())
        self._on_commit()


_RESET_VERSION_MIN = 28
"""RocketMQ's clients from V3_0_7_SNAPSHOT on understand 220 (RocketMQ: MQVersion)."""


class _Notice(NamedTuple):
    """The reset of one topic, as members receive it."""

    header: ResetOffsetHeader
    as_map: bytes
    as_list: bytes


class OffsetSetting:
    """Sets offsets of groups."""

    def __init__(
        self,
        offsets: ConsumerOffsetManager,
        resets: PendingResets,
        progress: GroupProgress,
        groups: ConsumerGroups,
        hold: PullRequestHoldService,
        options: GroupsConfig,
    ) -> None:
        self._offsets = offsets
        self._resets = resets
        self._progress = progress
        self._groups = groups
        self._hold = hold
        self._options = options

    async def set(
        self,
        group: str,
        offsets: Mapping[MessageQueue, int],
        timestamp_ms: int = -1,
        *,
        check: Callable[[], None],
    ) -> int:
        """Set a group's offsets; return how many members were told by request.

        Args:
            offsets: the next message to consume, by queue.
            timestamp_ms: what 220 says the offsets stand for; RocketMQ's clients only log it.
            check: called right before the offsets are set; raises if the group or a topic was deleted while others
                had their turns.

        Raises:
            JournalWriteFailed: nothing was set.
        """
        # Written before anything is set, because others have their turns meanwhile.
        notices = await _notices(group, offsets, timestamp_ms) if self._options.reset_tells_members else []
        check()
        self._offsets.commit_many(
            group, [Commit(queue.topic, queue.queue_id, offset) for queue, offset in offsets.items()]
        )
        for queue, offset in offsets.items():
            self._resets.set(group, queue.topic, queue.queue_id, offset)
            self._progress.set_anew(group, queue.topic, [queue.queue_id])
        told = self._tell_members(group, notices)
        self._hold.release_group(group, [(queue.topic, queue.queue_id) for queue in offsets])
        return told

    def _tell_members(self, group: str, notices: list[_Notice]) -> int:
        told = set()
        for notice in notices:
            for channel in self._groups.members(group):
                if _understands_reset(channel) and channel.client.send_request(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    notice.header.to_ext(channel.client.header_type),
                    notice.as_list if channel.language == LanguageCode.CPP else notice.as_map,
                ):
                    told.add(channel)
        return len(told)


async def _notices(group: str, offsets: Mapping[MessageQueue, int], timestamp_ms: int) -> list[_Notice]:
    by_topic: dict[str, dict[MessageQueue, int]] = {}
    for queue, offset in offsets.items():
        by_topic.setdefault(queue.topic, {})[queue] = offset
    return [
        _Notice(
            ResetOffsetHeader(topic, group, timestamp_ms, is_force=True),
            await write_in_turns(ResetOffsetBody(table)),
            await write_in_turns(ResetOffsetList(table)),
        )
        for topic, table in by_topic.items()
    ]


def _understands_reset(channel: ClientChannel) -> bool:
    # A header without a version has 0; nobody knows what such a client understands, and a request is only ignored.
    is_too_old = channel.client.header_type != HeaderType.MSGPACK and 0 < channel.version < _RESET_VERSION_MIN
    return not is_too_old
