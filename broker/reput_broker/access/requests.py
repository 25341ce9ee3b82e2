"""The rights that each request needs.

The fields and bodies are read here as the processors read them: by the same names and with the same classes. A request
whose code is not in the table needs the right to administer the cluster.

Some requests name a message by its place in the log, and the body of STAGE_RECORDS is the rest of an earlier one. For
these the processor checks the topic itself, with `Request.check` or `Request.check_topic_of_message`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from reput_broker.access.model import Need
from reput_broker.request import Request
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import (
    CheckClientBody,
    HeartbeatData,
    LockBatchBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from reput_protocol.commands.pop import BatchAckBody, QueryAssignmentBody
from reput_protocol.commands.pull import QueueBoundsRequest
from reput_protocol.errors import HeaderFieldError
from reput_protocol.names import popped_topic
from reput_protocol.rights import Kind, Right
from reput_protocol.wire.header import Value, value_text

_READ, _WRITE, _ADMIN, _DESCRIBE, _REPLICATE = (
    Right.READ,
    Right.WRITE,
    Right.ADMIN,
    Right.DESCRIBE,
    Right.REPLICATE,
)
_TOPIC, _GROUP, _CLUSTER = Kind.TOPIC, Kind.GROUP, Kind.CLUSTER


class Requirement(NamedTuple):
    """The rights of one request code.

    Attributes:
        text: for the documentation.
        needs: returns the rights that a request needs.
        writes_something: whether its user must be allowed to send to some topic, whichever.
        is_administrative: whether it is logged for an audit, and refused from other machines while access control is
            off.
    """

    text: str
    needs: Callable[[Request], Sequence[Need]]
    writes_something: bool = False
    is_administrative: bool = False


def text_of(ext: Mapping[str, Value], name: str) -> str:
    """Return a field as the typed headers read it: as text, "" if it is absent."""
    value = ext.get(name)
    if type(value) is str:
        return value
    if value is None:
        return ""
    try:
        return value_text(value)
    except ValueError:
        raise HeaderFieldError(name, "is not text") from None


def _on(*parts: tuple[Right, Kind, str], optional: Iterable[str] = ()) -> Requirement:
    """Return the requirement of rights on what fields of the header name.

    Args:
        parts: right, kind, and the name of the field.
        optional: fields that may be absent; they need no right then.
    """
    may_be_absent = frozenset(optional)

    def needs(request: Request) -> list[Need]:
        found = []
        for right, kind, field in parts:
            name = text_of(request.ext, field)
            if name or field not in may_be_absent:
                found.append(Need(right, kind, name))
        return found

    text = ", ".join(
        f"{right} on {kind} `{field}`{', if given' * (field in may_be_absent)}"
        for right, kind, field in parts
    )
    return Requirement(text, needs, is_administrative=any(right is _ADMIN for right, _, _ in parts))


def _cluster(right: Right) -> Requirement:
    needs = (Need(right, _CLUSTER),)
    return Requirement(f"{right} on the cluster", lambda _: needs, is_administrative=right is _ADMIN)


def _body(
    text: str, needs: Callable[[Request], list[Need]], *, is_administrative: bool = False
) -> Requirement:
    return Requirement(text, needs, is_administrative=is_administrative)


def _any_user(text: str = "any user") -> Requirement:
    return Requirement(text, lambda _: ())


def _heartbeat(request: Request) -> list[Need]:
    found = []
    for consumer in HeartbeatData.from_json(request.body).consumers:
        found.append(Need(_READ, _GROUP, consumer.group_name))
        found += [Need(_READ, _TOPIC, subscription.topic) for subscription in consumer.subscriptions]
    return found


def _lock(request: Request) -> list[Need]:
    return [Need(_READ, _GROUP, LockBatchBody.from_json(request.body).consumer_group)]


def _client_check(request: Request) -> list[Need]:
    body = CheckClientBody.from_json(request.body)
    return [Need(_READ, _GROUP, body.group), Need(_READ, _TOPIC, body.subscription.topic)]


def _group_config(request: Request) -> list[Need]:
    return [Need(_ADMIN, _GROUP, SubscriptionGroupConfig.from_json(request.body).group_name)]


def _group_configs(request: Request) -> list[Need]:
    body = SubscriptionGroupList.from_json(request.body)
    return [Need(_ADMIN, _GROUP, config.group_name) for config in body.groups]


def _bounds(request: Request) -> list[Need]:
    return [Need(_DESCRIBE, _TOPIC, topic) for topic in QueueBoundsRequest.from_json(request.body).topics]


def _assignment(request: Request) -> list[Need]:
    body = QueryAssignmentBody.from_json(request.body)
    return [Need(_READ, _GROUP, body.consumer_group), Need(_READ, _TOPIC, body.topic)]


def _ack(request: Request) -> list[Need]:
    """A message that is delivered again is acknowledged under the retry topic of its group and topic."""
    group, topic = text_of(request.ext, "consumerGroup"), text_of(request.ext, "topic")
    return [Need(_READ, _GROUP, group), Need(_READ, _TOPIC, popped_topic(topic, group))]


def _batch_ack(request: Request) -> list[Need]:
    acks = BatchAckBody.from_json(request.body).acks
    found = {(ack.consumer_group, popped_topic(ack.topic, ack.consumer_group)) for ack in acks}
    return [
        need for group, topic in found for need in (Need(_READ, _GROUP, group), Need(_READ, _TOPIC, topic))
    ]


_SEND: Final = _on((_WRITE, _TOPIC, "topic"))
_SEND_V2: Final = _on((_WRITE, _TOPIC, "b"))
_PULL: Final = _on((_READ, _TOPIC, "topic"), (_READ, _GROUP, "consumerGroup"))
_TOPIC_FIGURES: Final = _on((_DESCRIBE, _TOPIC, "topic"))
_TOPIC_ADMIN: Final = _on((_ADMIN, _TOPIC, "topic"))
_LISTING: Final = _cluster(_DESCRIBE)
_ADMINISTRATION: Final = _cluster(_ADMIN)
_USERS: Final = _ADMINISTRATION._replace(text="a user made with --admin")
_REPLICATION: Final = _cluster(_REPLICATE)
_SINK: Final = Requirement("write on some topic", lambda _: (), writes_something=True)
_POP_GROUP: Final = _on((_READ, _GROUP, "consumerGroup"), (_READ, _TOPIC, "topic"))

REQUIREMENTS: Final[Mapping[int, Requirement]] = {
    # Messages
    RequestCode.SEND_MESSAGE: _SEND,
    RequestCode.SEND_MESSAGE_V2: _SEND_V2,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
    RequestCode.PUT_MESSAGE: _SEND,
    RequestCode.SEND_REPLY_MESSAGE: _SEND,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    RequestCode.END_TRANSACTION: _any_user("write on the topic of the half message"),
    RequestCode.RECALL_MESSAGE: _SEND,
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.FETCH_RECORDS: _on((_READ, _TOPIC, "topic")),
    RequestCode.QUERY_MESSAGE: _on((_READ, _TOPIC, "topic")),
    RequestCode.VIEW_MESSAGE_BY_ID: _any_user("read on the topic of the message"),
    RequestCode.QUERY_CONSUME_QUEUE: _on((_READ, _TOPIC, "topic")),
    RequestCode.CONSUMER_SEND_MSG_BACK: Requirement(
        "read on group `group`, and read on the topic of the message", _on((_READ, _GROUP, "group")).needs
    ),
    RequestCode.LIST_DELAYED_MESSAGES: Requirement(
        "read on topic `topic`; without it, admin on the cluster",
        lambda request: (
            Need(_READ, _TOPIC, topic)
            if (topic := text_of(request.ext, "topic"))
            else Need(_ADMIN, _CLUSTER),
        ),
    ),
    RequestCode.CANCEL_DELAYED_MESSAGE: _SEND,
    # Consumers
    RequestCode.HEART_BEAT: _body(
        "read on each consumer group and on each topic it subscribes to", _heartbeat
    ),
    RequestCode.UNREGISTER_CLIENT: _on((_READ, _GROUP, "consumerGroup"), optional=["consumerGroup"]),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _on((_READ, _GROUP, "consumerGroup")),
    RequestCode.CHECK_CLIENT_CONFIG: _body("read on the group and on the topic in the body", _client_check),
    RequestCode.QUERY_CONSUMER_OFFSET: _PULL,
    RequestCode.UPDATE_CONSUMER_OFFSET: _PULL,
    RequestCode.LOCK_BATCH_MQ: _body("read on the group in the body", _lock),
    RequestCode.UNLOCK_BATCH_MQ: _body("read on the group in the body", _lock),
    RequestCode.QUERY_ASSIGNMENT: _body("read on the group and on the topic in the body", _assignment),
    RequestCode.POP_MESSAGE: _POP_GROUP,
    RequestCode.ACK_MESSAGE: _body("read on group `consumerGroup`, read on topic `topic`", _ack),
    RequestCode.BATCH_ACK_MESSAGE: _body("read on each group and topic in the body", _batch_ack),
    RequestCode.PEEK_MESSAGE: _POP_GROUP,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _body(
        "read on group `consumerGroup`, read on topic `topic`", _ack
    ),
    RequestCode.NOTIFICATION: _POP_GROUP,
    RequestCode.POLLING_INFO: _POP_GROUP,
    # Topics
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _TOPIC_FIGURES,
    RequestCode.QUERY_BROKER_OFFSET: _TOPIC_FIGURES,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC_FIGURES,
    RequestCode.GET_MAX_OFFSET: _TOPIC_FIGURES,
    RequestCode.GET_MIN_OFFSET: _TOPIC_FIGURES,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _TOPIC_FIGURES,
    RequestCode.QUERY_QUEUE_BOUNDS: _body("describe on each topic in the body", _bounds),
    RequestCode.GET_TOPIC_STATS_INFO: _TOPIC_FIGURES,
    RequestCode.GET_TOPIC_CONFIG: _TOPIC_FIGURES,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC_FIGURES,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _on((_DESCRIBE, _TOPIC, "topic"), (_DESCRIBE, _GROUP, "group")),
    RequestCode.UPDATE_AND_CREATE_TOPIC: _TOPIC_ADMIN,
    RequestCode.DELETE_TOPIC_IN_BROKER: _TOPIC_ADMIN,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _TOPIC_ADMIN,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _TOPIC_ADMIN,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _ADMINISTRATION,
    # Groups
    RequestCode.DESCRIBE_GROUP: _on(
        (_DESCRIBE, _GROUP, "group"), (_DESCRIBE, _TOPIC, "topic"), optional=["topic"]
    ),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _on((_DESCRIBE, _GROUP, "group")),
    RequestCode.GET_CONSUME_STATS: _on(
        (_DESCRIBE, _GROUP, "consumerGroup"), (_DESCRIBE, _TOPIC, "topic"), optional=["topic"]
    ),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _on((_DESCRIBE, _GROUP, "consumerGroup")),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _on((_DESCRIBE, _GROUP, "group")),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _on((_DESCRIBE, _GROUP, "group")),
    RequestCode.QUERY_CORRECTION_OFFSET: _LISTING,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _on((_ADMIN, _GROUP, "consumerGroup")),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _on((_ADMIN, _GROUP, "group")),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _ADMINISTRATION,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _body(
        "admin on the group in the body", _group_config, is_administrative=True
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _body(
        "admin on each group in the body", _group_configs, is_administrative=True
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _on((_ADMIN, _GROUP, "groupName")),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _on((_ADMIN, _GROUP, "group")),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _on((_ADMIN, _GROUP, "group")),
    RequestCode.CLONE_GROUP_OFFSET: _on((_DESCRIBE, _GROUP, "srcGroup"), (_ADMIN, _GROUP, "destGroup")),
    RequestCode.SET_MESSAGE_REQUEST_MODE: _ADMINISTRATION,
    # The cluster
    RequestCode.GET_BROKER_CLUSTER_INFO: _any_user(),
    RequestCode.GET_ALL_TOPIC_CONFIG: _LISTING,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _LISTING,
    RequestCode.GET_TOPICS_BY_CLUSTER: _LISTING,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _LISTING,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _LISTING,
    RequestCode.GET_UNIT_TOPIC_LIST: _LISTING,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _LISTING,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _LISTING,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _LISTING,
    RequestCode.LIST_GROUPS: _LISTING,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _LISTING,
    RequestCode.GET_ALL_PRODUCER_INFO: _LISTING,
    RequestCode.GET_KV_CONFIG: _LISTING,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _LISTING,
    RequestCode.GET_BROKER_CONFIG: _LISTING,
    RequestCode.GET_NAMESRV_CONFIG: _LISTING,
    RequestCode.GET_BROKER_RUNTIME_INFO: _LISTING,
    RequestCode.GET_BROKER_HA_STATUS: _LISTING,
    RequestCode.GET_BROKER_MEMBER_GROUP: _LISTING,
    RequestCode.VIEW_BROKER_STATS_DATA: _LISTING,
    RequestCode.GET_BROKER_CONSUME_STATS: _LISTING,
    RequestCode.DESCRIBE_BROKER: _LISTING,
    RequestCode.LIST_CLIENTS: _LISTING,
    RequestCode.GET_CONFIG: _LISTING,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _LISTING,
    RequestCode.UPDATE_BROKER_CONFIG: _ADMINISTRATION,
    RequestCode.UPDATE_NAMESRV_CONFIG: _ADMINISTRATION,
    RequestCode.SET_CONFIG: _ADMINISTRATION,
    RequestCode.RELOAD_CONFIG: _ADMINISTRATION,
    RequestCode.SET_INTAKE: _ADMINISTRATION,
    RequestCode.FLUSH_LOG: _ADMINISTRATION,
    RequestCode.SET_COMMITLOG_READ_MODE: _ADMINISTRATION,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _ADMINISTRATION,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _ADMINISTRATION,
    RequestCode.PROMOTE_BROKER: _ADMINISTRATION,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _ADMINISTRATION,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _ADMINISTRATION,
    RequestCode.PUT_KV_CONFIG: _ADMINISTRATION,
    RequestCode.DELETE_KV_CONFIG: _ADMINISTRATION,
    RequestCode.TRIGGER_DELETE_FILES: _ADMINISTRATION,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _ADMINISTRATION,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _ADMINISTRATION,
    RequestCode.CLEAN_UNUSED_TOPIC: _ADMINISTRATION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _ADMINISTRATION,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ADMINISTRATION,
    RequestCode.POP_ROLLBACK: _ADMINISTRATION,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _ADMINISTRATION,
    # Users and rules: only administrators, which the processor checks
    RequestCode.AUTH_CREATE_USER: _USERS,
    RequestCode.AUTH_UPDATE_USER: _USERS,
    RequestCode.AUTH_DELETE_USER: _USERS,
    RequestCode.AUTH_GET_USER: _USERS,
    RequestCode.AUTH_LIST_USER: _USERS,
    RequestCode.AUTH_CREATE_ACL: _USERS,
    RequestCode.AUTH_UPDATE_ACL: _USERS,
    RequestCode.AUTH_DELETE_ACL: _USERS,
    RequestCode.AUTH_GET_ACL: _USERS,
    RequestCode.AUTH_LIST_ACL: _USERS,
    # Brokers among themselves
    RequestCode.REGISTER_BROKER: _REPLICATION,
    RequestCode.UNREGISTER_BROKER: _REPLICATION,
    RequestCode.BROKER_HEARTBEAT: _REPLICATION,
    RequestCode.QUERY_DATA_VERSION: _REPLICATION,
    RequestCode.QUERY_REPLICA_STATE: _REPLICATION,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _REPLICATION,
    RequestCode.GET_ALL_DELAY_OFFSET: _REPLICATION,
    RequestCode.GET_TIMER_CHECK_POINT: _REPLICATION,
    RequestCode.GET_TIMER_METRICS: _REPLICATION,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _REPLICATION,
    RequestCode.GET_SINK_BATCHES: _REPLICATION,
    RequestCode.AWAIT_TABLE_CHANGES: _REPLICATION,
    # Spark's sink. A batch is known by the id of its query, which only the query's own tasks know.
    RequestCode.STAGE_RECORDS: _any_user("write on each topic in the body"),
    RequestCode.END_STAGING: _SINK,
    RequestCode.COMMIT_STAGED: _SINK,
    RequestCode.ABORT_STAGED: _SINK,
    RequestCode.QUERY_STAGED: _SINK,
}
"""By request code."""

_UNKNOWN: Final = _ADMINISTRATION


def requirement_of(code: int) -> Requirement:
    """Return the requirement of a request code."""
    return REQUIREMENTS.get(code, _UNKNOWN)
