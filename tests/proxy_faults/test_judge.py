"""The judge of repeated messages, by histories of one message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interop.client import Acknowledged
from proxy_faults.judge import Delivery, History, Span, unexplained

BODY = b"message 1"
KILL = Span(200.0, 205.0)


def delivery(popped_at: float, *, queue_offset: int = 0, mark: str = "0", invisible_s: float = 60.0) -> Delivery:
    """A delivery that arrived at once."""
    times = f"{round(1000 * popped_at)} {round(1000 * invisible_s)}"
    return Delivery(f"{queue_offset} {times} 1 {mark} broker-a 0 {queue_offset} 4711", popped_at)


def history(
    *deliveries: Delivery,
    acked: tuple[Delivery, float] | None = None,
    outcome: str = "OK",
    sent: Span = Span(99.0, 99.9),  # noqa: B008 - cannot change
    brokers_die: bool = True,
) -> History:
    """One message with one acknowledgement, which was asked a tenth of a second before its answer."""
    acks = {}
    if acked is not None:
        receipt, answered_at = acked[0].receipt, acked[1]
        acks["simple", receipt] = [Acknowledged("simple", receipt, answered_at - 0.1, answered_at, outcome)]
    return History({BODY: sent}, {("simple", BODY): deliveries}, acks, [KILL], brokers_die)


def test_one_delivery_is_not_a_repeat() -> None:
    only = delivery(100.0)
    assert unexplained(history(only, acked=(only, 101.0))) == []


def test_a_message_comes_again_after_its_acknowledgement() -> None:
    first, again = delivery(195.0), delivery(255.0, mark="1")
    [line] = unexplained(history(first, again, acked=(first, 196.0)))
    assert "popped again 59.0 s after its acknowledgement" in line


def test_the_order_in_which_the_client_reports_does_not_matter() -> None:
    first, again = delivery(195.0), delivery(255.0, mark="1")
    assert unexplained(history(again, first, acked=(first, 196.0)))


def test_a_delivery_that_was_under_way_when_the_answer_came() -> None:
    first, again = delivery(190.0, invisible_s=10.0), delivery(199.9, mark="1")
    assert unexplained(history(first, again, acked=(first, 199.95))) == []


def test_an_acknowledgement_that_comes_too_late() -> None:
    first, again = delivery(190.0, invisible_s=10.0), delivery(203.0, mark="1")
    assert unexplained(history(first, again, acked=(first, 201.0))) == []


def test_an_acknowledgement_that_failed_at_a_kill() -> None:
    first, again = delivery(199.0), delivery(259.0, mark="1")
    assert unexplained(history(first, again, acked=(first, 201.0), outcome="UNAVAILABLE")) == []


def test_a_message_comes_again_and_was_not_acknowledged_although_there_was_no_kill() -> None:
    first, again = delivery(100.0), delivery(160.0, mark="1")
    [line] = unexplained(history(first, again))
    assert "no kill explains it" in line


@pytest.mark.parametrize(
    ("sent", "is_excused"),
    [
        (Span(199.0, 200.5), True),
        (Span(201.0, 204.0), True),
        (Span(204.0, 210.0), True),
        (Span(199.0, 199.9), False),
        (Span(205.1, 205.9), False),
    ],
)
@pytest.mark.parametrize("is_acked", [False, True])
def test_another_copy_of_a_message_is_explained_by_a_kill_during_its_send_alone(
    sent: Span, is_excused: bool, is_acked: bool
) -> None:
    first, other = delivery(206.0), delivery(207.0, queue_offset=1)
    found = unexplained(history(first, other, acked=(first, 206.5) if is_acked else None, sent=sent))
    assert [line for line in found if "stored twice" not in line] == []
    assert (found == []) is is_excused


def test_a_copy_that_comes_after_a_retry_of_the_other_is_a_copy() -> None:
    first, again, other = delivery(206.0), delivery(216.0, mark="1"), delivery(220.0, queue_offset=1)
    [line] = unexplained(history(first, again, other, sent=Span(205.5, 205.9)))
    assert "stored twice" in line
    assert unexplained(history(first, again, other, sent=Span(199.0, 201.0))) == []


@pytest.mark.parametrize(
    ("popped_at", "answered_at", "sent", "is_excused"),
    [
        (199.5, 204.0, Span(199.0, 199.4), True),
        (206.0, 206.5, Span(199.0, 199.4), True),
        (199.5, 199.9, Span(199.0, 199.4), False),  # answered before the kill
        (198.5, 204.0, Span(198.0, 198.4), False),  # popped long before it
        (206.0, 206.5, Span(205.5, 205.9), False),  # sent after it
    ],
)
def test_pops_about_the_kill_of_a_broker(popped_at: float, answered_at: float, sent: Span, is_excused: bool) -> None:
    first, again = delivery(popped_at), delivery(popped_at + 60, mark="1")
    found = history(first, again, acked=(first, answered_at), sent=sent)
    assert (unexplained(found) == []) is is_excused


def test_the_kill_of_a_proxy_excuses_only_what_was_being_sent() -> None:
    first, again = delivery(206.0), delivery(266.0, mark="1")
    found = history(first, again, acked=(first, 206.5), sent=Span(199.0, 199.4), brokers_die=False)
    assert unexplained(found)
    assert unexplained(replace(found, sends={BODY: Span(199.0, 205.5)})) == []
