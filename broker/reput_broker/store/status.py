"""Outcomes of puts and gets that a caller acts on (RocketMQ: PutMessageStatus, GetMessageStatus).

Reaching the end of a queue, or being refused because the disk is full, is a result and not an exception: the
server turns each into its own response code together with the queue offset to go on from.
"""

from __future__ import annotations

from enum import Enum, auto


class PutStatus(Enum):
    """What became of a put. Only after `PUT_OK` is anything stored."""

    PUT_OK = auto()
    """Stored in the page cache; durable once the log is flushed past the result's `end_offset`."""

    MESSAGE_ILLEGAL = auto()
    """A message breaks a limit (topic, body or record size) or would not fit into a whole log file."""

    PROPERTIES_SIZE_EXCEEDED = auto()
    """The properties text is longer than a record can hold."""

    DISK_FULL = auto()
    """No file could be made for the message. The store keeps serving and accepts puts again when there is space."""

    CREATE_MAPPED_FILE_FAILED = auto()
    """No file could be made for the message, for another reason: `MessageStore.file_refusal` says which.

    The store keeps serving and accepts puts again when a file can be made.
    """

    OS_PAGE_CACHE_BUSY = auto()
    """The page cache takes messages too slowly: no buffer of the pool is free. It may be tried again at once."""

    READ_ONLY = auto()
    """The store no longer writes: a flush failed or damage was found; `MessageStore.read_only_reason` says which."""

    SERVICE_NOT_AVAILABLE = auto()
    """The store is not open."""


class GetStatus(Enum):
    """What a get found; `next_begin_offset` of the result says where to go on."""

    FOUND = auto()
    """At least one message is in the result."""

    NO_MATCHED_MESSAGE = auto()
    """Entries were scanned and the filter let none of them through."""

    MESSAGE_WAS_REMOVING = auto()
    """The scanned entries point to records that have been deleted from the log."""

    OFFSET_FOUND_NULL = auto()
    """The queue has no readable file at the offset; go on at the next file."""

    OFFSET_OVERFLOW_BADLY = auto()
    """The offset lies beyond the end of the queue."""

    OFFSET_OVERFLOW_ONE = auto()
    """The offset is the end of the queue: the next message will get it."""

    OFFSET_TOO_SMALL = auto()
    """The offset lies before the first message that is still kept."""

    NO_MATCHED_LOGIC_QUEUE = auto()
    """There is no such queue."""

    NO_MESSAGE_IN_QUEUE = auto()
    """The queue exists and has never held a message."""
