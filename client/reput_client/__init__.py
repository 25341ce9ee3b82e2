"""Reput's client for trio and asyncio programs; `reput_client.blocking` is the same for programs without a loop.

Names are imported when they are first used, so that importing this package costs nothing and the blocking face
loads no event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput_client.admin import Admin
    from reput_client.column_pulls import ColumnsResult
    from reput_client.consumer import Consumer
    from reput_client.group.failures import OnFailure, RetryHere, StopRunning
    from reput_client.group.giving_back import GiveBack
    from reput_client.message_columns import MessageColumns
    from reput_client.offset_store import LocalFileOffsetStore, ReadOffsetType, RemoteOffsetStore
    from reput_client.posted import Posted
    from reput_client.producer import Producer
    from reput_client.pull_consumer import PullConsumer
    from reput_client.pull_result import PullResult, PullStatus
    from reput_client.receipts import SendReceipt
    from reput_client.received import ReceivedMessage
    from reput_client.transactions import TransactionProducer, TransactionReceipt
    from reput_protocol.group_terms import TransactionState
    from reput_protocol.message import Message, MessageQueue

__all__ = [
    "Admin",
    "ColumnsResult",
    "Consumer",
    "GiveBack",
    "LocalFileOffsetStore",
    "Message",
    "MessageColumns",
    "MessageQueue",
    "OnFailure",
    "Posted",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "ReadOffsetType",
    "ReceivedMessage",
    "RemoteOffsetStore",
    "RetryHere",
    "SendReceipt",
    "StopRunning",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
]

_MODULES = {
    "Admin": "reput_client.admin",
    "ColumnsResult": "reput_client.column_pulls",
    "Consumer": "reput_client.consumer",
    "GiveBack": "reput_client.group.giving_back",
    "LocalFileOffsetStore": "reput_client.offset_store",
    "Message": "reput_protocol.message",
    "MessageColumns": "reput_client.message_columns",
    "MessageQueue": "reput_protocol.message",
    "OnFailure": "reput_client.group.failures",
    "Posted": "reput_client.posted",
    "Producer": "reput_client.producer",
    "PullConsumer": "reput_client.pull_consumer",
    "PullResult": "reput_client.pull_result",
    "PullStatus": "reput_client.pull_result",
    "ReadOffsetType": "reput_client.offset_store",
    "ReceivedMessage": "reput_client.received",
    "RemoteOffsetStore": "reput_client.offset_store",
    "RetryHere": "reput_client.group.failures",
    "SendReceipt": "reput_client.receipts",
    "StopRunning": "reput_client.group.failures",
    "TransactionProducer": "reput_client.transactions",
    "TransactionReceipt": "reput_client.transactions",
    "TransactionState": "reput_protocol.group_terms",
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
