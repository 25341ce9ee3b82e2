"""How often a client looks for a master that is gone, under trio's mock clock."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from math import inf

import trio
from typing_extensions import override

from reput_client.errors import BrokerNotFound
from reput_client.transport.aio import AnyioRuntime
from reput_client.transport.options import ClientOptions
from reput_client.transport.routing import Route
from reput_client.transport.session import Session
from reput_protocol.commands.topic import MASTER_ID, BrokerData
from reput_protocol.record.message import MessageQueue
from support.tasks import run_by_the_clock

LATE_S = 100.0


class Client(Session):
    """A client of a group whose master is gone, until `master_at`."""

    def __init__(self, *topics: str, brokers: tuple[str, ...] = ("b",)) -> None:
        super().__init__(ClientOptions("127.0.0.1:1"), AnyioRuntime())
        self.looked_at: list[float] = []
        self.found_at: dict[str, float] = {}
        self.master_at = inf
        for topic in topics:
            self.routes.put(Route(topic, (), (), brokers), 0.0)

    @override
    async def look_up(self, topic: str, deadline: float) -> None:
        self.looked_at.append(self.runtime.now())
        await trio.sleep(0.01)
        if self.runtime.now() >= self.master_at:
            self.brokers.learn(BrokerData("c", "b", {MASTER_ID: "127.0.0.1:2"}))

    async def find(self, topic: str) -> None:
        """Look for the master of a topic until it is known, as sends and pulls do."""
        while topic not in self.found_at:
            with suppress(BrokerNotFound):
                await self.master_address(MessageQueue(topic, "b", 0), LATE_S)
                self.found_at[topic] = self.runtime.now()
                return
            assert await self.look_for_master(topic, LATE_S)


def test_topics_share_the_looks_for_their_master() -> None:
    async def check() -> None:
        topics = [f"t{number}" for number in range(50)]
        client = Client(*topics)
        begun_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(client.find, topic)
            await trio.sleep(30)
            looks = [at - begun_at for at in client.looked_at]
            assert 30 <= len(looks) <= 66, "about once a second, and sooner at random"
            assert sum(at < 1 for at in looks) >= 3, "more often at first: a failover may take no longer"
            pauses = [later - at for at, later in pairwise(looks)]
            assert max(pauses) <= 1.02
            assert min(pauses) >= 0.1
            assert len({round(pause, 3) for pause in pauses[5:]}) > 5, "not in step with other clients"
            client.master_at = trio.current_time()
        assert max(client.found_at.values()) - client.master_at <= 1.03

    run_by_the_clock(check)


def test_another_outage_is_looked_at_quickly_again() -> None:
    async def check() -> None:
        client = Client("t")
        with trio.move_on_after(30):
            await client.find("t")
        client.master_at = trio.current_time()
        await client.find("t")
        client.brokers.forget("b")
        client.found_at.clear()
        client.master_at = inf
        begun_at = trio.current_time()
        client.looked_at.clear()
        with trio.move_on_after(1.5):
            await client.find("t")
        assert len(client.looked_at) >= 3
        assert client.looked_at[0] - begun_at <= 0.2

    run_by_the_clock(check)
