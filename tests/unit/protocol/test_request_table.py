"""The table of requests: a row for each code, and fields whose types say what they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

import pytest
from msgspec import Struct
from msgspec.structs import fields

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import CommandHeader, Kind, Members, RequestType, Sender, named_fields
from reput_protocol.commands.table import NOT_SERVED, REQUESTS, why_not_served
from reput_protocol.names import Names
from reput_protocol.rights import Right
from support.typed_requests import typed_headers

TOPICS: Final = {Names.TOPIC, Names.TOPICS, Names.POPPED_TOPIC}
GROUPS: Final = {Names.GROUP, Names.GROUPS}
LOOKS_LIKE_A_NAME: Final = re.compile(r"topic|group|(client|consumer|member)_?(ids?|addr)|broker_?name")
NAMES_NOTHING: Final[Mapping[str, str]] = {
    "ClientConnection.client_addr": "an address",
    "ClientDescription.groups": "an answer's, producer groups and consumer groups",
    "CreateTopicHeader.topic_filter_type": "a setting",
    "GroupMember.client_addr": "an address",
    "SubscriptionGroupConfig.group_retry_policy": "a setting",
    "TopicConfig.topic_filter_type": "a setting",
    "TopicRoute.order_topic_conf": "numbers of queues by broker",
    "UserInfo.groups": "groups of rules",
}
CHANGES_SOMETHING: Final = re.compile(
    r"^(ABORT|ACK|ADD|AUTH_(CREATE|DELETE|UPDATE)|BATCH_ACK|CHANGE|CLEAN|COMMIT|CONSUMER_SEND|CREATE|DELETE|DISCONNECT|DROP|END|INVOKE"
    r"|(UN)?LOCK|POP|PUT|RECALL|(UN)?REGISTER|REMOVE|RESET|SEND|SET|STAGE|UPDATE|WIPE)_"
)
OF_ONE_BROKER: Final = {
    # its members, which a slave has too
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    # its files, configuration and role
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.TRIGGER_DELETE_FILES,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
    RequestCode.POP_ROLLBACK,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.SET_COMMITLOG_READ_MODE,
    RequestCode.RESET_MASTER_FLUSH_OFFSET,
    RequestCode.PROMOTE_BROKER,
    RequestCode.SET_CONFIG,
    RequestCode.RELOAD_CONFIG,
    RequestCode.SET_INTAKE,
    RequestCode.FLUSH_LOG,
    RequestCode.DISCONNECT_CLIENT,
    # what it has as a name server
    RequestCode.PUT_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    # its file with users, which no slave copies
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
}
TO_BROKERS: Final = [row for row in REQUESTS.values() if row.sender is not Sender.TO_CLIENTS]


def test_each_code_has_one_row() -> None:
    assert {*map(int, RequestCode)} <= REQUESTS.keys() | NOT_SERVED.keys()
    assert not REQUESTS.keys() & NOT_SERVED.keys()
    assert why_not_served(13).startswith(" request type 13 not supported: QUERY_BROKER_OFFSET; ")
    assert why_not_served(3001).startswith(" request type 3001 not supported: AUTH_CREATE_USER; ")
    assert why_not_served(987654) == " request type 987654 not supported"


def types_of_fields() -> Iterator[tuple[str, str, Any]]:
    """Yield class, field and type of all that travels."""
    kinds: list[Any] = [*typed_headers(), *CommandHeader.__subclasses__()]
    bodies = Members.__subclasses__()
    for kind in bodies:
        bodies += kind.__subclasses__()
    for kind in {*kinds, *bodies}:
        if kind.__module__.startswith("reput_protocol."):
            for field in fields(kind):
                yield kind.__name__, field.name, field.type


def holds_text(hint: Any) -> bool:
    """Tell whether a value of a type may be text, or has some that no type of its own describes."""
    if hint is str:
        return True
    return any(map(holds_text, get_args(hint))) if get_origin(hint) is not None else False


def says_what_it_names(hint: Any) -> bool:
    inner = [*get_args(hint)]
    return any(isinstance(part, Names) for part in inner) or any(map(says_what_it_names, inner))


def test_a_field_that_looks_like_a_name_says_what_it_names() -> None:
    unsaid = {
        f"{kind}.{name}"
        for kind, name, hint in types_of_fields()
        if LOOKS_LIKE_A_NAME.search(name) and holds_text(hint) and not says_what_it_names(hint)
    }
    assert unsaid == NAMES_NOTHING.keys(), "annotate it with a type of reput_protocol.names, or say here why not"


@pytest.mark.parametrize("row", TO_BROKERS, ids=lambda row: row.code.name)
def test_what_a_field_names_needs_a_right(row: RequestType) -> None:
    named = (*named_fields(row.header), *named_fields(row.body))
    for field in named:
        if field.names in TOPICS | GROUPS and row.cluster is None:
            assert row.right_on(field) is not None or field.path in row.fields, field.path
    assert row.fields.keys() <= {field.path for field in named}, "an exception is about a field that is there"


@pytest.mark.parametrize("row", TO_BROKERS, ids=lambda row: row.code.name)
def test_who_may_send_a_request_is_decided(row: RequestType) -> None:
    needs = (row.cluster, row.topics, row.groups, row.unnamed, row.handler_checks, row.writes_something)
    assert any(needs) or row.code is RequestCode.GET_BROKER_CLUSTER_INFO


def test_names_are_found_in_bodies_lists_and_maps() -> None:
    class Queue(Struct):
        topic: str

    row = REQUESTS[RequestCode.BATCH_ACK_MESSAGE]
    assert row.body is not None
    body = row.body.from_json(b'{"acks":[{"c":"g","t":"%RETRY%g_orders"},{"c":"h","t":"other"}]}')
    found = {field.path: [*field.names_in(body)] for field in named_fields(row.body)}
    assert found == {"brokerName": [""], "acks.c": ["g", "h"], "acks.t": ["orders", "other"]}
    assert named_fields(Queue) == (), "only the type counts"
    header = REQUESTS[RequestCode.GET_CONSUME_STATS].header
    many = next(field for field in named_fields(header) if field.path == "topicList")
    assert [*many.split("a;b;;c")] == ["a", "b", "c"]


def test_a_request_that_seems_to_change_something_says_so() -> None:
    """Otherwise a slave, and a master whose lease has ended, would change what the master's next table takes back."""
    for row in TO_BROKERS:
        rights = {row.topics, row.groups, row.cluster, row.unnamed, *row.fields.values()}
        seems_to = rights & {Right.WRITE, Right.ADMIN} or CHANGES_SOMETHING.match(row.code.name)
        if seems_to and row.kind not in (Kind.CHANGES, Kind.MASTER_ONLY):
            assert row.code in OF_ONE_BROKER, f"{row.code.name}: kind=Kind.CHANGES, or a reason here"
