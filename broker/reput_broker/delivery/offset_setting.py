"""Set a group's offsets on behalf of an administrator, and have its members go on there (RocketMQ: Broker2Client).

The new offsets go into the table, durably, and are pending until the group pulls again (`offset_resets.py`), so that
no member takes them back. Held pulls are answered at once. Members are told by request 220 too, where
`groups.reset_tells_members` is on: they drop what they have taken and not handled yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from reput_broker.body_turns import write_in_turns
from reput_broker.config.sections import GroupsConfig
from reput_broker.delivery.client_table import ClientChannel
from reput_broker.delivery.consumer_groups import ConsumerGroups
from reput_broker.delivery.offset_resets import PendingResets
from reput_broker.delivery.progress import GroupProgress
from reput_broker.long_polling import PullRequestHoldService
from reput_broker.tables.offsets import Commit, ConsumerOffsetManager
from reput_protocol.bodies_reset import ResetOffsetBody, ResetOffsetList
from reput_protocol.codes import LanguageCode, RequestCode
from reput_protocol.commands_consume import ResetOffsetHeader
from reput_protocol.header import HeaderType
from reput_protocol.message import MessageQueue

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
                    notice.header.to_ext(channel.header_type),
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
    is_too_old = channel.header_type != HeaderType.MSGPACK and 0 < channel.version < _RESET_VERSION_MIN
    return not is_too_old
