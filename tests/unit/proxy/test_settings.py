"""How long answers of brokers are believed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from reput_client.errors import BrokerBusy, ConnectFailed, PermissionDenied, RequestTimeout
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.errors import ErrorCode, ReputError
from reput_proxy import upstream
from reput_proxy.upstream import Known, settings_of_groups

AWAY = ConnectFailed("127.0.0.1:9876", "Connection refused")
BUSY = BrokerBusy(ErrorCode.BUSY, "BUSY: because")
DENIED = PermissionDenied(ErrorCode.NO_PERMISSION, "NO_PERMISSION: because")


def asked(monkeypatch: pytest.MonkeyPatch, *answers: str | ReputError | None) -> list[str | ReputError | None]:
    """Ask for a name until each of these was the answer; return what was found."""
    monkeypatch.setattr(upstream, "_KNOWN_S", 0.0)
    left = [*answers]

    async def ask(_: str) -> str | None:
        answer = left.pop(0)
        if isinstance(answer, ReputError):
            raise answer
        return answer

    async def work() -> list[str | ReputError | None]:
        known, found = Known(ask), list[str | ReputError | None]()
        while left:
            try:
                found.append(await known.get("billing"))
            except ReputError as error:
                found.append(error)
        return found

    return asyncio.run(work())


@pytest.mark.parametrize("failure", [AWAY, BUSY])
def test_the_last_answer_counts_while_no_broker_can_be_asked(
    monkeypatch: pytest.MonkeyPatch, failure: ReputError
) -> None:
    """While the only name server was away, nothing was received, although all brokers were there."""
    assert asked(monkeypatch, "a", failure, failure, "b", failure) == ["a", "a", "a", "b", "b"]


def test_no_answer_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, AWAY, None, AWAY, "a", DENIED, AWAY) == [AWAY, None, AWAY, "a", DENIED, AWAY]


class TwoBrokers:
    """A session with two brokers, of which the first hangs; it has no time but that of the deadlines."""

    def __init__(self) -> None:
        self.brokers = SimpleNamespace(masters={"broker-a": "a:10911", "broker-b": "b:10911"})
        self.waited_s = 0.0

    def deadline(self, timeout_s: float | None) -> float:
        return 3.0 if timeout_s is None else timeout_s

    async def masters(self, _deadline: float) -> Any:
        return self.brokers.masters

    def check_open(self) -> None:
        """It stays open."""

    async def ask_ok(self, *_: Any, what: str, address: str, deadline: float | None = None) -> Any:
        if address == "a:10911":
            self.waited_s += self.deadline(deadline)
            raise RequestTimeout(what, self.waited_s)
        return SimpleNamespace(body=SubscriptionGroupConfig("billing").to_json())


def test_a_broker_that_hangs_leaves_time_to_ask_another_one() -> None:
    """Clients wait for 3 s, which the first broker had alone: every 10 s a send ended with DEADLINE_EXCEEDED."""
    session: Any = TwoBrokers()
    found = asyncio.run(settings_of_groups(session).get("billing"))
    assert found is not None
    assert session.waited_s <= 1.0
