"""The table of requests: one row for each request code. A request without a row cannot be served."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final

from reput_protocol.commands import (
    consumers,
    dead_letters,
    delay,
    group,
    group_description,
    namesrv,
    offset,
    operation,
    pop,
    pull,
    query,
    replica,
    reply,
    schedule,
    send,
    stage,
    statistics,
    topic,
    transaction,
    users,
)
from reput_protocol.commands.base import NotServed, RequestType

_FAMILIES: Final = (
    send, pull, query, delay, schedule, stage, transaction, reply, group, offset, pop, consumers, dead_letters,
    group_description, topic, statistics, operation, users, namesrv, replica,
)  # fmt: skip

REQUESTS: Final[Mapping[int, RequestType]] = {
    int(row.code): row for row in chain.from_iterable(family.REQUESTS for family in _FAMILIES)
}
"""By request code."""

_OLD: Final = "RocketMQ's brokers do not serve it either"
_NO_CONTROLLER: Final = "brokers elect their master with etcd or Kubernetes and not with RocketMQ's controller"
_NO_CONTAINER: Final = "a process is one broker, and there are no broker containers"

NOT_SERVED: Final[Mapping[int, NotServed]] = {
    row.code: row
    for row in (
        NotServed(13, "QUERY_BROKER_OFFSET", f"{_OLD}; GET_MAX_OFFSET (30) tells the end of a queue"),
        NotServed(
            223,
            "INVOKE_BROKER_TO_GET_CONSUMER_STATUS",
            "GET_CONSUMER_RUNNING_INFO (307) tells the offsets that a member has reached",
        ),
        NotServed(
            323,
            "RESUME_CHECK_HALF_MESSAGE",
            "a half message without a decision is moved to the topic TRANS_CHECK_MAX_TIME_TOPIC",
        ),
        NotServed(355, "EXPORT_ROCKSDB_CONFIG_TO_JSON", "queues and tables are files, and there is no RocksDB"),
        NotServed(
            513, "UPDATE_AND_CREATE_STATIC_TOPIC", "there are no static topics, whose queues can move to other brokers"
        ),
        NotServed(902, "ADD_BROKER", _NO_CONTAINER),
        NotServed(903, "REMOVE_BROKER", _NO_CONTAINER),
        NotServed(905, "NOTIFY_MIN_BROKER_ID_CHANGE", "there are no acting masters"),
        NotServed(
            906, "EXCHANGE_BROKER_HA_INFO", "slaves learn their master's port from its name servers or configuration"
        ),
        NotServed(1001, "CONTROLLER_ALTER_SYNC_STATE_SET", _NO_CONTROLLER),
        NotServed(1002, "CONTROLLER_ELECT_MASTER", _NO_CONTROLLER),
        NotServed(1003, "CONTROLLER_REGISTER_BROKER", _NO_CONTROLLER),
        NotServed(1004, "CONTROLLER_GET_REPLICA_INFO", _NO_CONTROLLER),
        NotServed(1005, "CONTROLLER_GET_METADATA_INFO", _NO_CONTROLLER),
        NotServed(1006, "CONTROLLER_GET_SYNC_STATE_DATA", _NO_CONTROLLER),
        NotServed(1007, "GET_BROKER_EPOCH_CACHE", _NO_CONTROLLER),
        NotServed(1008, "NOTIFY_BROKER_ROLE_CHANGED", _NO_CONTROLLER),
        NotServed(1009, "UPDATE_CONTROLLER_CONFIG", _NO_CONTROLLER),
        NotServed(1010, "GET_CONTROLLER_CONFIG", _NO_CONTROLLER),
        NotServed(1011, "CLEAN_BROKER_DATA", _NO_CONTROLLER),
        NotServed(1012, "CONTROLLER_GET_NEXT_BROKER_ID", _NO_CONTROLLER),
        NotServed(1013, "CONTROLLER_APPLY_BROKER_ID", _NO_CONTROLLER),
    )
}
"""Requests of RocketMQ that have no row above, by code."""


def why_not_served(code: int) -> str:
    """Return the remark of the answer to a request without a handler; its beginning is RocketMQ's."""
    text = f" request type {code} not supported"
    if code in NOT_SERVED:
        _, name, reason = NOT_SERVED[code]
        return f"{text}: {name}; {reason}"
    row = REQUESTS.get(code)
    return f"{text}: {row.code.name}; {row.unserved}" if row is not None and row.unserved else text
