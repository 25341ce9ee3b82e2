"""How long sends of clients wait for each other."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from reput_proxy.upstream import GatheredSends


class Left:
    """In the place of a producer's messages: counts when they are let go."""

    def __init__(self) -> None:
        self.linger_s = 0.0
        self.times = 0

    def send_now(self) -> None:
        self.times += 1


def of(left: Left) -> GatheredSends:
    producer: Any = SimpleNamespace(_gathering=left)
    return GatheredSends(producer)


def test_who_sends_alone_waits_for_no_other() -> None:
    sends = of(left := Left())
    for _ in range(3):
        with sends.sending():
            assert left.linger_s == 0


def test_the_more_are_under_way_the_longer_they_wait_up_to_a_limit() -> None:
    async def work() -> list[float]:
        sends = of(left := Left())
        waits = []
        with ExitStack() as under_way:
            for _ in range(100):
                under_way.enter_context(sends.sending())
                waits.append(left.linger_s)
        return waits

    waits = asyncio.run(work())
    assert waits[:3] == [0, waits[1], 2 * waits[1]]
    assert waits == sorted(waits)
    assert waits[-1] == 0.01


def test_when_all_wait_none_waits_longer() -> None:
    async def work() -> None:
        sends = of(left := Left())
        for round_ in range(1, 4):
            with ExitStack() as under_way:
                for _ in range(8):
                    under_way.enter_context(sends.sending())
                    assert left.times == round_ - 1
                async with asyncio.timeout(10.0):
                    while left.times < round_:
                        await asyncio.sleep(0.001)

    asyncio.run(work())


def test_those_that_have_gone_are_not_waited_for() -> None:
    async def work() -> Left:
        sends = of(left := Left())
        with ExitStack() as under_way:
            for _ in range(8):
                under_way.enter_context(sends.sending())
        for _ in range(100):
            with sends.sending():
                pass
        return left

    assert asyncio.run(work()).linger_s == 0
