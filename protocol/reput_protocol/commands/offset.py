"""Offsets: a group's progress and its reset, a queue's bounds by number and by time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Final, Self

from msgspec import field

from reput_protocol.buffers import Buffer
from reput_protocol.codes import BoundaryType, RequestCode, ResponseCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, LargeBody, Members, RequestType, Sender
from reput_protocol.errors import BodyMalformed
from reput_protocol.names import BrokerName, ClientId, GroupName, GroupNames, TopicName
from reput_protocol.record.message import MessageQueue
from reput_protocol.rights import Right

# -- committed offsets -------------------------------------------------------------------------------------------------


class QueryConsumerOffsetHeader(CommandHeader):
    """Header of 14: a group's committed offset. `set_zero_if_not_found` false: none is an error, not 0."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(CommandHeader):
    """Header of 15: commit a group's offset. Clients with nothing to commit send negative offsets.

    `increase_only` is Reput's: an offset below the committed one is ignored, with success, so that a member that stood
    still while its queue moved on cannot lower the offset.
    """

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32
    commit_offset: I64
    increase_only: bool | None = None


class OffsetResult(CommandHeader):
    """Answer to 14, 29, 30 and 31: a queue offset."""

    offset: I64


# -- the bounds of a queue, offsets by time ----------------------------------------------------------------------------


class QueueHeader(CommandHeader):
    """Header of 30 (next offset to be assigned), 31 (first offset) and 32 (store time of the first message)."""

    topic: TopicName
    queue_id: I32


class SearchOffsetHeader(CommandHeader):
    """Header of 29: the first message stored at or after `timestamp` (ms), or the last up to it."""

    topic: TopicName
    queue_id: I32
    timestamp: I64
    boundary_type: BoundaryType = BoundaryType.LOWER


class EarliestTimeResult(CommandHeader):
    """Answer to 32: milliseconds, -1 for an empty queue."""

    timestamp: I64


# -- setting a group's offsets -----------------------------------------------------------------------------------------


class ResetOffsetHeader(CommandHeader):
    """Header of 222 (to the broker) and 220 (from the broker to members): set where a group continues.

    `timestamp` is in ms since 1970, -1 for the end of each queue. With a `queue_id` (not -1), `offset` counts instead.
    RocketMQ's client refuses a 220 without `isForce`, so that is always written.

    Reput's, in a 222 with a msgpack header: without a queue, `offset` applies to every queue, from its end if negative,
    and means the nearest existing one. Reput's, with any header: `shift` moves each committed offset by that many
    messages; `dry_run` sets nothing and answers with what would be.
    """

    topic: TopicName
    group: GroupName
    timestamp: I64
    is_force: bool = False
    queue_id: I32 = -1
    offset: I64 | None = None
    shift: I64 | None = None
    dry_run: bool | None = None


class CorrectionOffsetHeader(CommandHeader):
    """Header of 308: the lowest offset of any group in each queue of a topic; `filter_groups`, separated by commas, are
    left out.
    """

    topic: TopicName
    compare_group: GroupName
    filter_groups: GroupNames | None = None


class CorrectionOffsets(Body):
    """Answer body of 308: by queue id, the lowest offset; 2**63 - 1 where `compare_group` is behind all others."""

    correction_offsets: dict[str, I64] = {}


class ResetOffsetBody(LargeBody):
    """Body of 220 and answer body of 222: where a group continues in each queue.

    Java's and Go's clients read this map keyed by queue, the C++ client a `ResetOffsetList`.
    """

    IS_TRUSTED: ClassVar[bool] = True

    offset_table: dict[MessageQueue, I64] = {}

    @classmethod
    def from_json(cls, data: Buffer, *, is_trusted: bool | None = None) -> Self:
        """Read the body in either form; see `Body.from_json`."""
        try:
            return super().from_json(data, is_trusted=is_trusted)
        except BodyMalformed:
            with suppress(BodyMalformed):
                listed = _OffsetList.from_json(data).offset_table
                return cls({MessageQueue(one.topic, one.broker_name, one.queue_id): one.offset for one in listed})
            raise


class _QueueOffset(Members):
    broker_name: BrokerName
    queue_id: I64
    topic: TopicName
    offset: I64


class _OffsetList(Body):
    offset_table: list[_QueueOffset]


class ResetOffsetList(LargeBody):
    """The list form of `ResetOffsetBody`, for clients of `LanguageCode.CPP`."""

    offset_table: dict[MessageQueue, I64] = {}

    def to_members(self) -> dict[str, Any]:
        """Return the members; each queue object has its offset."""
        queues = self.offset_table.items()
        listed = [_QueueOffset(queue.broker_name, queue.queue_id, queue.topic, offset) for queue, offset in queues]
        return {"offsetTable": listed}


class CloneGroupOffsetHeader(CommandHeader):
    """Header of 314: copy a group's offsets to another, for one topic or all.

    For an online source, topics that it does not subscribe to are left out unless `offline` is set. Reput's: `dry_run`
    sets nothing; the answer's body has the offsets in any case.
    """

    src_group: GroupName
    dest_group: GroupName
    topic: TopicName | None = None
    offline: bool = False
    dry_run: bool | None = None


# -- the offsets of members --------------------------------------------------------------------------------------------


class ConsumerStatusHeader(CommandHeader):
    """Header of 223 (to the broker) and 221 (to members): the offsets that members have reached."""

    topic: TopicName
    group: GroupName
    client_addr: ClientId | None = None


class ConsumerStatusBody(LargeBody):
    """Answer body of 221 (one member's `offsets`) and of 223 (`members`: offsets by client id).

    (RocketMQ: GetConsumerStatusBody, `messageQueueTable` and `consumerTable`.)
    """

    IS_TRUSTED: ClassVar[bool] = True

    offsets: dict[MessageQueue, I64] = field(default_factory=dict, name="messageQueueTable")
    members: dict[ClientId, dict[MessageQueue, I64]] = field(default_factory=dict, name="consumerTable")


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader, sender=Sender.CONSUMER, topics=Right.READ,
        groups=Right.READ, kind=Kind.OFFSETS, newest_only=True, pool="consumer_manager",
    ),
    RequestType(
        RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader, sender=Sender.CONSUMER, topics=Right.READ,
        groups=Right.READ, kind=Kind.CHANGES, changes_tables=True, pool="consumer_manager",
    ),
    RequestType(RequestCode.GET_MAX_OFFSET, QueueHeader, sender=Sender.CLIENT, topics=Right.DESCRIBE),
    RequestType(RequestCode.GET_MIN_OFFSET, QueueHeader, sender=Sender.CLIENT, topics=Right.DESCRIBE),
    RequestType(
        RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader, sender=Sender.CLIENT, topics=Right.DESCRIBE
    ),
    RequestType(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader, sender=Sender.CLIENT, topics=Right.DESCRIBE
    ),
    RequestType(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader, ResetOffsetBody, topics=Right.DESCRIBE,
        groups=Right.ADMIN, fields={"offsetTable.topic": "another topic than the header's is rejected"},
        kind=Kind.CHANGES, changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(
        RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader, topics=Right.DESCRIBE, groups=Right.ADMIN,
        fields={"srcGroup": Right.DESCRIBE}, kind=Kind.CHANGES,
        changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(RequestCode.QUERY_CORRECTION_OFFSET, CorrectionOffsetHeader, cluster=Right.DESCRIBE),
    RequestType(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetHeader, sender=Sender.TO_CLIENTS, is_oneway=True
    ),
    RequestType(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatusHeader, sender=Sender.TO_CLIENTS
    ),
)  # fmt: skip
