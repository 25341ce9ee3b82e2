"""Headers of transactions: a producer ends one, the broker checks one."""

from __future__ import annotations

from typing import Final

from msgspec import field

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.header import I32, I64, CommandHeader
from reput_protocol.commands.request import RequestType, Sender, Slave
from reput_protocol.names import BrokerName, ProducerGroupName, TopicName


class EndTransactionHeader(CommandHeader):
    """Header of 37: commit or roll back a half message.

    `tran_state_table_offset` is its offset in the half queue, `commit_log_offset` its physical offset, by the receipt
    or the check. `commit_or_rollback` is a `TransactionState`.
    """

    producer_group: ProducerGroupName
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None
    topic: TopicName | None = None
    broker_name: BrokerName | None = field(default=None, name="bname")


class CheckTransactionHeader(CommandHeader):
    """Header of 39, sent by the broker: how did this half message's transaction end? The body is its record.

    The answer is a 37 with `fromTransactionCheck` and the same offsets. `msg_id` and `transaction_id` are the unique
    id, `offset_msg_id` is the half record's.
    """

    tran_state_table_offset: I64
    commit_log_offset: I64
    topic: TopicName | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: BrokerName | None = field(default=None, name="bname")


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.END_TRANSACTION, EndTransactionHeader, sender=Sender.PRODUCER,
        fields={"topic": "that of the half message counts"},
        handler_checks="write on the topic of the half message", slave=Slave.REFUSES,
        refusal=ResponseCode.SLAVE_NOT_AVAILABLE, pool="transaction", is_oneway=True,
    ),
    RequestType(
        RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionHeader, sender=Sender.TO_CLIENTS, is_oneway=True
    ),
)  # fmt: skip
