"""Reput's client for trio and asyncio; `reput_client.blocking` is the synchronous API.

- `produce`: producers, transactions, requests, the batch writer
- `consume`: group consumers, pull consumers, bulk readers
- `pop`: consumers without queues of their own, which acknowledge each message
- `admin`, `admin_groups`, `admin_users`: administration of brokers
- `transport`: connections, routes, requests
- `tls`, `received`, `users`, `offset_store`, `errors`

Names are imported on first use: importing this package is cheap, and the synchronous API imports no event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput_client.admin import Admin
    from reput_client.consume.columns import MessageColumns
    from reput_client.consume.consumer import Consumer
    from reput_client.consume.fetch_records import ColumnsResult
    from reput_client.consume.group.allocation import (
        averagely,
        by_config,
        by_machine_room,
        circularly,
        consistent_hash,
    )
    from reput_client.consume.group.failures import (
        Again,
        Failure,
        GiveBack,
        OnFailure,
        RetryHere,
        StopRunning,
        Verdict,
    )
    from reput_client.consume.pull import PullResult, PullStatus
    from reput_client.consume.pull_consumer import PullConsumer
    from reput_client.credentials import Credentials
    from reput_client.errors import (
        AckNotReached,
        AmbiguousQueue,
        BrokerBusy,
        BrokerError,
        BrokerNotFound,
        BrokersFailed,
        ClientClosed,
        ConnectFailed,
        ConnectionLost,
        DamagedMessage,
        ErrorCode,
        FilterRefused,
        FilterSyntaxError,
        GroupNotFound,
        InflatedTooLarge,
        InvalidHandle,
        InvalidMessage,
        InvalidName,
        MessageRefused,
        NoQueue,
        NotABroker,
        NotFound,
        NotMaster,
        OffsetOutOfRange,
        OffsetStoreDamaged,
        OffsetStoreInUse,
        PartlyAcknowledged,
        PartlySent,
        PermissionDenied,
        PostsFailed,
        ProtocolError,
        RecordMalformed,
        ReplyTimeout,
        ReputError,
        RequesterGone,
        RequestNotSupported,
        RequestTimeout,
        SendOutcomeUnknown,
        StoreUnavailable,
        TlsRefused,
        TopicNotFound,
        TransactionEnded,
        UnsupportedCompression,
    )
    from reput_client.offset_store import LocalFileOffsetStore, ReadOffsetType, RemoteOffsetStore
    from reput_client.pop.consumer import PopConsumer
    from reput_client.pop.popped import PoppedMessage
    from reput_client.produce.posted_block import Posted
    from reput_client.produce.producer import Producer
    from reput_client.produce.receipts import SendReceipt, TransactionReceipt
    from reput_client.produce.transactions import TransactionProducer
    from reput_client.received import ReceivedMessage
    from reput_client.tls import TLS
    from reput_protocol.codes import TransactionState
    from reput_protocol.record.message import Message, MessageQueue

__all__ = [
    "TLS",
    "AckNotReached",
    "Admin",
    "Again",
    "AmbiguousQueue",
    "BrokerBusy",
    "BrokerError",
    "BrokerNotFound",
    "BrokersFailed",
    "ClientClosed",
    "ColumnsResult",
    "ConnectFailed",
    "ConnectionLost",
    "Consumer",
    "Credentials",
    "DamagedMessage",
    "ErrorCode",
    "Failure",
    "FilterRefused",
    "FilterSyntaxError",
    "GiveBack",
    "GroupNotFound",
    "InflatedTooLarge",
    "InvalidHandle",
    "InvalidMessage",
    "InvalidName",
    "LocalFileOffsetStore",
    "Message",
    "MessageColumns",
    "MessageQueue",
    "MessageRefused",
    "NoQueue",
    "NotABroker",
    "NotFound",
    "NotMaster",
    "OffsetOutOfRange",
    "OffsetStoreDamaged",
    "OffsetStoreInUse",
    "OnFailure",
    "PartlyAcknowledged",
    "PartlySent",
    "PermissionDenied",
    "PopConsumer",
    "PoppedMessage",
    "Posted",
    "PostsFailed",
    "Producer",
    "ProtocolError",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "ReadOffsetType",
    "ReceivedMessage",
    "RecordMalformed",
    "RemoteOffsetStore",
    "ReplyTimeout",
    "ReputError",
    "RequestNotSupported",
    "RequestTimeout",
    "RequesterGone",
    "RetryHere",
    "SendOutcomeUnknown",
    "SendReceipt",
    "StopRunning",
    "StoreUnavailable",
    "TlsRefused",
    "TopicNotFound",
    "TransactionEnded",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "UnsupportedCompression",
    "Verdict",
    "averagely",
    "by_config",
    "by_machine_room",
    "circularly",
    "consistent_hash",
]

_MODULES = {
    "Admin": "reput_client.admin",
    "Again": "reput_client.consume.group.failures",
    "ColumnsResult": "reput_client.consume.fetch_records",
    "Consumer": "reput_client.consume.consumer",
    "Credentials": "reput_client.credentials",
    "Failure": "reput_client.consume.group.failures",
    "GiveBack": "reput_client.consume.group.failures",
    "LocalFileOffsetStore": "reput_client.offset_store",
    "Message": "reput_protocol.record.message",
    "MessageColumns": "reput_client.consume.columns",
    "MessageQueue": "reput_protocol.record.message",
    "OnFailure": "reput_client.consume.group.failures",
    "PopConsumer": "reput_client.pop.consumer",
    "PoppedMessage": "reput_client.pop.popped",
    "Posted": "reput_client.produce.posted_block",
    "Producer": "reput_client.produce.producer",
    "PullConsumer": "reput_client.consume.pull_consumer",
    "PullResult": "reput_client.consume.pull",
    "PullStatus": "reput_client.consume.pull",
    "ReadOffsetType": "reput_client.offset_store",
    "ReceivedMessage": "reput_client.received",
    "RemoteOffsetStore": "reput_client.offset_store",
    "RetryHere": "reput_client.consume.group.failures",
    "SendReceipt": "reput_client.produce.receipts",
    "StopRunning": "reput_client.consume.group.failures",
    "TLS": "reput_client.tls",
    "TransactionProducer": "reput_client.produce.transactions",
    "TransactionReceipt": "reput_client.produce.receipts",
    "TransactionState": "reput_protocol.codes",
    "Verdict": "reput_client.consume.group.failures",
    "averagely": "reput_client.consume.group.allocation",
    "by_config": "reput_client.consume.group.allocation",
    "by_machine_room": "reput_client.consume.group.allocation",
    "circularly": "reput_client.consume.group.allocation",
    "consistent_hash": "reput_client.consume.group.allocation",
}
"""Where public names are defined, other than those of `reput_client.errors`."""


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES.get(name, "reput_client.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
