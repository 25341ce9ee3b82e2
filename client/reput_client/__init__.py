"""Reput's client for trio and asyncio programs; `reput_client.blocking` is the same for programs without a loop.

Names are imported when they are first used, so that importing this package costs nothing and the blocking API
loads no event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput_client.admin import Admin
    from reput_client.consume.columns import MessageColumns
    from reput_client.consume.consumer import Consumer
    from reput_client.consume.fetching import ColumnsResult
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
    from reput_client.errors import (
        AckNotReached,
        AmbiguousQueue,
        BrokerBusy,
        BrokerError,
        BrokerNotFound,
        ClientClosed,
        ConnectFailed,
        ConnectionLost,
        DamagedMessage,
        ErrorCode,
        FilterRefused,
        FilterSyntaxError,
        GroupNotFound,
        InflatedTooLarge,
        InvalidMessage,
        InvalidName,
        MessageRefused,
        NoQueue,
        NotABroker,
        NotFound,
        OffsetOutOfRange,
        OffsetStoreDamaged,
        OffsetStoreInUse,
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
        TopicNotFound,
        TransactionEnded,
        UnsupportedCompression,
    )
    from reput_client.offset_store import LocalFileOffsetStore, ReadOffsetType, RemoteOffsetStore
    from reput_client.produce.posted import Posted
    from reput_client.produce.producer import Producer
    from reput_client.produce.receipts import SendReceipt
    from reput_client.produce.transactions import TransactionProducer, TransactionReceipt
    from reput_client.received import ReceivedMessage
    from reput_protocol.codes import TransactionState
    from reput_protocol.record.message import Message, MessageQueue

__all__ = [
    "AckNotReached",
    "Admin",
    "Again",
    "AmbiguousQueue",
    "BrokerBusy",
    "BrokerError",
    "BrokerNotFound",
    "ClientClosed",
    "ColumnsResult",
    "ConnectFailed",
    "ConnectionLost",
    "Consumer",
    "DamagedMessage",
    "ErrorCode",
    "Failure",
    "FilterRefused",
    "FilterSyntaxError",
    "GiveBack",
    "GroupNotFound",
    "InflatedTooLarge",
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
    "OffsetOutOfRange",
    "OffsetStoreDamaged",
    "OffsetStoreInUse",
    "OnFailure",
    "PartlySent",
    "PermissionDenied",
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
    "AckNotReached": "reput_client.errors",
    "Admin": "reput_client.admin",
    "Again": "reput_client.consume.group.failures",
    "AmbiguousQueue": "reput_client.errors",
    "BrokerBusy": "reput_client.errors",
    "BrokerError": "reput_client.errors",
    "BrokerNotFound": "reput_client.errors",
    "ClientClosed": "reput_client.errors",
    "ColumnsResult": "reput_client.consume.fetching",
    "ConnectFailed": "reput_client.errors",
    "ConnectionLost": "reput_client.errors",
    "Consumer": "reput_client.consume.consumer",
    "DamagedMessage": "reput_client.errors",
    "ErrorCode": "reput_client.errors",
    "Failure": "reput_client.consume.group.failures",
    "FilterRefused": "reput_client.errors",
    "FilterSyntaxError": "reput_client.errors",
    "GiveBack": "reput_client.consume.group.failures",
    "GroupNotFound": "reput_client.errors",
    "InflatedTooLarge": "reput_client.errors",
    "InvalidMessage": "reput_client.errors",
    "InvalidName": "reput_client.errors",
    "LocalFileOffsetStore": "reput_client.offset_store",
    "Message": "reput_protocol.record.message",
    "MessageColumns": "reput_client.consume.columns",
    "MessageQueue": "reput_protocol.record.message",
    "MessageRefused": "reput_client.errors",
    "NoQueue": "reput_client.errors",
    "NotABroker": "reput_client.errors",
    "NotFound": "reput_client.errors",
    "OffsetOutOfRange": "reput_client.errors",
    "OffsetStoreDamaged": "reput_client.errors",
    "OffsetStoreInUse": "reput_client.errors",
    "OnFailure": "reput_client.consume.group.failures",
    "PartlySent": "reput_client.errors",
    "PermissionDenied": "reput_client.errors",
    "Posted": "reput_client.produce.posted",
    "PostsFailed": "reput_client.errors",
    "Producer": "reput_client.produce.producer",
    "ProtocolError": "reput_client.errors",
    "PullConsumer": "reput_client.consume.pull_consumer",
    "PullResult": "reput_client.consume.pull",
    "PullStatus": "reput_client.consume.pull",
    "ReadOffsetType": "reput_client.offset_store",
    "ReceivedMessage": "reput_client.received",
    "RecordMalformed": "reput_client.errors",
    "RemoteOffsetStore": "reput_client.offset_store",
    "ReplyTimeout": "reput_client.errors",
    "ReputError": "reput_client.errors",
    "RequestNotSupported": "reput_client.errors",
    "RequestTimeout": "reput_client.errors",
    "RequesterGone": "reput_client.errors",
    "RetryHere": "reput_client.consume.group.failures",
    "SendOutcomeUnknown": "reput_client.errors",
    "SendReceipt": "reput_client.produce.receipts",
    "StopRunning": "reput_client.consume.group.failures",
    "StoreUnavailable": "reput_client.errors",
    "TopicNotFound": "reput_client.errors",
    "TransactionEnded": "reput_client.errors",
    "TransactionProducer": "reput_client.produce.transactions",
    "TransactionReceipt": "reput_client.produce.transactions",
    "TransactionState": "reput_protocol.codes",
    "UnsupportedCompression": "reput_client.errors",
    "Verdict": "reput_client.consume.group.failures",
    "averagely": "reput_client.consume.group.allocation",
    "by_config": "reput_client.consume.group.allocation",
    "by_machine_room": "reput_client.consume.group.allocation",
    "circularly": "reput_client.consume.group.allocation",
    "consistent_hash": "reput_client.consume.group.allocation",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
