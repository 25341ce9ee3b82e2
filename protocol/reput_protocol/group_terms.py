"""The words with which members of a consumer group say how they consume, and how a message went.

(RocketMQ: ConsumeType, MessageModel, ConsumeFromWhere, CMResult, LocalTransactionState.)
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from reput_protocol.codes import MessageSysFlag


class ConsumeType(StrEnum):
    """Who decides when messages are fetched: the application (`ACTIVELY`), the client, or the broker (`POP`)."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether the members of a group share the messages out or each of them gets all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(StrEnum):
    """Where a group begins in a queue of which it has no offset. RocketMQ calls the last three deprecated."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"


class ConsumeResult(StrEnum):
    """What became of a message that a member was told to consume (309)."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class TransactionState(IntEnum):
    """What a producer says of its half message (field `commitOrRollback` of 37)."""

    UNKNOWN = 0
    COMMIT = MessageSysFlag.TRANSACTION_COMMIT
    ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK


class ExpressionType(StrEnum):
    """The language of a subscription's filter."""

    TAG = "TAG"
    SQL92 = "SQL92"
