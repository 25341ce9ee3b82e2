"""The names that both APIs of the client export: messages, results, options and errors.

A package of names imports each on its first use: a program that only manages topics loads no consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from reput_client.admin import ClusterMember as ClusterMember
    from reput_client.admin.message_history import CopyKind as CopyKind
    from reput_client.admin.message_history import MessageCopy as MessageCopy
    from reput_client.admin.message_history import MessageHistory as MessageHistory
    from reput_client.admin.message_history import MessageStep as MessageStep
    from reput_client.admin.message_history import MessageTrack as MessageTrack
    from reput_client.admin.message_history import TrackType as TrackType
    from reput_client.admin.topics import FetchedMessages as FetchedMessages
    from reput_client.admin.undelivered import DeadLetter as DeadLetter
    from reput_client.admin.undelivered import DeadLetters as DeadLetters
    from reput_client.consume.columns import CodedValues as CodedValues
    from reput_client.consume.columns import MessageColumns as MessageColumns
    from reput_client.consume.fetch_records import ColumnsResult as ColumnsResult
    from reput_client.consume.group.allocation import AllocationStrategy as AllocationStrategy
    from reput_client.consume.group.allocation import averagely as averagely
    from reput_client.consume.group.allocation import by_config as by_config
    from reput_client.consume.group.allocation import by_machine_room as by_machine_room
    from reput_client.consume.group.allocation import circularly as circularly
    from reput_client.consume.group.allocation import consistent_hash as consistent_hash
    from reput_client.consume.group.failures import Again as Again
    from reput_client.consume.group.failures import Decision as Decision
    from reput_client.consume.group.failures import Failure as Failure
    from reput_client.consume.group.failures import GiveBack as GiveBack
    from reput_client.consume.group.failures import OnFailure as OnFailure
    from reput_client.consume.group.failures import RetryHere as RetryHere
    from reput_client.consume.group.failures import StopRunning as StopRunning
    from reput_client.consume.group.failures import Verdict as Verdict
    from reput_client.consume.group.options import Mode as Mode
    from reput_client.consume.group.subscriptions import Start as Start
    from reput_client.consume.pull import FoundMessages as FoundMessages
    from reput_client.consume.pull import PulledMessages as PulledMessages
    from reput_client.consume.pull import PullResult as PullResult
    from reput_client.consume.pull import PullStatus as PullStatus
    from reput_client.errors import *  # noqa: F403
    from reput_client.offset_store import ReadOffsetType as ReadOffsetType
    from reput_client.preview import Preview as Preview
    from reput_client.receipts import OnDone as OnDone
    from reput_client.receipts import Posted as Posted
    from reput_client.receipts import SendReceipt as SendReceipt
    from reput_client.receipts import TransactionReceipt as TransactionReceipt
    from reput_client.received import ReceivedMessage as ReceivedMessage
    from reput_client.security import TLS as TLS
    from reput_client.security import Credentials as Credentials
    from reput_client.serialize.avro import Avro as Avro
    from reput_client.serialize.avro import AvroSchema as AvroSchema
    from reput_client.serialize.json import Json as Json
    from reput_client.serialize.protobuf import Protobuf as Protobuf
    from reput_client.serialize.registry import RegisteredSchema as RegisteredSchema
    from reput_client.serialize.registry import Schema as Schema
    from reput_client.serialize.registry import SchemaReference as SchemaReference
    from reput_client.serialize.registry import SchemaRegistry as SchemaRegistry
    from reput_client.transport.backoff import Backoff as Backoff
    from reput_client.users import UserDescription as UserDescription
    from reput_client.users import UserTable as UserTable
    from reput_protocol.buffers import Buffer as Buffer
    from reput_protocol.codes import Ack as Ack
    from reput_protocol.codes import AckLevel as AckLevel
    from reput_protocol.codes import Boundary as Boundary
    from reput_protocol.codes import BoundaryType as BoundaryType
    from reput_protocol.codes import ConsumeFromWhere as ConsumeFromWhere
    from reput_protocol.codes import ConsumeResult as ConsumeResult
    from reput_protocol.codes import ConsumeType as ConsumeType
    from reput_protocol.codes import MessageModel as MessageModel
    from reput_protocol.codes import TransactionState as TransactionState
    from reput_protocol.commands.consumers import ConsumeDirectlyResult as ConsumeDirectlyResult
    from reput_protocol.commands.consumers import ConsumerRunningInfo as ConsumerRunningInfo
    from reput_protocol.commands.consumers import ConsumeStats as ConsumeStats
    from reput_protocol.commands.consumers import ConsumeStatus as ConsumeStatus
    from reput_protocol.commands.consumers import ConsumeTimeSpan as ConsumeTimeSpan
    from reput_protocol.commands.consumers import OffsetWrapper as OffsetWrapper
    from reput_protocol.commands.consumers import ProcessQueueInfo as ProcessQueueInfo
    from reput_protocol.commands.consumers import QueueTimeSpan as QueueTimeSpan
    from reput_protocol.commands.dead_letters import LetterPlace as LetterPlace
    from reput_protocol.commands.dead_letters import Replay as Replay
    from reput_protocol.commands.dead_letters import ReplayedLetter as ReplayedLetter
    from reput_protocol.commands.dead_letters import ReplayOutcome as ReplayOutcome
    from reput_protocol.commands.dead_letters import Replays as Replays
    from reput_protocol.commands.delay import CancelledMessage as CancelledMessage
    from reput_protocol.commands.delay import CancelOutcome as CancelOutcome
    from reput_protocol.commands.delay import DelayedMessage as DelayedMessage
    from reput_protocol.commands.delay import DelayedMessageList as DelayedMessageList
    from reput_protocol.commands.group import SubscriptionData as SubscriptionData
    from reput_protocol.commands.group import SubscriptionGroupConfig as SubscriptionGroupConfig
    from reput_protocol.commands.group_description import GroupDescription as GroupDescription
    from reput_protocol.commands.group_description import GroupHealth as GroupHealth
    from reput_protocol.commands.group_description import GroupMember as GroupMember
    from reput_protocol.commands.group_description import GroupQueue as GroupQueue
    from reput_protocol.commands.group_description import GroupSummary as GroupSummary
    from reput_protocol.commands.group_description import HealthState as HealthState
    from reput_protocol.commands.operation import ClientDescription as ClientDescription
    from reput_protocol.commands.operation import ConfigChanged as ConfigChanged
    from reput_protocol.commands.operation import ConfigOption as ConfigOption
    from reput_protocol.commands.operation import Intake as Intake
    from reput_protocol.commands.operation import IntakeName as IntakeName
    from reput_protocol.commands.replica import Promotion as Promotion
    from reput_protocol.commands.schedule import MissedTimes as MissedTimes
    from reput_protocol.commands.schedule import ScheduleDefinition as ScheduleDefinition
    from reput_protocol.commands.schedule import ScheduleDescription as ScheduleDescription
    from reput_protocol.commands.schedule import ScheduleState as ScheduleState
    from reput_protocol.commands.statistics import BrokerEvent as BrokerEvent
    from reput_protocol.commands.statistics import BrokerHistory as BrokerHistory
    from reput_protocol.commands.statistics import GroupHistory as GroupHistory
    from reput_protocol.commands.statistics import TopicHistory as TopicHistory
    from reput_protocol.commands.topic import BrokerData as BrokerData
    from reput_protocol.commands.topic import ClusterInfo as ClusterInfo
    from reput_protocol.commands.topic import QueueData as QueueData
    from reput_protocol.commands.topic import QueueStats as QueueStats
    from reput_protocol.commands.topic import TopicConfig as TopicConfig
    from reput_protocol.commands.topic import TopicRoute as TopicRoute
    from reput_protocol.commands.topic import TopicStats as TopicStats
    from reput_protocol.commands.topic import TopicSummary as TopicSummary
    from reput_protocol.commands.transaction import OpenTransaction as OpenTransaction
    from reput_protocol.commands.transaction import OpenTransactions as OpenTransactions
    from reput_protocol.record.client_trace import ClientTrace as ClientTrace
    from reput_protocol.record.delays import Delay as Delay
    from reput_protocol.record.delays import DelayOptions as DelayOptions
    from reput_protocol.record.message import Message as Message
    from reput_protocol.record.message import MessageQueue as MessageQueue
    from reput_protocol.rights import IPAddress as IPAddress
    from reput_protocol.rights import Kind as Kind
    from reput_protocol.rights import Network as Network
    from reput_protocol.rights import Right as Right
    from reput_protocol.rights import Rule as Rule
    from reput_protocol.rights import rule_of as rule_of

_SHARED: Final = {
    "reput_client.admin": "ClusterMember",
    "reput_client.admin.message_history": ("CopyKind MessageCopy MessageHistory MessageStep MessageTrack TrackType"),
    "reput_client.admin.topics": "FetchedMessages",
    "reput_client.admin.undelivered": "DeadLetter DeadLetters",
    "reput_client.consume.columns": "CodedValues MessageColumns",
    "reput_client.consume.fetch_records": "ColumnsResult",
    "reput_client.consume.group.allocation": (
        "AllocationStrategy averagely by_config by_machine_room circularly consistent_hash"
    ),
    "reput_client.consume.group.failures": ("Again Decision Failure GiveBack OnFailure RetryHere StopRunning Verdict"),
    "reput_client.consume.group.options": "Mode",
    "reput_client.consume.group.subscriptions": "Start",
    "reput_client.consume.pull": "FoundMessages PullResult PullStatus PulledMessages",
    "reput_client.offset_store": "ReadOffsetType",
    "reput_client.preview": "Preview",
    "reput_client.receipts": "OnDone Posted SendReceipt TransactionReceipt",
    "reput_client.received": "ReceivedMessage",
    "reput_client.serialize.avro": "Avro AvroSchema",
    "reput_client.serialize.json": "Json",
    "reput_client.serialize.protobuf": "Protobuf",
    "reput_client.serialize.registry": "RegisteredSchema Schema SchemaReference SchemaRegistry",
    "reput_client.security": "Credentials TLS",
    "reput_client.transport.backoff": "Backoff",
    "reput_client.users": "UserDescription UserTable",
    "reput_protocol.buffers": "Buffer",
    "reput_protocol.codes": (
        "Ack AckLevel Boundary BoundaryType ConsumeFromWhere ConsumeResult ConsumeType MessageModel TransactionState"
    ),
    "reput_protocol.commands.consumers": (
        "ConsumeDirectlyResult ConsumeStats ConsumeStatus ConsumeTimeSpan ConsumerRunningInfo "
        "OffsetWrapper ProcessQueueInfo QueueTimeSpan"
    ),
    "reput_protocol.commands.dead_letters": "LetterPlace Replay ReplayOutcome ReplayedLetter Replays",
    "reput_protocol.commands.delay": "CancelOutcome CancelledMessage DelayedMessage DelayedMessageList",
    "reput_protocol.commands.replica": "Promotion",
    "reput_protocol.commands.group": "SubscriptionData SubscriptionGroupConfig",
    "reput_protocol.commands.group_description": (
        "GroupDescription GroupHealth GroupMember GroupQueue GroupSummary HealthState"
    ),
    "reput_protocol.commands.statistics": "BrokerEvent BrokerHistory GroupHistory TopicHistory",
    "reput_protocol.commands.operation": "ClientDescription ConfigChanged ConfigOption Intake IntakeName",
    "reput_protocol.commands.schedule": "MissedTimes ScheduleDefinition ScheduleDescription ScheduleState",
    "reput_protocol.commands.topic": (
        "BrokerData ClusterInfo QueueData QueueStats TopicConfig TopicRoute TopicStats TopicSummary"
    ),
    "reput_protocol.commands.transaction": "OpenTransaction OpenTransactions",
    "reput_protocol.record.client_trace": "ClientTrace",
    "reput_protocol.record.delays": "Delay DelayOptions",
    "reput_protocol.record.message": "Message MessageQueue",
    "reput_protocol.rights": "IPAddress Kind Network Right Rule rule_of",
}
"""The names by the modules that define them, without those of `reput_client.errors`."""
_WITH_EXTRAS: Final = frozenset({"Avro", "AvroSchema", "CodedValues", "MessageColumns", "Protobuf"})
"""These need a package of an extra, so `import *` leaves them out."""


def modules_of(own: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name that a package exports; `own` has those that only it has, as `_SHARED` does."""
    errors = import_module("reput_client.errors")  # an import statement asks the package first, and so this
    modules = dict.fromkeys(errors.__all__, errors.__name__)
    for table in (_SHARED, own):
        modules |= {name: module for module, names in table.items() for name in names.split()}
    return modules


def resolve(namespace: dict[str, Any], own: Mapping[str, str], name: str) -> Any:
    """Import a name of a package, and keep it in its `namespace`.

    `__all__` is the sorted list of those that need no extra, `__version__` that of the distribution.

    Raises:
        AttributeError: the package does not export it.
    """
    modules = modules_of(own)
    if name == "__all__":
        value: Any = sorted(modules.keys() - _WITH_EXTRAS)
    elif name == "__version__":
        value = version("reput-client")
    elif name in modules:
        value = getattr(import_module(modules[name]), name)
    else:
        raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
    namespace[name] = value
    return value
