"""Reading fields with their types, whichever header brought them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from reput_protocol.codes import BoundaryType
from reput_protocol.command_header import I32, I64, CommandHeader, read_bool, read_integer, read_text
from reput_protocol.commands import QueryConsumerOffsetHeader, QueueHeader, SearchOffsetHeader
from reput_protocol.errors import HeaderFieldError
from reput_protocol.header import HeaderType, Value


@dataclass(slots=True)
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
    assert read_integer("n", "+7", 32) == 7
    assert read_integer("n", str(2**31 - 1), 32) == 2**31 - 1
    assert read_integer("n", -(2**63), 64) == -(2**63)
    bad: list[Value] = [
        "",
        " 7",
        "7 ",
        "1_0",
        "0x1",
        "7.0",
        "٣",
        7.0,
        True,
        b"7",
        None,
        str(2**31),
        2**31,
        "9" * 5000,
    ]
    for value in bad:
        with pytest.raises(HeaderFieldError, match="'n'"):
            read_integer("n", value, 32)


def test_booleans() -> None:
    assert read_bool("b", "TRUE") is True
    assert read_bool("b", False) is False
    for value in ("1", "yes", 1):
        with pytest.raises(HeaderFieldError):
            read_bool("b", value)


def test_text_takes_what_clients_send_unquoted() -> None:
    assert [read_text("t", value) for value in (7, True, b"x")] == ["7", "true", "x"]
    with pytest.raises(HeaderFieldError):
        read_text("t", b"\xff")


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
