"""The JSON bodies of requests and answers, by subject; see the files named below."""

from __future__ import annotations

from reput_protocol.bodies_connections import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from reput_protocol.bodies_delay import (
    CancelledMessage,
    CancelOutcome,
    CancelResult,
    DelayedMessage,
    DelayedMessageList,
)
from reput_protocol.bodies_group import (
    ConsumerList,
    GroupForbidden,
    GroupList,
    QuerySubscriptionBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from reput_protocol.bodies_heartbeat import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from reput_protocol.bodies_lock import LockBatchBody, LockBatchResult
from reput_protocol.bodies_progress import (
    GroupDescription,
    GroupMember,
    GroupQueue,
    GroupSummaries,
    GroupSummary,
)
from reput_protocol.bodies_reset import ConsumerStatusBody, ResetOffsetBody, ResetOffsetList
from reput_protocol.bodies_route import BrokerData, ClusterInfo, QueueData, TopicRoute
from reput_protocol.bodies_running import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
)
from reput_protocol.bodies_stats import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpan,
    CorrectionOffsets,
    OffsetWrapper,
    QueueTimeSpan,
    StatsItem,
)
from reput_protocol.bodies_topic import (
    KVTable,
    QueueStats,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicStats,
)

__all__ = [
    "BrokerData",
    "BrokerStatsData",
    "CancelOutcome",
    "CancelResult",
    "CancelledMessage",
    "CheckClientBody",
    "ClientConnection",
    "ClusterInfo",
    "ConsumeDirectlyResult",
    "ConsumeStats",
    "ConsumeStatsList",
    "ConsumeStatus",
    "ConsumeTimeSpan",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerList",
    "ConsumerRunningInfo",
    "ConsumerStatusBody",
    "CorrectionOffsets",
    "DelayedMessage",
    "DelayedMessageList",
    "GroupDescription",
    "GroupForbidden",
    "GroupList",
    "GroupMember",
    "GroupQueue",
    "GroupSummaries",
    "GroupSummary",
    "HeartbeatData",
    "KVTable",
    "LockBatchBody",
    "LockBatchResult",
    "OffsetWrapper",
    "ProcessQueueInfo",
    "ProducerConnection",
    "ProducerData",
    "ProducerInfo",
    "ProducerTable",
    "QuerySubscriptionBody",
    "QueueData",
    "QueueStats",
    "QueueTimeSpan",
    "ResetOffsetBody",
    "ResetOffsetList",
    "StatsItem",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupList",
    "SubscriptionGroupTable",
    "TopicConfig",
    "TopicConfigTable",
    "TopicList",
    "TopicRoute",
    "TopicStats",
]
