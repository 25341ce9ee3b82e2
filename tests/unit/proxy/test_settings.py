"""How long answers of brokers are believed."""

from __future__ import annotations

import asyncio

import pytest

from reput_client.errors import BrokerBusy, ConnectFailed, PermissionDenied
from reput_protocol.errors import ErrorCode, ReputError
from reput_proxy import settings
from reput_proxy.settings import Known

AWAY = ConnectFailed("127.0.0.1:9876", "Connection refused")
BUSY = BrokerBusy(ErrorCode.BUSY, "BUSY: because")
DENIED = PermissionDenied(ErrorCode.NO_PERMISSION, "NO_PERMISSION: because")


def asked(
    monkeypatch: pytest.MonkeyPatch, *answers: str | ReputError | None
) -> list[str | ReputError | None]:
    """Ask for a name until each of these was the answer; return what was found."""
    monkeypatch.setattr(settings, "_KNOWN_S", 0.0)
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
