"""Transactions: a producer ends one, the broker checks one, an operator lists those that are open."""

from __future__ import annotations

from typing import Final

from msgspec import field

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, Members, RequestType, Sender
from reput_protocol.names import BrokerName, ProducerGroupName, TopicName
from reput_protocol.rights import Right


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


class ListTransactionsHeader(CommandHeader):
    """Header of LIST_TRANSACTIONS: the open transactions of one topic, with one key, or all.

    `topic` is where the messages go once they are committed, `key` their unique id or one of their keys. `cursor`
    continues after the previous answer. There may be fewer than `max_num`.
    """

    topic: TopicName | None = None
    key: str | None = None
    max_num: I32 = 64
    cursor: I64 | None = None


class OpenTransaction(Members):
    """One half message that is neither committed nor rolled back; times are ms since 1970.

    `topic` and `queue_id` are where a commit puts it. END_TRANSACTION takes `queue_offset` and `commit_log_offset`.
    `check_times` is how often its producers were asked.
    """

    topic: TopicName = ""
    queue_id: I64 = 0
    producer_group: ProducerGroupName = ""
    queue_offset: I64 = 0
    commit_log_offset: I64 = 0
    store_timestamp: I64 = 0
    check_times: I64 = 0
    size: I64 = 0
    unique_id: str | None = field(default=None, name="uniqKey")
    tag: str | None = None
    keys: list[str] = []
    broker_name: BrokerName = ""


class OpenTransactions(Body):
    """Answer body of LIST_TRANSACTIONS, the oldest first; with a `cursor` there may be more.

    `open` counts all that are open for the topic, or for all topics if none is named.
    """

    transactions: list[OpenTransaction] = []
    cursor: I64 | None = None
    open: I64 = 0


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.END_TRANSACTION, EndTransactionHeader, sender=Sender.PRODUCER,
        fields={"topic": "that of the half message counts"},
        handler_checks="write on the topic of the half message", kind=Kind.CHANGES,
        refusal=ResponseCode.SLAVE_NOT_AVAILABLE, pool="transaction", is_oneway=True,
    ),
    RequestType(
        RequestCode.LIST_TRANSACTIONS, ListTransactionsHeader, topics=Right.READ, unnamed=Right.ADMIN,
        kind=Kind.MASTER_ONLY,
    ),
    RequestType(
        RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionHeader, sender=Sender.TO_CLIENTS, is_oneway=True
    ),
)  # fmt: skip
