"""Names of topics and groups: their types, valid ones, and the system's (RocketMQ: TopicValidator)."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from functools import lru_cache
from typing import Annotated, Final, TypeAlias

from reput_protocol.errors import InvalidName


class Names(Enum):
    """What the text in a field of a request names. The type of the field says so; rights are checked by it."""

    TOPIC = "topic"
    TOPICS = "topics, joined by `;`"
    POPPED_TOPIC = "topic, or the retry topic of it and of the group in the same object"
    GROUP = "group"
    GROUPS = "groups, joined by `,`"
    PRODUCER_GROUP = "producer group"
    CLIENT = "client id"
    BROKER = "broker"


TopicName: TypeAlias = Annotated[str, Names.TOPIC]
TopicNames: TypeAlias = Annotated[str, Names.TOPICS]
PoppedTopicName: TypeAlias = Annotated[str, Names.POPPED_TOPIC]
GroupName: TypeAlias = Annotated[str, Names.GROUP]
GroupNames: TypeAlias = Annotated[str, Names.GROUPS]
ProducerGroupName: TypeAlias = Annotated[str, Names.PRODUCER_GROUP]
ClientId: TypeAlias = Annotated[str, Names.CLIENT]
BrokerName: TypeAlias = Annotated[str, Names.BROKER]

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"

DEFAULT_TOPIC: Final = "TBW102"
"""The template of topics created on first use; clients name it when they send."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SINK_TOPIC: Final = "rmq_sys_reput_sink"
"""Reput's: markers of the batches that sinks commit."""
STAGED_TOPIC: Final = "rmq_sys_reput_staged"
"""Reput's: copies of what sinks have staged, for another master."""
DELAY_CANCEL_TOPIC: Final = "rmq_sys_REPUT_DELAY_CANCEL"
"""Reput's: a record for each cancelled message of a delay level."""
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""With the cluster's name: check points of popped messages, and acknowledgements."""

SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        TIMER_TOPIC,
        SINK_TOPIC,
        STAGED_TOPIC,
    }
)

FORBIDDEN_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        # RocketMQ lets clients write to it, and then fails on what they wrote.
        TIMER_TOPIC,
        SINK_TOPIC,
        STAGED_TOPIC,
        DELAY_CANCEL_TOPIC,
    }
)
"""Topics that only the broker writes to, besides those of `REVIVE_PREFIX`."""

SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }
)

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
"""System services' groups, created on first use (RocketMQ: MixAll)."""

CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""The producer group of messages that RocketMQ's clients send by themselves."""

TRANSACTION_CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Has the broker's progress through the half messages."""

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""Has the broker's progress through the check points: the last entry that is done with."""

POP_PASSED_GROUP: Final = "CID_RMQ_SYS_REPUT_POP"
"""Has, on a slave, up to which log offset the check points are part of the groups' offsets."""

BROKERS_GROUPS: Final = frozenset({TRANSACTION_CHECK_GROUP, REVIVE_GROUP, POP_PASSED_GROUP})
"""Their offsets are the broker's own progress, which no client may commit."""

TOOL_GROUPS: Final = frozenset(
    {
        "reput-bench",
        "reput-cli",
        "reput-console",
        "reput-dlq",
        "reput-outbox",
        "reput-proxy",
        "reput-sink",
        "celery-results",
        "kombu",
    }
)
"""The groups under which Reput's own tools and integrations read and send."""

TOPIC_LENGTH_MAX: Final = 127
LONG_TOPIC_LENGTH_MAX: Final = 255
"""Of retry and dead-letter topics; others have `TOPIC_LENGTH_MAX`."""

GROUP_LENGTH_MAX: Final = 120
_LABEL_BYTES_MAX: Final = 255
_RESERVED_GROUPS: Final = frozenset({"DEFAULT_CONSUMER", "DEFAULT_PRODUCER"})
_ILLEGAL: Final = re.compile(r"[^%|a-zA-Z0-9_-]")
_ALLOWED: Final = "letters a-z A-Z, digits, and the characters % | _ -"


def check_topic(topic: str) -> str:
    """Return `topic` if it is a valid topic name, including system and retry topics.

    Raises:
        InvalidName: it is empty, too long (127 characters; retry and dead-letter topics 255), or has an invalid
            character.
    """
    if type(topic) is not str:
        raise InvalidName(f"a topic name is a str, not {type(topic).__name__}; pass the topic's name")
    return _check_topic(topic)


@lru_cache(maxsize=1024)
def _check_topic(topic: str) -> str:
    _check_characters("topic", topic)
    limit = LONG_TOPIC_LENGTH_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_LENGTH_MAX
    if len(topic) > limit:
        raise InvalidName(f"topic name of {len(topic)} characters, but at most {limit} are allowed; shorten it")
    return topic


