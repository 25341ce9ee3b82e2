"""The JSON bodies of answers: routes and clusters, topics and figures; see the files named below."""

from __future__ import annotations

from reput_protocol.bodies_route import BrokerData, ClusterInfo, QueueData, TopicRoute
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
    "ClusterInfo",
    "KVTable",
    "QueueData",
    "QueueStats",
    "TopicConfig",
    "TopicConfigTable",
    "TopicList",
    "TopicRoute",
    "TopicStats",
]
