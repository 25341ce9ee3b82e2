"""Renewals of invisible times, with a broker that is played."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from reput_protocol.commands.pop import PopHandle
from reput_protocol.errors import ReputError
from reput_proxy import clients
from reput_proxy.clients import Delivery, Renewals

CLIENT = ("", "client-1")


class Broker:
    """Changes the times of messages; `failures` are raised instead, one after the other."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, float]] = []
        self.failures: list[Exception] = []

    async def change(self, delivery: Delivery, invisible_s: float) -> None:
        self.changes.append((delivery._handle.queue_offset, invisible_s))
        if self.failures:
            raise self.failures.pop(0)
        delivery._handle = delivery._handle._replace(pop_time=delivery._handle.pop_time + 1)


def popped(queue_offset: int) -> Any:
    handle = PopHandle(0, 1_700_000_000_000, 60_000, 1, "0", "broker-a", 0, queue_offset)
    return SimpleNamespace(topic="orders", _handle=handle, physical_offset=100 + queue_offset)


def handle_of(queue_offset: int) -> str:
    one = popped(queue_offset)
    return Delivery("billing", "orders", one._handle, one.physical_offset).receipt_handle


def holding(*queue_offsets: int, ahead_s: float = 60.0) -> tuple[Renewals, Broker]:
    """Return renewals of messages of a client, which are due if `ahead_s` is the whole time."""
    broker = Broker()
    renewals = Renewals(lambda _: True, lambda *_: broker)  # type: ignore[arg-type]
    renewals._ahead_s = ahead_s
    renewals.add(CLIENT, "billing", map(popped, queue_offsets))
    return renewals, broker


async def a_while() -> None:
    """Let all tasks do what they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def with_run(renewals: Renewals, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` right after the renewals have chosen what is due."""
    running, working = asyncio.ensure_future(renewals.run()), asyncio.ensure_future(work)
    try:
        await working
        assert not running.done()
    finally:
        running.cancel()


async def acknowledge(renewals: Renewals, queue_offset: int) -> None:
    with renewals.taking(CLIENT, "billing", "orders") as take:
        delivery = await take(handle_of(queue_offset))
        await a_while()  # the broker's answer
        delivery.is_acknowledged = True


def test_a_message_that_is_acknowledged_once_it_was_chosen_is_not_renewed() -> None:
    """It was, got a new check point by that, and was redelivered."""

    async def work() -> None:
        renewals, broker = holding(0, 1)

        async def acknowledged() -> None:
            renewals._ahead_s = 0.0  # once more is enough
            await acknowledge(renewals, 0)

        await with_run(renewals, acknowledged())
        assert broker.changes == [(1, 60.0)]

    asyncio.run(work())


def test_a_message_that_is_acknowledged_while_its_client_leaves_is_not_given_back() -> None:
    async def work() -> None:
        renewals, broker = holding(0, 1, ahead_s=0.0)
        await asyncio.gather(renewals.give_back_all(CLIENT), acknowledge(renewals, 0))
        assert broker.changes == [(1, 1.0)]
        assert not renewals.has(CLIENT)

    asyncio.run(work())


def test_a_defect_with_one_message_does_not_end_the_renewals_of_others(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        renewals, broker = holding(0, 1)
        broker.failures.append(LookupError("a defect"))

        async def wait() -> None:
            renewals._ahead_s = 0.0
            await a_while()

        await with_run(renewals, wait())
        assert broker.changes == [(0, 60.0), (1, 60.0)]
        assert len(renewals) == 1, "the other is renewed again"

    asyncio.run(work())
    assert "a defect" in caplog.text


def test_a_renewal_that_has_failed_is_made_again_before_others_that_are_due_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It came after all others: a broker that was away for a second then redelivered messages in hand."""
    monkeypatch.setattr(clients, "_RETRY_S", 0.05)

    async def work() -> None:
        renewals, broker = holding(0)
        broker.failures.append(ReputError("the broker is away"))
        renewals._ahead_s = 0.0
        renewals.add(CLIENT, "billing", [popped(1)])  # due in a minute

        async def wait() -> None:
            async with asyncio.timeout(10):
                while len(broker.changes) < 2:
                    await asyncio.sleep(0.01)
            await a_while()

        await with_run(renewals, wait())
        assert broker.changes == [(0, 60.0), (0, 60.0)]

    asyncio.run(work())
