"""Reading fields with their types, from any header."""

from __future__ import annotations

import pytest

from reput_protocol.codes import BoundaryType
from reput_protocol.commands.base import I32, I64, CommandHeader
from reput_protocol.commands.offset import QueryConsumerOffsetHeader, QueueHeader, SearchOffsetHeader
from reput_protocol.commands.pull import PullMessageHeader
from reput_protocol.errors import HeaderFieldError
from reput_protocol.wire.header import HeaderType, Value


class Sample(CommandHeader):
    group_name: str
    small: I32
    big: I64 = 5
    flag: bool | None = None


def test_typed_and_text_forms_read_alike() -> None:
    sample = Sample("g", -3, 2**40, True)
    typed = sample.to_ext(HeaderType.MSGPACK)
    text = sample.to_ext(HeaderType.JSON)
    assert typed == {"groupName": "g", "small": -3, "big": 2**40, "flag": True}
    assert text == {"groupName": "g", "small": "-3", "big": str(2**40), "flag": "true"}
    assert Sample.from_ext(typed) == Sample.from_ext(text) == sample


def test_absent_fields_take_their_defaults_and_are_not_written() -> None:
    sample = Sample.from_ext({"groupName": "g", "small": 1, "big": "", "unknown": "x"})
    assert sample == Sample("g", 1, 5, None)
    assert "flag" not in sample.to_ext(HeaderType.BINARY)


@pytest.mark.parametrize("ext", [{"small": 1}, {"groupName": "g"}, {"groupName": "g", "small": ""}])
def test_a_missing_field_is_named(ext: dict[str, Value]) -> None:
    with pytest.raises(HeaderFieldError, match="is missing") as caught:
        Sample.from_ext(ext)
    assert caught.value.name in ("groupName", "small")


def test_integers_are_decimal_and_in_range() -> None:
    def read(value: Value) -> Sample:
        return Sample.from_ext({"groupName": "g", "small": value, "big": value})

    assert read("+7") == read("007") == read(7) == Sample("g", 7, 7)
    assert read(str(-(2**31))) == Sample("g", -(2**31), -(2**31))
    assert Sample.from_ext({"groupName": "g", "small": 0, "big": str(2**63 - 1)}).big == 2**63 - 1
    bad: list[Value] = [" 7", "7 ", "1_0", "0x1", "7.0", "7e0", "\u0663", "null", 7.0, True, b"7", "9" * 5000]
    for value in bad:
        with pytest.raises(HeaderFieldError, match="'small' is not an integer"):
            read(value)
    for value in (str(2**31), 2**31, -(2**31) - 1):
        with pytest.raises(HeaderFieldError, match="'small' does not fit 32 bits"):
            read(value)
    for value in (str(2**63), 2**63, 2**64):
        with pytest.raises(HeaderFieldError, match="'big' does not fit 64 bits"):
            Sample.from_ext({"groupName": "g", "small": 0, "big": value})


def test_booleans() -> None:
    def read(value: Value) -> bool | None:
        return Sample.from_ext({"groupName": "g", "small": 1, "flag": value}).flag

    assert [read(value) for value in ("TRUE", "false", False, None, "")] == [True, False, False, None, None]
    assert [read(value) for value in ("1", "0")] == [True, False], "as RocketMQ's C++ client writes them"
    for value in ("2", "yes", "null", 1, 0):
        with pytest.raises(HeaderFieldError, match="'flag' is neither true nor false"):
            read(value)


def test_text_takes_what_clients_send_unquoted() -> None:
    def read(value: Value) -> str:
        return Sample.from_ext({"groupName": value, "small": 1}).group_name

    assert [read(value) for value in (7, True, b"x", "")] == ["7", "true", "x", ""]
    with pytest.raises(HeaderFieldError, match="'groupName' is not text"):
        read(b"\xff")


def test_an_absent_value_takes_the_default() -> None:
    ext: dict[str, Value] = {"consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
    assert PullMessageHeader.from_ext({**ext, "sysFlag": None, "subVersion": ""}).sys_flag == 0


def test_choices() -> None:
    ext: dict[str, Value] = {"topic": "t", "queueId": "0", "timestamp": "1"}
    assert SearchOffsetHeader.from_ext(ext).boundary_type is BoundaryType.LOWER
    assert SearchOffsetHeader.from_ext({**ext, "boundaryType": "UPPER"}).boundary_type is BoundaryType.UPPER
    with pytest.raises(HeaderFieldError, match="LOWER, UPPER"):
        SearchOffsetHeader.from_ext({**ext, "boundaryType": "MIDDLE"})


def test_optional_boolean_keeps_three_states() -> None:
    base: dict[str, Value] = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    states = [
        QueryConsumerOffsetHeader.from_ext(base | more).set_zero_if_not_found
        for more in ({}, {"setZeroIfNotFound": "false"}, {"setZeroIfNotFound": True})
    ]
    assert states == [None, False, True]


def test_a_queue_id_from_json_is_a_number() -> None:
    assert QueueHeader.from_ext({"topic": "t", "queueId": "3"}) == QueueHeader("t", 3)
