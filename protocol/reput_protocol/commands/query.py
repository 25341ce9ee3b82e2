"""Finding messages by key, by offset message id, and by the entries of a queue."""

from __future__ import annotations

from typing import Final

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I32, I64, CommandHeader, LargeBody, Members, RequestType, Sender
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.names import GroupName, TopicName
from reput_protocol.rights import Right

TIME_MAX_MS: Final = (1 << 63) - 1
"""A store time later than any message's."""


class QueryMessageHeader(CommandHeader):
    """Header of 12: the newest `max_num` messages of a topic with a key, stored between two times (ms).

    The key is a unique id or one of the keys; RocketMQ's clients say which, without effect here. Empty: any message
    that has one of them.
    """

    topic: TopicName
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64


class QueryMessageResult(CommandHeader):
    """Answer to 12: store time and log offset of the last indexed message; the body is the records.

    `index_complete` is Reput's: false while the index is rebuilt after a crash.
    """

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64
    index_complete: bool | None = None


class ViewMessageHeader(CommandHeader):
    """Header of 33: the one record at a physical offset."""

    offset: I64
    topic: TopicName | None = None


class QueryConsumeQueueHeader(CommandHeader):
    """Header of 321: entries of a queue from `index` on, and what a group's subscription makes of them."""

    topic: TopicName
    queue_id: I32
    index: I64
    count: I32
    consumer_group: GroupName | None = None


class ConsumeQueueData(Members):
    """One entry: the record's place in the log, its size, and the hash of its tag.

    `extend_data_json` and `bit_map` describe an extended entry; `eval` is whether the subscription accepts it, `msg`
    what is wrong with the entry.
    """

    physical_offset: I64 = field(default=0, name="physicOffset")
    size: I32 = field(default=0, name="physicSize")
    tags_code: I64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class ConsumeQueueBody(LargeBody):
    """Answer body of 321 (RocketMQ: QueryConsumeQueueResponseBody)."""

    queue_data: list[ConsumeQueueData] = []
    min_queue_index: I64 = 0
    max_queue_index: I64 = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.QUERY_MESSAGE, QueryMessageHeader, sender=Sender.CLIENT, topics=Right.READ, pool="query_message"
    ),
    RequestType(
        RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader, sender=Sender.CLIENT,
        fields={"topic": "that of the message counts"}, handler_checks="read on the topic of the message",
        pool="query_message",
    ),
    RequestType(
        RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueueHeader, topics=Right.READ, groups=Right.DESCRIBE
    ),
)  # fmt: skip
