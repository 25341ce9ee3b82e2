"""The typed headers, above all those whose reading is written out by hand for speed."""

from __future__ import annotations

from typing import Any

import pytest

from reput_protocol.codes import AckLevel
from reput_protocol.command_header import read_fields, write_fields
from reput_protocol.commands import (
    CommandHeader,
    CreateTopicHeader,
    DeleteTopicHeader,
    EarliestTimeResult,
    GetTopicConfigHeader,
    OffsetResult,
    PullMessageHeader,
    PullMessageResult,
    PutMessageHeader,
    PutMessageResult,
    QueryConsumerOffsetHeader,
    QueueHeader,
    RouteHeader,
    SearchOffsetHeader,
    SendMessageHeader,
    SendMessageResult,
    TopicStatsHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from reput_protocol.errors import HeaderFieldError
from reput_protocol.header import Header, HeaderType, decode_header, encode_header

SAMPLES: list[CommandHeader] = [
    SendMessageHeader(
        "PG", "t", 1, 0x301, 1700000000000, 7, "TAGS\x01a\x02", "TBW102", 8, 2, False, 16, True, "b"
    ),
    SendMessageResult("7F000001", 1, 2**40, "AC11"),
    PutMessageHeader("t", 3, 64, AckLevel.PAGE_CACHE),
    PutMessageResult(3, 2**40, 2**41, 1700000000001, "127.0.0.1:10911", AckLevel.FLUSHED),
    PullMessageHeader("g", "t", 0, 9, 32, 7, -1, 15000, "TagA || TagB", 1700000000000, "TAG", 262144),
    PullMessageHeader("g", "t", 0, 9, 0),
    PullMessageResult(7, 0, 7, 1),
    ViewMessageHeader(1234, "t"),
    QueryConsumerOffsetHeader("g", "t", 1, False),
    UpdateConsumerOffsetHeader("g", "t", 1, -1),
    QueueHeader("t", 1),
    SearchOffsetHeader("t", 1, 1700000000000),
    OffsetResult(5),
    EarliestTimeResult(-1),
    RouteHeader("t", True),
    CreateTopicHeader("t", 4, 4, 6, attributes="+message.type=FIFO"),
    DeleteTopicHeader("t"),
    GetTopicConfigHeader("t"),
    TopicStatsHeader("t"),
]


@pytest.mark.parametrize("header_type", list(HeaderType))
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_every_command_survives_every_header_type(sample: CommandHeader, header_type: HeaderType) -> None:
    header = Header(1, 1, ext=sample.to_ext(header_type))
    received = decode_header(header_type, encode_header(header, header_type))
    assert type(sample).from_ext(received.ext) == sample


@pytest.mark.parametrize("header_type", list(HeaderType))
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_the_fast_ways_agree_with_the_general_one(sample: CommandHeader, header_type: HeaderType) -> None:
    ext = sample.to_ext(header_type)
    assert ext == write_fields(sample, header_type)
    assert type(sample).from_ext(ext) == read_fields(type(sample), ext)
    received = type(sample).from_ext(ext)
    assert received.to_ext(header_type) == ext


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_the_fast_ways_refuse_what_the_general_one_refuses(sample: CommandHeader) -> None:
    good = sample.to_ext(HeaderType.MSGPACK)
    hostile: list[Any] = [None, "", "x", -1, 2**31, 2**63, 2**64, -(2**63) - 1, 1.5, True, b"\xff", b"t"]
    for name in good:
        for value in hostile:
            ext = {**good, name: value}
            try:
                expected = read_fields(type(sample), ext)
            except HeaderFieldError:
                with pytest.raises(HeaderFieldError):
                    type(sample).from_ext(ext)
            else:
                assert type(sample).from_ext(ext) == expected


def test_put_message_defaults_to_flushed() -> None:
    assert PutMessageHeader.from_ext({"topic": "t", "queueId": 0, "count": 1}).ack is AckLevel.FLUSHED
    with pytest.raises(HeaderFieldError, match="page_cache, flushed, replicated"):
        PutMessageHeader.from_ext({"topic": "t", "queueId": 0, "count": 1, "ack": "none"})


def test_send_v2_uses_letters() -> None:
    sample = SAMPLES[0]
    assert isinstance(sample, SendMessageHeader)
    ext = sample.to_ext_v2(HeaderType.JSON)
    assert set(ext) == set("abcdefghijklmn")
    assert (ext["a"], ext["b"], ext["e"], ext["m"], ext["n"]) == ("PG", "t", "1", "true", "b")
    assert SendMessageHeader.from_ext_v2(ext) == sample
    with pytest.raises(HeaderFieldError, match="'e'"):
        SendMessageHeader.from_ext_v2({**ext, "e": "x"})


def test_ali_ons_pull_is_read() -> None:
    """Its numbers come unquoted and JSON decoding has made them text; expressionType is absent."""
    header = decode_header(
        0,
        b'{"code":11,"language":"JAVA","opaque":6,"flag":0,"version":121,"extFields":{"consumerGroup":"NODE_CG",'
        b'"topic":"NodeTopic","queueId":0,"queueOffset":0,"maxMsgNums":32,"sysFlag":6,"commitOffset":-1,'
        b'"suspendTimeoutMillis":15000,"subscription":"TagA || TagB","subVersion":1795190824327}}',
    )
    assert PullMessageHeader.from_ext(header.ext) == PullMessageHeader(
        "NODE_CG", "NodeTopic", 0, 0, 32, 6, -1, 15000, "TagA || TagB", 1795190824327
    )
