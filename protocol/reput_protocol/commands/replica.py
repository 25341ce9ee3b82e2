"""Replication: its state (RocketMQ: HARuntimeInfo), a planned change of the master, what a slave asks its master before
it copies its log, and a member the others before it campaigns, and the tables that a slave takes over (RocketMQ:
SlaveSynchronize).

The requests and bodies of tables are RocketMQ's, except the table of batches. Reput's fields in the header save what
has not changed: a slave names the version that it has, and the answer has no body if that is the master's too. The
change of the master and the questions are Reput's.
"""

from __future__ import annotations

from typing import Final

from msgspec import field

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, LargeBody, Members, RequestType, Sender
from reput_protocol.names import BrokerName
from reput_protocol.rights import Right


class ResetMasterFlushOffsetHeader(CommandHeader):
    """Header of RESET_MASTER_FLUSH_OFFSET."""

    master_flush_offset: I64 | None = None


class HAConnectionRuntimeInfo(Members):
    """A slave, as its master sees it."""

    addr: str = ""
    slave_ack_offset: I64 = 0
    diff: I64 = 0
    """Bytes of the log that it lacks."""
    in_sync: bool = False
    transferred_byte_in_second: I64 = 0
    transfer_from_where: I64 = 0
    """The log has been sent to it up to here."""


class HAClientRuntimeInfo(Members):
    """A slave, as it sees itself. Times in milliseconds; 0 if there is none."""

    master_addr: str = ""
    transferred_byte_in_second: I64 = 0
    max_offset: I64 = 0
    last_read_timestamp: I64 = 0
    last_write_timestamp: I64 = 0
    master_flush_offset: I64 = 0
    """The end of the master's log, as far as the slave knows it."""
    activated: bool = False
    """Whether it receives the log."""


class HARuntimeInfo(Body):
    """Answer body of 907: of a master its slaves, of a slave its client."""

    master: bool = False
    master_commit_log_max_offset: I64 = 0
    in_sync_slave_nums: I64 = 0
    connections: list[HAConnectionRuntimeInfo] = field(default_factory=list, name="haConnectionInfo")
    client: HAClientRuntimeInfo | None = field(default=None, name="haClientRuntimeInfo")


class PromoteBrokerHeader(CommandHeader):
    """Header of PROMOTE_BROKER: make a member of the group the master. The master answers.

    With `force`, also a member that is not in sync; what it does not have is lost. Without a master, the named member
    answers a forced request itself.
    """

    broker_id: I64
    force: bool = False


class Promotion(Body):
    """Answer body of PROMOTE_BROKER.

    Attributes:
        broker_id: the next master; it serves once it has opened its log as master.
        end_offset: the end of the log of the broker that answers.
        kept_offset: up to where the next master has that log; the rest is lost to readers.
    """

    broker_id: I64
    end_offset: I64
    kept_offset: I64


class QueryReplicaStateHeader(CommandHeader):
    """Header of QUERY_REPLICA_STATE."""

    record_offset: I64 = -1
    """Where the last record of the slave's log starts, to be compared; -1: none."""
    member: I32 | None = None
    """The slave's number in its group."""
    is_fit: bool | None = None
    """Whether the slave could store messages, as master."""
    copies_tables: bool | None = None
    """Whether the slave says what it has of the tables, by AWAIT_TABLE_CHANGES; earlier versions do not."""
    proves_user: bool | None = None
    """Whether the slave will prove its user on the port of the log, if the master has access control."""
    slave_id: I32 | None = None
    """The id under which the slave is announced."""
    address: str | None = None
    """Where clients reach the slave, `host:port`."""


class ReplicaAdmission(CommandHeader):
    """Header of the answer: what the slave proves its user with; absent without access control."""

    admission: str | None = None
    """A number in hexadecimal digits, valid once."""


class MemberBroker(Body):
    """A broker of a replica group."""

    slave_id: int
    """The id under which it is announced while it is a slave."""
    address: str
    """Where clients reach it, `host:port`."""
    age_s: float = 0.0
    """For how many seconds it has not been seen."""


class ReplicaState(Body):
    """The body of an answer to QUERY_REPLICA_STATE: the history of a log."""

    cluster: str
    broker_name: BrokerName
    is_master: bool
    epoch: int
    """The current epoch; 0 for a slave."""
    min_offset: int
    max_offset: int
    file_size: int
    """Bytes of a file of the log."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Number and start offset of each epoch."""
    confirm_offset: int | None = None
    """Consumers see nothing beyond it; None without an election."""
    ha_port: int | None = None
    """Where it serves its log; None if it does not."""
    member: int | None = None
    """Its number in a group that elects its master; None without an election."""
    seen_record: tuple[int, int] | None = None
    """Epoch and version of the last record of the group that it saw at the engine that elects; None without an
    election.
    """
    known_confirmed: tuple[int, int] | None = None
    """An epoch, and the offset up to which this log is known to be confirmed by its master; None without an election.
    """
    record_crc: int | None = None
    """CRC-32 of the whole record at the requested offset; None if none starts there."""
    members: list[MemberBroker] = field(default_factory=list)
    """The members of the group that it knows, itself among them unless it is always the master."""


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
    RequestType(RequestCode.GET_BROKER_HA_STATUS, cluster=Right.DESCRIBE),
    RequestType(
        RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetHeader, cluster=Right.ADMIN
    ),
    RequestType(RequestCode.PROMOTE_BROKER, PromoteBrokerHeader, cluster=Right.ADMIN),
    RequestType(
        RequestCode.QUERY_REPLICA_STATE, QueryReplicaStateHeader, sender=Sender.BROKER, cluster=Right.REPLICATE,
        proves_master=True,
    ),
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
