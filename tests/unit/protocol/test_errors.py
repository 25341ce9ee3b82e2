"""Errors: numbers that stay, remarks that are decoded as the same error, and pickling."""

from __future__ import annotations

import pickle

import pytest

from reput_protocol import errors
from reput_protocol.codes import ResponseCode
from reput_protocol.errors import (
    BrokerBusy,
    BrokerError,
    ErrorCode,
    FilterSyntaxError,
    FrameTooLarge,
    HeaderFieldError,
    InvalidName,
    MessageRefused,
    OffsetOutOfRange,
    RecordMalformed,
    ReputError,
    TopicNotFound,
    error_from_response,
    refusal_remark,
)


def test_numbers_are_stable_and_distinct() -> None:
    assert [error.number for error in ErrorCode] == list(range(1, len(ErrorCode) + 1))
    assert ErrorCode.NO_TOPIC.number == 1
    assert ErrorCode.INTERNAL.number == 24


@pytest.mark.parametrize("error", list(ErrorCode))
def test_a_refusal_is_decoded_as_the_same_error(error: ErrorCode) -> None:
    remark = refusal_remark(error, "what is wrong; what to do")
    received = error_from_response(error.response_code, remark, {"k": 1})
    assert received.error is error
    assert received.response_code == error.response_code
    assert received.retryable is error.retryable
    assert received.ext == {"k": 1}
    assert str(received) == remark == f"{error.name}: what is wrong; what to do"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ResponseCode.SYSTEM_ERROR, ErrorCode.INTERNAL),
        (ResponseCode.SYSTEM_BUSY, ErrorCode.BUSY),
        (ResponseCode.TOPIC_NOT_EXIST, ErrorCode.NO_TOPIC),
        (ResponseCode.MESSAGE_ILLEGAL, ErrorCode.MALFORMED),
        (ResponseCode.PULL_OFFSET_MOVED, ErrorCode.OFFSET_OUT_OF_RANGE),
        (31999, ErrorCode.INTERNAL),
    ],
)
def test_apaches_remarks_are_read_by_their_code(code: int, error: ErrorCode) -> None:
    received = error_from_response(code, "[TIMEOUT]Some text; topic: X", {})
    assert received.error is error
    assert received.response_code == code


def test_a_symbol_that_we_do_not_know_falls_back_to_the_code() -> None:
    assert error_from_response(17, "NO_SUCH_SYMBOL: text", {}).error is ErrorCode.NO_TOPIC


def test_subclasses_tell_refusals_apart() -> None:
    assert type(error_from_response(17, None, {})) is TopicNotFound
    assert type(error_from_response(2, None, {})) is BrokerBusy
    assert type(error_from_response(13, None, {})) is MessageRefused
    assert type(error_from_response(21, None, {})) is OffsetOutOfRange
    assert type(error_from_response(29, None, {})) is BrokerError


def test_an_answer_without_a_remark_still_says_something() -> None:
    assert "code 17" in str(error_from_response(17, None, {}))


def test_no_replica_is_never_the_code_that_old_clients_take_for_stored() -> None:
    stored = {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
    found = [error for error in ErrorCode if error.response_code in stored]
    assert found == [ErrorCode.FLUSH_TIMEOUT, ErrorCode.REPLICA_TIMEOUT, ErrorCode.REPLICA_MISSING]
    assert not any(error.retryable for error in found)


@pytest.mark.parametrize(
    "error",
    [
        FrameTooLarge("frame", 20, 10),
        HeaderFieldError("queueId", "is missing"),
        RecordMalformed(3, 400, "body CRC differs"),
        FilterSyntaxError("nothing there", 2),
        InvalidName("empty"),
        error_from_response(17, "NO_TOPIC: orders; create it", {"a": "b"}),
    ],
)
def test_errors_survive_pickling_with_their_facts(error: ReputError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_every_error_descends_from_the_root() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, ReputError) for kind in kinds)
