"""JSON bodies about groups as people look at them, which are ours: members, progress and lag in one answer."""

from __future__ import annotations

from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.body import I64, LargeBody, Members
from reput_protocol.codes import LanguageCode
from reput_protocol.group_terms import ConsumeFromWhere, ConsumeType, MessageModel


class GroupSummary(Members):
    """One group in short.

    `lag` is messages that are not committed, over all queues of which the group has an offset, and `lag_age_millis` the
    age of the oldest of them as of the broker's last look. `exists` is False for a group that has offsets or members
    but no settings.
    """

    group: str = ""
    exists: bool = True
    consume_enable: bool = True
    members: I64 = 0
    topics: list[str] = []
    lag: I64 = 0
    lag_age_millis: I64 = 0
    has_conflict: bool = False


class GroupSummaries(LargeBody):
    """Answer body of LIST_GROUPS."""

    groups: list[GroupSummary] = []


class GroupMember(Members):
    """One member: `silent_millis` is for how long it has sent no heartbeat, `locks` how many queues it has locked."""

    client_id: str = ""
    client_addr: str = ""
    language: str = LanguageCode.OTHER.name
    version: I64 = 0
    silent_millis: I64 = 0
    queues: I64 = 0
    locks: I64 = 0


class GroupQueue(Members):
    """A group's progress in one queue; -1 stands for what is not known.

    `start_offset` and `end_offset` bound the queue, `committed_offset` is the next message to consume. `lag_age_millis`
    is the age of the oldest message that is not committed. `client_id` is the member that holds the queue's lock, or
    pulled from it last, "" for none. `in_flight` and `last_commit_timestamp` (ms since 1970) are of this broker's life.
    """

    topic: str = ""
    queue_id: I64 = 0
    start_offset: I64 = 0
    end_offset: I64 = 0
    committed_offset: I64 = -1
    lag_age_millis: I64 = 0
    in_flight: I64 = 0
    client_id: str = ""
    last_commit_timestamp: I64 = -1

    @property
    def lag(self) -> int:
        """How many messages are not committed; of a group without an offset, all that the queue has."""
        return max(0, self.end_offset - max(self.committed_offset, self.start_offset))


class GroupDescription(LargeBody):
    """Answer body of DESCRIBE_GROUP; how the group consumes is told by its members, and by defaults if it has none."""

    summary: GroupSummary
    members: list[GroupMember] = []
    queues: list[GroupQueue] = []
    subscriptions: list[SubscriptionData] = []
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
