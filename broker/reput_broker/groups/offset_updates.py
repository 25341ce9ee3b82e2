"""Changes of committed offsets: commits of members, and resets by administrators (RocketMQ: Broker2Client).

A reset writes the new offsets durably and keeps them pending until the group pulls again, so that no member overwrites
them. Held pulls are answered immediately. With `groups.reset_tells_members` members also receive request 220 and drop
the messages that they have not handled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.lag import GroupProgress
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import write_in_turns
from reput_broker.tables.offsets import Commit, ConsumerOffsetManager
from reput_protocol.codes import LanguageCode, RequestCode
from reput_protocol.commands.offset import ResetOffsetBody, ResetOffsetHeader, ResetOffsetList
from reput_protocol.names import BROKERS_GROUPS
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType


class PendingResets:
    """Offsets set by an administrator that members do not know yet (RocketMQ: resetOffsetTable).

    Members keep their offsets in memory and commit them every few seconds. Their commits for a queue are ignored until
    its next pull, which is answered with the new offset. Lost at a restart; the offsets are not.
    """

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str, int], int] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Answer the group's next pull of a queue with `offset`."""
        self._pending[group, topic, queue_id] = offset

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the group does not know its new offset of a queue yet."""
        return bool(self._pending) and (group, topic, queue_id) in self._pending

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and forget the new offset for a member that pulls; None if there is none."""
        if not self._pending:
            return None
        return self._pending.pop((group, topic, queue_id), None)

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        for key in [key for key in self._pending if key[0] == group]:
            del self._pending[key]

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        for key in [key for key in self._pending if key[1] == topic]:
            del self._pending[key]


@dataclass(eq=False, repr=False)
class OffsetCommits:
    """Commits the offsets of members; calls `on_commit` after each."""

    _offsets: ConsumerOffsetManager
    _resets: PendingResets
    _progress: GroupProgress
    _counters: Counters
    _on_commit: Callable[[], None]
    _clock_ms: Callable[[], int]

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, increase_only: bool = False) -> None:
        """Commit an offset of an existing group, topic and queue; it then survives `kill -9`.

        Ignored are negative offsets, which mean "nothing yet", offsets of members that do not know of a reset, those of
        the broker's own groups, and, with `increase_only`, offsets below the committed one.

        Raises:
            JournalWriteFailed: it is not committed.
        """
        if offset < 0 or group in BROKERS_GROUPS:
            return
        if self._resets.is_pending(group, topic, queue_id):
            self._counters.note_acks(group, "late")
            return
        before = self._offsets.query(group, topic, queue_id)
        self._offsets.commit(group, topic, queue_id, offset, increase_only=increase_only)
        self._progress.committed(group, topic, queue_id, self._clock_ms())
        self._count(group, topic, queue_id, before, offset)
        self._on_commit()

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int, next_offset: int, peer: str) -> None:
        """Record a pull of a member at `offset`, and where it pulls next."""
        again = self._progress.pulled(group, topic, queue_id, offset, next_offset, peer)
        # A group that does not commit here, such as one that broadcasts, has no messages that expire.
        if again and self._offsets.query(group, topic, queue_id) is not None:
            self._counters.note_acks(group, "expired", again)

    def _count(self, group: str, topic: str, queue_id: int, before: int | None, offset: int) -> None:
        if before is None:
            progress = self._progress.get(group, topic, queue_id)
            before = progress.first_offset if progress is not None and progress.first_offset >= 0 else offset
        if offset > before:
            self._counters.note_acks(group, "ack", offset - before)
        elif offset < before:
            self._counters.note_acks(group, "late")


_RESET_VERSION_MIN = 28
"""From V3_0_7_SNAPSHOT on clients understand request 220 (RocketMQ: MQVersion)."""


class _Notice(NamedTuple):
    header: ResetOffsetHeader
    as_map: bytes
    as_list: bytes


@dataclass(eq=False, repr=False)
class OffsetSetting:
    """Sets offsets of groups.

    Args:
        release_pulls: answers the held pulls of a group in some queues.
    """

    _offsets: ConsumerOffsetManager
    _resets: PendingResets
    _progress: GroupProgress
    _groups: ConsumerGroups
    _options: GroupsConfig
    _release_pulls: Callable[[str, list[tuple[str, int]]], None]

    async def set(
        self, group: str, offsets: Mapping[MessageQueue, int], timestamp_ms: int = -1, *, check: Callable[[], None]
    ) -> int:
        """Set a group's offsets; return how many members were notified by request.

        Args:
            offsets: the next message to consume, by queue.
            timestamp_ms: the time in request 220; RocketMQ's clients only log it.
            check: called right before the offsets are set; raises if the group or a topic was deleted meanwhile.

        Raises:
            JournalWriteFailed: nothing was set.
        """
        # Encoded before anything is set, because other tasks run meanwhile.
        notices = await _notices(group, offsets, timestamp_ms) if self._options.reset_tells_members else []
        check()
        self._offsets.commit_many(
            group, [Commit(queue.topic, queue.queue_id, offset) for queue, offset in offsets.items()]
        )
        for queue, offset in offsets.items():
            self._resets.set(group, queue.topic, queue.queue_id, offset)
            self._progress.forget_queues(group, queue.topic, [queue.queue_id])
        told = self._tell_members(group, notices)
        self._release_pulls(group, [(queue.topic, queue.queue_id) for queue in offsets])
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
    # A header without a version has 0. Such a client may understand the request; else it ignores
    # it.
    is_too_old = channel.client.header_type != HeaderType.MSGPACK and 0 < channel.version < _RESET_VERSION_MIN
    return not is_too_old
