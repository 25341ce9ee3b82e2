"""Every typed body and header is the same after encoding and decoding, with any content."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta, structs

from reput_protocol.codes import ConsumeFromWhere, ConsumeResult, ConsumeType, MessageModel
from reput_protocol.commands.base import I32 as INTEGER
from reput_protocol.commands.base import I64 as LONG
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.consumers import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatus,
    ConsumeTimeSpan,
    OffsetWrapper,
    ProcessQueueInfo,
    QueueTimeSpan,
)
from reput_protocol.commands.delay import (
    CancelledMessage,
    CancelOutcome,
    CancelResult,
    DelayedMessage,
    DelayedMessageList,
)
from reput_protocol.commands.group import (
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    GroupForbidden,
    GroupList,
    HeartbeatData,
    LockBatchBody,
    LockBatchResult,
    ProducerData,
    QuerySubscriptionBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from reput_protocol.commands.group_description import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from reput_protocol.commands.offset import ConsumerStatusBody, ResetOffsetBody, ResetOffsetList
from reput_protocol.errors import BodyMalformed
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.frames import decode_header, encode_header
from reput_protocol.wire.header import Header, HeaderType
from support.typed_requests import typed_headers

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
RATE = st.floats(-1e12, 1e12)
FLAG = st.booleans()
QUEUE = st.builds(MessageQueue, TEXT, TEXT, I64)


def few(item: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(item, max_size=3)


def table(key: st.SearchStrategy[Any], value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[Any, Any]]:
    return st.dictionaries(key, value, max_size=3)


SUBSCRIPTION = st.builds(SubscriptionData, TEXT, NAME, I64, NAME, few(TEXT), few(I64), FLAG)
CONSUMER = st.builds(
    ConsumerData,
    TEXT,
    st.sampled_from(ConsumeType),
    st.sampled_from(MessageModel),
    st.sampled_from(ConsumeFromWhere),
    few(SUBSCRIPTION),
    FLAG,
)
GROUP = st.builds(
    SubscriptionGroupConfig,
    TEXT, FLAG, FLAG, FLAG, FLAG, I64, I64, st.just({"type": "EXPONENTIAL"}), I64, I64, FLAG, I64, I64,
    st.just(UNSET) | few(table(TEXT, TEXT)), table(TEXT, TEXT),
)  # fmt: skip
CONNECTION = st.builds(ClientConnection, TEXT, TEXT, NAME, I64)
STATS = st.builds(ConsumeStats, table(QUEUE, st.builds(OffsetWrapper, I64, I64, I64, I64)), RATE)
VERSION = st.fixed_dictionaries({"counter": I64, "stateVersion": I64, "timestamp": I64})

BODIES = {
    HeartbeatData: st.builds(HeartbeatData, TEXT, few(CONSUMER), few(st.builds(ProducerData, TEXT)), I64, FLAG),
    CheckClientBody: st.builds(CheckClientBody, TEXT, TEXT, SUBSCRIPTION, st.none() | NAME),
    ConsumerList: st.builds(ConsumerList, few(TEXT)),
    GroupList: st.builds(GroupList, few(TEXT)),
    GroupForbidden: st.builds(GroupForbidden, TEXT, TEXT, FLAG),
    LockBatchBody: st.builds(LockBatchBody, TEXT, TEXT, few(QUEUE), FLAG),
    LockBatchResult: st.builds(LockBatchResult, few(QUEUE)),
    SubscriptionGroupConfig: GROUP,
    SubscriptionGroupList: st.builds(SubscriptionGroupList, few(GROUP)),
    SubscriptionGroupTable: st.builds(
        SubscriptionGroupTable, table(TEXT, GROUP), VERSION, table(TEXT, table(TEXT, I64))
    ),
    QuerySubscriptionBody: st.builds(QuerySubscriptionBody, TEXT, TEXT, st.none() | SUBSCRIPTION),
    ProducerConnection: st.builds(ProducerConnection, few(CONNECTION)),
    ConsumerConnection: st.builds(
        ConsumerConnection, few(CONNECTION), table(TEXT, SUBSCRIPTION), st.sampled_from(ConsumeType)
    ),
    ProducerTable: st.builds(
        ProducerTable, table(TEXT, few(st.builds(ProducerInfo, TEXT, TEXT, NAME, I64, I64)))
    ),
    ConsumeStats: STATS,
    ConsumeTimeSpan: st.builds(ConsumeTimeSpan, few(st.builds(QueueTimeSpan, QUEUE, I64, I64, I64, I64))),
    ResetOffsetBody: st.builds(ResetOffsetBody, table(QUEUE, I64)),
    ConsumerStatusBody: st.builds(
        ConsumerStatusBody, table(QUEUE, I64), table(TEXT, table(QUEUE, I64))
    ),
    ConsumerRunningInfo: st.builds(
        ConsumerRunningInfo,
        table(TEXT, TEXT),
        few(SUBSCRIPTION),
        table(
            QUEUE,
            st.builds(ProcessQueueInfo, I64, I64, I64, I64, I64, FLAG, I64, I64, FLAG, I64, I64),
        ),
        table(TEXT, st.builds(ConsumeStatus, RATE, RATE, RATE, RATE, RATE, I64)),
        table(TEXT, TEXT),
        st.none() | NAME,
    ),
    ConsumeDirectlyResult: st.builds(
        ConsumeDirectlyResult, st.sampled_from(ConsumeResult), I64, FLAG, FLAG, st.none() | NAME
    ),
    DelayedMessageList: st.builds(
        DelayedMessageList,
        few(
            st.builds(
                DelayedMessage, TEXT, I64, TEXT, I64, I64, I64, I64, st.none() | NAME, st.none() | NAME, few(TEXT)
            )
        ),
        st.none() | NAME,
    ),
    CancelResult: st.builds(
        CancelResult, few(st.builds(CancelledMessage, TEXT, st.sampled_from(CancelOutcome), st.none() | NAME))
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_bodies_survive_the_wire(kind: Any, data: st.DataObject) -> None:
    body = data.draw(BODIES[kind])
    assert kind.from_json(body.to_json()) == body
    assert kind.from_json(bytearray(body.to_json())) == body, "any buffer will do"
    if isinstance(body, ResetOffsetBody):
        assert kind.from_json(ResetOffsetList(body.offset_table).to_json()) == body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_stands_for_a_member_is_read_or_malformed(kind: Any, data: st.DataObject) -> None:
    """A hostile body costs its sender an error, and other clients nothing."""
    body = data.draw(BODIES[kind])
    try:
        members = json.loads(body.to_json())
    except ValueError:
        return  # a map with objects as keys; its reader is tried by the wholesome bodies
    for name in members:
        members[name] = data.draw(st.just(members[name]) | JSON)
    try:
        read = kind.from_json(json.dumps(members).encode())
    except BodyMalformed:
        return
    assert kind.from_json(read.to_json()) == read


HEADERS = typed_headers()


def values_of(field: structs.FieldInfo) -> st.SearchStrategy[Any]:
    """Return any value that a header's field may have; None only where that is what its absence means."""
    parts = get_args(field.type)
    kind = parts[0] if type(None) in parts else field.type
    if get_args(kind)[:1] == (str,):  # what it names is in its annotation
        kind = str
    of_type: dict[Any, st.SearchStrategy[Any]] = {LONG: I64, INTEGER: I32, bool: FLAG, str: NAME}
    bounds = [meta for meta in get_args(kind) if isinstance(meta, Meta)]
    if kind in of_type:
        values = of_type[kind]
    elif bounds:
        values = st.integers(int(bounds[0].ge or 0), int(bounds[0].le or 0))
    else:
        values = st.sampled_from(kind)
    return values | st.none() if field.default is None else values


@pytest.mark.parametrize("header_type", list(HeaderType))
@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_headers_survive_the_wire(kind: type[CommandHeader], header_type: HeaderType, data: st.DataObject) -> None:
    header = kind(*(data.draw(values_of(field)) for field in structs.fields(kind)))
    sent = Header(1, 1, ext=header.to_ext(header_type))
    received = decode_header(header_type, encode_header(sent, header_type))
    assert kind.from_ext(received.ext) == header
