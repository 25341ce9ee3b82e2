"""Names of topics and groups: which are legal, which the system keeps to itself (RocketMQ: TopicValidator)."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from reput_protocol.errors import InvalidName

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"

DEFAULT_TOPIC: Final = "TBW102"
"""The template from which topics are created on first use; clients name it in the header of a send."""

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
"""Ours: a marker for every batch that a sink has committed."""
DELAY_CANCEL_TOPIC: Final = "rmq_sys_REPUT_DELAY_CANCEL"
"""Holds a record for each message of a delay level that was cancelled; RocketMQ knows of no such thing."""

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
        # The timer's own topic: RocketMQ lets clients write to it and then trips over what it finds there.
        TIMER_TOPIC,
        SINK_TOPIC,
        DELAY_CANCEL_TOPIC,
    }
)
"""Topics that only the broker itself writes to."""

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
"""Groups of the system's own services; they come into being when they are first used (RocketMQ: MixAll)."""

CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""The producer group of what RocketMQ's clients send on their own account."""

REPLAY_GROUP: Final = "CID_RMQ_SYS_REPUT_DLQ_REPLAY"
"""The group under which `reput dlq replay` keeps how far it has come."""

TRANSACTION_CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group under which the broker keeps how far it has looked at half messages."""

TOPIC_LENGTH_MAX: Final = 127
LONG_TOPIC_LENGTH_MAX: Final = 255
"""The longest retry or dead-letter topic; other topics end at `TOPIC_LENGTH_MAX`."""

GROUP_LENGTH_MAX: Final = 120
_RESERVED_GROUPS: Final = frozenset({"DEFAULT_CONSUMER", "DEFAULT_PRODUCER"})
_ILLEGAL: Final = re.compile(r"[^%|a-zA-Z0-9_-]")
_ALLOWED: Final = "letters a-z A-Z, digits, and the characters % | _ -"


def check_topic(topic: str) -> str:
    """Return `topic` if it is a legal topic name, system and retry topics included.

    Raises:
        InvalidName: it is empty, too long (127 characters; retry and dead-letter topics 255) or holds an
        illegal
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
        raise InvalidName(
            f"topic name of {len(topic)} characters, but at most {limit} are allowed; shorten it"
        )
    return topic


def check_send_topic(topic: str) -> str:
    """Return `topic` if a client may send to it.

    Raises:
        InvalidName: it is not a legal name, or only the broker itself writes to it.
    """
    if type(topic) is not str:
        check_topic(topic)
    return _check_send_topic(topic)


@lru_cache(maxsize=1024)
def _check_send_topic(topic: str) -> str:
    check_topic(topic)
    if topic in FORBIDDEN_SEND_TOPICS:
        raise InvalidName(
            f"topic {topic!r} belongs to the broker and takes no messages; send to a topic of your own"
        )
    return topic


def check_group(group: str) -> str:
    """Return `group` if it is a legal group name.

    Raises:
        InvalidName: it is empty, longer than 120 characters or holds an illegal character.
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
    """Return `group` if a client may call itself a member of it.

    Raises:
        InvalidName: it is not a legal name, or it is one of the two defaults of RocketMQ's clients, which
        would
            throw unrelated programs into one group.
    """
    check_group(group)
    if group in _RESERVED_GROUPS:
        raise InvalidName(f"group {group!r} is reserved; give the group a name of its own")
    return group


def is_system_topic(topic: str, own_names: Collection[str] = ()) -> bool:
    """Tell whether `topic` belongs to the system:

    it is hidden from ordinary lists and never created or deleted.

    Args:
        topic: name of the topic.
        own_names: the names of brokers and clusters, which have topics of these names, clusters one for replies too.
    """
    return (
        topic in SYSTEM_TOPICS
        or topic.startswith(SYSTEM_PREFIX)
        or topic in own_names
        or (topic.endswith(REPLY_TOPIC_SUFFIX) and topic.removesuffix(REPLY_TOPIC_SUFFIX) in own_names)
    )


def is_system_group(group: str) -> bool:
    """Tell whether `group` belongs to the system."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic to which messages that `group` could not handle come back."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic where messages end that `group` gave up on."""
    return DLQ_PREFIX + group


def group_of_retry_topic(topic: str) -> str | None:
    """Return the group whose messages come back through `topic`, or None if it is no retry topic."""
    return topic[len(RETRY_PREFIX) :] if topic.startswith(RETRY_PREFIX) else None


def reply_topic(cluster: str) -> str:
    """Return the topic that the replies to requests are sent to."""
    return cluster + REPLY_TOPIC_SUFFIX


def _check_characters(kind: str, name: str) -> None:
    if not name:
        raise InvalidName(f"empty {kind} name; allowed are {_ALLOWED}")
    match = _ILLEGAL.search(name)
    if match:
        raise InvalidName(
            f"{kind} name {name[:80]!r} has the illegal character {match[0]!r} at position {match.start()}; "
            f"allowed are {_ALLOWED}"
        )
