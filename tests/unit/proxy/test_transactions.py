"""When a proxy becomes a member of the groups that answer checks of transactions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from reput_client.errors import ConnectFailed, PermissionDenied
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import ErrorCode, ReputError
from reput_proxy import upstream
from reput_proxy.upstream import Transactions

TYPED = TopicConfig("orders", attributes={"message.type": "TRANSACTION"})
AWAY = ConnectFailed("127.0.0.1:10911", "Connection refused")
DENIED = PermissionDenied(ErrorCode.NO_PERMISSION, "NO_PERMISSION: because")


async def begins() -> None:
    """Register with the brokers."""


def members(monkeypatch: pytest.MonkeyPatch, *answers: TopicConfig | ReputError) -> tuple[str, ...]:
    """Return for which topics checks are taken once a producer of `orders` is connected."""
    monkeypatch.setattr(upstream, "_RETRY_S", 0.0)
    left = [*answers]

    async def get(_: str) -> TopicConfig:
        answer = left.pop(0)
        if isinstance(answer, ReputError):
            raise answer
        return answer

    requests = SimpleNamespace(unregister=lambda _: None, register=lambda *_: None)
    producer = SimpleNamespace(_session=SimpleNamespace(requests=requests), _presence=SimpleNamespace(begin=begins))
    connections: Any = SimpleNamespace(topics=SimpleNamespace(get=get), transaction_producer=lambda _: producer)
    found = Transactions(connections, lambda *_: True)
    asyncio.run(found.producer_connected(["orders"]))
    assert not left
    return found.topics


def test_a_producer_that_connects_while_the_broker_is_away_is_asked_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its open transactions were checked when it sent its settings again, minutes later."""
    assert members(monkeypatch, AWAY, AWAY, TYPED) == ("orders",)


@pytest.mark.parametrize("answer", [TopicConfig("orders"), DENIED])
def test_of_other_topics_no_checks_are_taken(monkeypatch: pytest.MonkeyPatch, answer: TopicConfig | ReputError) -> None:
    assert members(monkeypatch, answer) == ()
