"""Requests of RocketMQ that the broker does not serve, by name and with the reason, as RocketMQ's tools show it."""

from __future__ import annotations

from typing import Final

from reput_protocol.codes import RequestCode

_NO_CONTROLLER: Final = (
    "brokers elect their master with etcd or Kubernetes and not with RocketMQ's controller"
)
_NO_CONTAINER: Final = "a process is one broker, and there are no broker containers"
_NO_USERS: Final = "this broker has no users, because access control is off (access.enabled)"
_REASONS: Final = {
    355: ("EXPORT_ROCKSDB_CONFIG_TO_JSON", "queues and tables are files, and there is no RocksDB"),
    513: (
        "UPDATE_AND_CREATE_STATIC_TOPIC",
        "there are no static topics, whose queues can move to other brokers",
    ),
    902: ("ADD_BROKER", _NO_CONTAINER),
    903: ("REMOVE_BROKER", _NO_CONTAINER),
    905: ("NOTIFY_MIN_BROKER_ID_CHANGE", "there are no acting masters"),
    906: (
        "EXCHANGE_BROKER_HA_INFO",
        "slaves learn their master's port from its name servers or configuration",
    ),
    1001: ("CONTROLLER_ALTER_SYNC_STATE_SET", _NO_CONTROLLER),
    1002: ("CONTROLLER_ELECT_MASTER", _NO_CONTROLLER),
    1003: ("CONTROLLER_REGISTER_BROKER", _NO_CONTROLLER),
    1004: ("CONTROLLER_GET_REPLICA_INFO", _NO_CONTROLLER),
    1005: ("CONTROLLER_GET_METADATA_INFO", _NO_CONTROLLER),
    1006: ("CONTROLLER_GET_SYNC_STATE_DATA", _NO_CONTROLLER),
    1007: ("GET_BROKER_EPOCH_CACHE", _NO_CONTROLLER),
    1008: ("NOTIFY_BROKER_ROLE_CHANGED", _NO_CONTROLLER),
    1009: ("UPDATE_CONTROLLER_CONFIG", _NO_CONTROLLER),
    1010: ("GET_CONTROLLER_CONFIG", _NO_CONTROLLER),
    1011: ("CLEAN_BROKER_DATA", _NO_CONTROLLER),
    1012: ("CONTROLLER_GET_NEXT_BROKER_ID", _NO_CONTROLLER),
    1013: ("CONTROLLER_APPLY_BROKER_ID", _NO_CONTROLLER),
    **{code: (RequestCode(code).name, _NO_USERS) for code in range(3001, 3011)},
}


def why_unsupported(code: int) -> str:
    """Return the remark of the answer to a request without a handler; its beginning is RocketMQ's."""
    text = f" request type {code} not supported"
    name, reason = _REASONS.get(code, ("", ""))
    return f"{text}: {name}; {reason}" if name else text
