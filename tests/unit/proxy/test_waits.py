"""How long a receive waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import duration_of
from reput_proxy.receiving import _wait_s
from reput_proxy.rejections import Code, Rejected


def waits(asked_s: float | None, remaining_s: float) -> list[float]:
    request = pb.ReceiveMessageRequest()
    if asked_s is not None:
        request.long_polling_timeout.CopyFrom(duration_of(round(1000 * asked_s)))
    call: Any = SimpleNamespace(remaining_s=remaining_s)
    return [_wait_s(call, request) for _ in range(200)]


@pytest.mark.parametrize(
    ("asked_s", "remaining_s", "longest_s"),
    [(None, 60.0, 20.0), (15.0, 60.0, 15.0), (1.0, 60.0, 5.0), (120.0, 60.0, 20.0), (15.0, 10.5, 10.0)],
)
def test_it_is_within_bounds_and_not_the_same_for_all(
    asked_s: float | None, remaining_s: float, longest_s: float
) -> None:
    """Clients that all wait for 20 s, and were served late together once, asked together again every 20 s."""
    found = waits(asked_s, remaining_s)
    assert 0.9 * longest_s <= min(found) <= max(found) <= longest_s
    assert max(found) - min(found) > 0.05 * longest_s


def test_a_deadline_that_leaves_no_time_is_rejected() -> None:
    with pytest.raises(Rejected) as raised:
        waits(5.0, 4.0)
    assert raised.value.code == Code.ILLEGAL_POLLING_TIME
