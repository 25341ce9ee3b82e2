"""The state of replication of one broker (RocketMQ: HARuntimeInfo)."""

from __future__ import annotations

from typing import Final

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.body import Body, Members
from reput_protocol.commands.header import I64, CommandHeader
from reput_protocol.commands.request import RequestType
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

REQUESTS: Final = (
    RequestType(RequestCode.GET_BROKER_HA_STATUS, cluster=Right.DESCRIBE),
    RequestType(
        RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetHeader, cluster=Right.ADMIN
    ),
)  # fmt: skip
