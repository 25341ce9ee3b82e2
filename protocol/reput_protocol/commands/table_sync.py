"""Tables that a slave takes over from its master (RocketMQ: SlaveSynchronize).

The requests and bodies are RocketMQ's, except the table of batches. Reput's fields in the header save what has not
changed: a slave names the version that it has, and the answer has no body if that is the master's too.
"""

from __future__ import annotations

from typing import Final

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.base import I32, I64, CommandHeader, Kind, LargeBody, RequestType, Sender
from reput_protocol.rights import Right


class SyncTableHeader(CommandHeader):
    """Header of 21, 43, 45, 201, GET_SINK_BATCHES, GET_GROUP_MEMBERS and GET_ALL_SCHEDULES."""

    table_version: str | None = None
    """The version of an earlier answer, whose table the slave has; empty if it has none. RocketMQ's name none."""
    part_offset: I64 | None = None
    """From which byte of the table on the slave wants it; None if it cannot put parts together."""
    part_of: str | None = None
    """The version of the table that it has the beginning of."""


class SyncTableResult(CommandHeader):
    """Answer to them; RocketMQ sends none of these fields, and always a body."""

    table_version: str | None = None
    """Without a body: still the slave's version."""
    log_end: I64 | None = None
    """End of the log that the table belongs to: it may name anything before."""
    is_partial: bool | None = None
    """Of 43: the body has what changed since the slave's version; otherwise it is the whole table."""
    table_size: I64 | None = None
    """Bytes of the table if the body is a part of it, the first one unless `part_of` is this version."""


ANNOUNCED_TABLES: Final = (
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_SINK_BATCHES,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.GET_GROUP_MEMBERS,
    RequestCode.GET_ALL_SCHEDULES,
)
"""The requests for the tables whose changes are announced, in the order of `TableChanges.tables`."""


class AwaitTableChangesHeader(CommandHeader):
    """Header of AWAIT_TABLE_CHANGES: a member tells its elected master which changes it has, and waits for others."""

    member: I32
    """The member's number in its group."""
    taken: str = ""
    """The `changes` of an earlier answer, all of which the member has taken over durably; empty: none."""
    known: str = ""
    """The `changes` of the last answer; empty: none."""
    tables: str = ""
    """The `tables` of the last answer."""
    confirm_offset: I64 = -1
    """That of the last answer."""
    wait_ms: I64 = 0
    """Answer so late if there is nothing else than the last answer said."""


class TableChanges(CommandHeader):
    """Answer to it."""

    changes: str
    """Stands for the changes by requests so far; another text means that there were more."""
    tables: str
    """A text for each of ANNOUNCED_TABLES, with dots between; another one means that the table has changed."""
    epoch: I64
    confirm_offset: I64
    """All before this log offset is on every member of the in-sync set."""
    log_end: I64
    """End of the master's log."""


class ConsumerOffsetTable(LargeBody):
    """Answer body of 43: offsets by queue id, by `topic@group` (RocketMQ: ConsumerOffsetSerializeWrapper)."""

    offset_table: dict[str, dict[int, I64]] = {}
    data_version: dict[str, I64] = {}


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.GET_ALL_TOPIC_CONFIG, SyncTableHeader, sender=Sender.BROKER, cluster=Right.DESCRIBE,
        proves_master=True,
    ),
    RequestType(
        RequestCode.GET_ALL_CONSUMER_OFFSET, SyncTableHeader, sender=Sender.BROKER, cluster=Right.REPLICATE,
        kind=Kind.MASTER_ONLY, proves_master=True,
    ),
    RequestType(
        RequestCode.GET_ALL_DELAY_OFFSET, SyncTableHeader, sender=Sender.BROKER, cluster=Right.REPLICATE,
        kind=Kind.MASTER_ONLY, refusal=ResponseCode.SYSTEM_ERROR, proves_master=True,
    ),
    RequestType(RequestCode.GET_TIMER_CHECK_POINT, sender=Sender.BROKER, cluster=Right.REPLICATE, proves_master=True),
    RequestType(RequestCode.GET_TIMER_METRICS, sender=Sender.BROKER, cluster=Right.REPLICATE),
    RequestType(
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, SyncTableHeader, sender=Sender.BROKER, cluster=Right.REPLICATE,
        proves_master=True,
    ),
    RequestType(
        RequestCode.GET_SINK_BATCHES, SyncTableHeader, sender=Sender.BROKER, cluster=Right.REPLICATE,
        kind=Kind.MASTER_ONLY, proves_master=True,
    ),
    RequestType(
        RequestCode.GET_GROUP_MEMBERS, SyncTableHeader, sender=Sender.BROKER, cluster=Right.REPLICATE,
        kind=Kind.MASTER_ONLY, proves_master=True,
    ),
    RequestType(
        RequestCode.GET_ALL_SCHEDULES, SyncTableHeader, sender=Sender.BROKER, cluster=Right.REPLICATE,
        kind=Kind.MASTER_ONLY, proves_master=True,
    ),
    RequestType(
        RequestCode.AWAIT_TABLE_CHANGES, AwaitTableChangesHeader, sender=Sender.BROKER, cluster=Right.REPLICATE,
        kind=Kind.MASTER_ONLY,
    ),
)  # fmt: skip