def check_send_topic(topic: str) -> str:
    """Return `topic` if a client may send to it.

    Raises:
        InvalidName: it is not valid, or only the broker writes to it.
    """
    if type(topic) is not str:
        check_topic(topic)
    return _check_send_topic(topic)


@lru_cache(maxsize=1024)
def _check_send_topic(topic: str) -> str:
    check_topic(topic)
    if only_broker_writes(topic):
        raise InvalidName(f"topic {topic!r} belongs to the broker and takes no messages; send to a topic of your own")
    return topic


def only_broker_writes(topic: str) -> bool:
    """Return whether clients may not send to `topic`, because the broker relies on what is in it."""
    return topic in FORBIDDEN_SEND_TOPICS or topic.startswith(REVIVE_PREFIX)


def check_group(group: str) -> str:
    """Return `group` if it is a valid group name.

    Raises:
        InvalidName: it is empty, longer than 120 characters, or has an invalid character.
    """
    if type(group) is not str:
        raise InvalidName(f"a group name is a str, not {type(group).__name__}; pass the group's name")
    return _check_group(group)


@lru_cache(maxsize=1024)
def _check_group(group: str) -> str:
    _check_characters("group", group)
    if len(group) > GROUP_LENGTH_MAX:
        raise InvalidName(
            f"group name of {len(group)} characters, but at most {GROUP_LENGTH_MAX} are allowed; shorten it"
        )
    return group


def check_client_group(group: str) -> str:
    """Return `group` if a client may be a member of it.

    Raises:
        InvalidName: it is not valid, or a default of RocketMQ's clients, which would mix unrelated programs.
    """
    check_group(group)
    if group in _RESERVED_GROUPS:
        raise InvalidName(f"group {group!r} is reserved; choose another name for the group")
    return group


def check_label(kind: str, text: str) -> str:
    """Return a client id, or another text by which a client is known, if it can be one.

    RocketMQ accepts any, so only harmful ones are refused.

    Raises:
        InvalidName: it is empty, longer than 255 bytes, or has a character that does not print.
    """
    if not text.isprintable():
        raise InvalidName(f"{kind} {text[:80]!r} has a character that does not print; leave it out")
    if not 0 < len(text.encode()) <= _LABEL_BYTES_MAX:
        raise InvalidName(f"a {kind} of {len(text.encode())} bytes; it has 1 to {_LABEL_BYTES_MAX}, in UTF-8")
    return text


def is_system_topic(topic: str, own_names: Collection[str] = ()) -> bool:
    """Return whether `topic` is a system topic: hidden from ordinary lists, never created or deleted.

    Args:
        own_names: names of brokers and clusters, which have topics of the same names, and clusters one for replies.
    """
    return (
        topic in SYSTEM_TOPICS
        or topic.startswith(SYSTEM_PREFIX)
        or topic in own_names
        or (topic.endswith(REPLY_TOPIC_SUFFIX) and topic.removesuffix(REPLY_TOPIC_SUFFIX) in own_names)
    )


def is_system_group(group: str) -> bool:
    """Return whether `group` is a system group."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_own_group(group: str) -> bool:
    """Return whether a program of Reput's or the system has `group`, and not an application."""
    return group in TOOL_GROUPS or is_system_group(group)


def retry_topic(group: str) -> str:
    """Return the topic for redelivery of messages that `group` failed to handle."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic of `group`'s dead letters."""
    return DLQ_PREFIX + group


def group_of_retry_topic(topic: str) -> str | None:
    """Return the group of a retry topic, or None."""
    return topic[len(RETRY_PREFIX) :] if topic.startswith(RETRY_PREFIX) else None


def pop_retry_topic(topic: str, group: str) -> str:
    """Return the topic for redelivery of messages of `topic` that `group` popped and did not acknowledge."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(topic: str, group: str) -> str:
    """Return that topic's name at a RocketMQ broker with `enableRetryTopicV2`."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def popped_topic(topic: str, group: str) -> str:
    """Return the topic whose messages the retry topic `topic` has; any other topic itself."""
    for prefix in (pop_retry_topic("", group), pop_retry_topic_v2("", group)):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


def revive_topic(cluster: str) -> str:
    """Return the topic of check points and acknowledgements of popped messages."""
    return REVIVE_PREFIX + cluster


def reply_topic(cluster: str) -> str:
    """Return the topic for replies to requests."""
    return cluster + REPLY_TOPIC_SUFFIX


def _check_characters(kind: str, name: str) -> None:
    if not name:
        raise InvalidName(f"empty {kind} name; allowed are {_ALLOWED}")
    match = _ILLEGAL.search(name)
    if match:
        raise InvalidName(
            f"{kind} name {name[:80]!r} has the illegal character {match[0]!r} at position {match.start()}; "
            f"allowed are {_ALLOWED}: {_ILLEGAL.sub('-', name[:80])!r}, for example"
        )
