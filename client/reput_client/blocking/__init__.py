"""The synchronous API: the same classes with blocking methods, without an event loop.

Each method runs the coroutine of `reput_client` in the calling thread (see `runtime.py`). There is no background thread
except for a group member, a transaction producer, or a producer that has sent a request. Threads may share a client. A
forked child may continue to use one: it reconnects.
"""

from __future__ import annotations

from reput_client.blocking.admin import Admin
from reput_client.blocking.consumer import Consumer
from reput_client.blocking.offset_store import LocalFileOffsetStore, RemoteOffsetStore
from reput_client.blocking.producer import Producer, TransactionProducer
from reput_client.blocking.pull_consumer import PullConsumer
from reput_client.consume.group.failures import GiveBack, OnFailure, RetryHere, StopRunning
from reput_client.consume.pull import PullResult, PullStatus
from reput_client.offset_store import ReadOffsetType
from reput_client.produce.posted_block import Posted
from reput_client.produce.receipts import SendReceipt
from reput_client.produce.transactions import TransactionReceipt
from reput_client.received import ReceivedMessage
from reput_protocol.codes import TransactionState
from reput_protocol.record.message import Message, MessageQueue

__all__ = [
    "Admin",
    "Consumer",
    "GiveBack",
    "LocalFileOffsetStore",
    "Message",
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
