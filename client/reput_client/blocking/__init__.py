"""The synchronous API: the same classes with blocking methods, without an event loop.

Each method runs the coroutine of `reput_client` in the calling thread (see `runtime.py`). There is no background thread
except for a group member, `PopConsumer.run`, a transaction producer, or a producer that has sent a request. Threads may
share a client. A forked child may continue to use one: it reconnects.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reput_client.blocking.admin import Admin as Admin
    from reput_client.blocking.consumer import Consumer as Consumer
    from reput_client.blocking.offset_store import LocalFileOffsetStore as LocalFileOffsetStore
    from reput_client.blocking.offset_store import RemoteOffsetStore as RemoteOffsetStore
    from reput_client.blocking.pop_consumer import PopConsumer as PopConsumer
    from reput_client.blocking.pop_consumer import PoppedMessage as PoppedMessage
    from reput_client.blocking.producer import Producer as Producer
    from reput_client.blocking.producer import TransactionProducer as TransactionProducer
    from reput_client.blocking.pull_consumer import PullConsumer as PullConsumer
    from reput_client.consume.group.failures import GiveBack as GiveBack
    from reput_client.consume.group.failures import OnFailure as OnFailure
    from reput_client.consume.group.failures import RetryHere as RetryHere
    from reput_client.consume.group.failures import StopRunning as StopRunning
    from reput_client.consume.pull import PullResult as PullResult
    from reput_client.consume.pull import PullStatus as PullStatus
    from reput_client.credentials import Credentials as Credentials
    from reput_client.offset_store import ReadOffsetType as ReadOffsetType
    from reput_client.produce.posted_block import Posted as Posted
    from reput_client.produce.receipts import SendReceipt as SendReceipt
    from reput_client.produce.receipts import TransactionReceipt as TransactionReceipt
    from reput_client.received import ReceivedMessage as ReceivedMessage
    from reput_client.tls import TLS as TLS
    from reput_protocol.codes import TransactionState as TransactionState
    from reput_protocol.record.message import Message as Message
    from reput_protocol.record.message import MessageQueue as MessageQueue

__all__ = [
    "TLS",
    "Admin",
    "Consumer",
    "Credentials",
    "GiveBack",
    "LocalFileOffsetStore",
    "Message",
    "MessageQueue",
    "OnFailure",
    "PopConsumer",
    "PoppedMessage",
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
    "Admin": "reput_client.blocking.admin",
    "Consumer": "reput_client.blocking.consumer",
    "Credentials": "reput_client.credentials",
    "GiveBack": "reput_client.consume.group.failures",
    "LocalFileOffsetStore": "reput_client.blocking.offset_store",
    "Message": "reput_protocol.record.message",
    "MessageQueue": "reput_protocol.record.message",
    "OnFailure": "reput_client.consume.group.failures",
    "PopConsumer": "reput_client.blocking.pop_consumer",
    "PoppedMessage": "reput_client.blocking.pop_consumer",
    "Posted": "reput_client.produce.posted_block",
    "Producer": "reput_client.blocking.producer",
    "PullConsumer": "reput_client.blocking.pull_consumer",
    "PullResult": "reput_client.consume.pull",
    "PullStatus": "reput_client.consume.pull",
    "ReadOffsetType": "reput_client.offset_store",
    "ReceivedMessage": "reput_client.received",
    "RemoteOffsetStore": "reput_client.blocking.offset_store",
    "RetryHere": "reput_client.consume.group.failures",
    "SendReceipt": "reput_client.produce.receipts",
    "StopRunning": "reput_client.consume.group.failures",
    "TLS": "reput_client.tls",
    "TransactionProducer": "reput_client.blocking.producer",
    "TransactionReceipt": "reput_client.produce.receipts",
    "TransactionState": "reput_protocol.codes",
}
"""Where public names are defined."""


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use: a program that only manages topics loads no consumer."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
