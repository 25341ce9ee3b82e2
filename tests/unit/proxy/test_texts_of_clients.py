"""Handles, ids and messages that clients send back: everything is either valid or rejected with a code."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_client import errors
from reput_client.pop.popped import SPAN_MAX
from reput_client.produce.transaction_checks import HalfPlace
from reput_protocol.commands.pop import PopHandle
from reput_protocol.errors import BrokerError, ErrorCode, error_from_response
from reput_protocol.record.message import MessageQueue
from reput_proxy import messaging_pb2 as pb
from reput_proxy.clients import Delivery
from reput_proxy.messages import to_send
from reput_proxy.rejections import Code, Rejected, status, status_of, status_of_all
from reput_proxy.upstream import TransactionId

NUMBERS = st.integers(0, (1 << 62) - 1)
NAMES = st.text("abcXYZ019-_%", min_size=1, max_size=20)
WORDS = st.lists(st.one_of(NUMBERS.map(str), st.text(max_size=5), st.sampled_from("012-")), max_size=12).map(" ".join)


_WRONG_REQUESTS = {
    *(ErrorCode.NO_TOPIC, ErrorCode.NO_GROUP, ErrorCode.NO_PERMISSION, ErrorCode.UNAUTHENTICATED),
    *(ErrorCode.TOO_LARGE, ErrorCode.MALFORMED, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.FILTER_SYNTAX),
    *(ErrorCode.INVALID_ARGUMENT, ErrorCode.NOT_FOUND, ErrorCode.TRANSACTION_ENDED),
}


def rejection(call: Callable[[], object]) -> int | None:
    """Return the code with which a call is rejected, or None."""
    try:
        call()
    except Rejected as error:
        return error.code
    return None


@given(st.builds(PopHandle, *[NUMBERS] * 4, st.sampled_from("012"), NAMES, st.integers(0, 100), NUMBERS), NUMBERS)
def test_a_handle_survives_its_text(handle: PopHandle, physical_offset: int) -> None:
    handle = handle._replace(queue_offset=handle.start_offset + handle.queue_offset % SPAN_MAX)
    delivery = Delivery("group", "topic", handle, physical_offset)
    again = Delivery.parse("group", "topic", delivery.receipt_handle)
    assert again.receipt_handle == delivery.receipt_handle
    assert again.queue == delivery.queue
    assert again.physical_offset == physical_offset


@pytest.mark.parametrize("text", ["5 1 1 1 0 b 0 4 1", "0 1 1 1 0 b 0 9000000000000000000 1", "-1 1 1 1 0 b 0 0 1"])
def test_a_handle_far_from_its_pop_is_rejected(text: str) -> None:
    """Acknowledgements of a pop are the bits of one number, which would be as long as the distance."""
    assert rejection(lambda: Delivery.parse("group", "topic", text)) == Code.INVALID_RECEIPT_HANDLE


@given(st.one_of(st.text(), WORDS))
def test_any_text_is_a_handle_or_rejected(text: str) -> None:
    assert rejection(lambda: Delivery.parse("group", "topic", text)) in (None, Code.INVALID_RECEIPT_HANDLE)


@given(NAMES, st.integers(0, 100), NUMBERS, NUMBERS, NAMES)
def test_a_transaction_id_survives_its_text(
    broker: str, queue_id: int, queue_offset: int, physical_offset: int, unique_id: str
) -> None:
    half = HalfPlace(MessageQueue("topic", broker, queue_id), queue_offset, physical_offset, unique_id)
    found = TransactionId.of(half)
    assert TransactionId.parse(str(found)) == found


@given(st.one_of(st.text(), WORDS, st.from_regex(r"[A-Za-z0-9_=-]{0,60}", fullmatch=True)))
def test_any_text_is_a_transaction_id_or_rejected(text: str) -> None:
    assert rejection(lambda: TransactionId.parse(text)) in (None, Code.INVALID_TRANSACTION_ID)


@given(st.binary(max_size=300))
def test_any_message_is_sent_or_rejected(data: bytes) -> None:
    try:
        message = pb.Message.FromString(data)
    except Exception:
        return  # gRPC rejects it
    message.topic.name = "orders"
    message.system_properties.message_id = "ID"
    message.body = message.body or b"x"
    code = rejection(lambda: to_send(message, {}))
    assert code is None or Code.BAD_REQUEST <= code < Code.INTERNAL_ERROR


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_of_a_broker_has_a_code_of_its_own_kind(code: ErrorCode) -> None:
    error = error_from_response(code.response_code, f"{code.name}: because", {})
    found = status_of(error)
    assert "because" in found.message
    if code.retryable:
        assert found.code >= Code.TOO_MANY_REQUESTS, "clients try again"
    if code in _WRONG_REQUESTS:
        assert Code.BAD_REQUEST <= found.code < Code.TOO_MANY_REQUESTS, "clients do not"


def test_a_queue_that_several_brokers_have_is_the_mistake_of_a_client_that_names_none() -> None:
    """Clients repeated the request, with the same outcome."""
    assert status_of(errors.AmbiguousQueue("orders", 0, ["broker-a", "broker-b"])).code == Code.BAD_REQUEST


def test_the_text_of_an_unexpected_error_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    found = status_of(KeyError("a secret"))
    assert found.code == Code.INTERNAL_SERVER_ERROR
    assert "secret" not in found.message
    assert "a secret" in caplog.text


def test_the_errors_of_the_client_are_codes() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, BrokerError)]
    for kind in kinds:
        error = kind(ErrorCode.BUSY, "BUSY: because")
        assert status_of(error).code >= Code.BAD_REQUEST


def test_several_results_are_one_status_if_they_agree() -> None:
    good, bad = status(Code.OK), status(Code.FORBIDDEN)
    assert status_of_all([good, good]).code == Code.OK
    assert status_of_all([bad]).code == Code.FORBIDDEN
    assert status_of_all([good, bad]).code == Code.MULTIPLE_RESULTS
