"""Replication: its state (RocketMQ: HARuntimeInfo), a planned change of the master, and what a slave asks its master
before it copies its log, and a member the others before it campaigns. The last two are Reput's.
"""

from __future__ import annotations

from typing import Final

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Members, RequestType, Sender
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


# -- the requests ------------------------------------------------------------------------------------------------------


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


# -- the requests ------------------------------------------------------------------------------------------------------


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
)  # fmt: skip
