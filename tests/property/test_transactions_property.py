"""Transactions under random histories: what was to be committed is there once, and nothing else.

Half messages, ends that name any copy, questions answered late, twice or never, producers that come and go, time,
orderly restarts and kills, in random order under a clock that jumps. In the end a producer answers all checks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from reput_protocol.codes import TransactionState
from reput_protocol.names import TRANS_CHECK_MAX_TIME_TOPIC
from reput_protocol.wire.header import HeaderType
from support.broker_bench import T0, BenchClient, BrokerBench, Half, broker_bench
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
_LIVES, _STEPS = 5, 25


class History:
    """What the producers know, which no kill of the broker changes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.truth: dict[bytes, TransactionState] = {}
        self.copies: list[tuple[bytes, Half]] = []
        self.numbers = count()

    async def begin(self, client: BenchClient) -> None:
        body = b"%d" % next(self.numbers)
        properties = {}
        if self.rng.random() < 0.2:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(self.rng.randrange(1, 200))
        if self.rng.random() < 0.2:
            properties["DELAY"] = "1"
        half = await client.send_half("orders", body, properties=properties)
        self.truth[body] = self.rng.choice([COMMIT, ROLLBACK])
        self.copies.append((body, half))

    async def end(self, client: BenchClient) -> None:
        """Whoever it is says what became of some transaction, by some copy of its half message."""
        if self.copies:
            body, half = self.rng.choice(self.copies)
            state = self.truth[body] if self.rng.random() < 0.9 else UNKNOWN
            await client.end(half, state, from_check=self.rng.random() < 0.7, oneway=self.rng.random() < 0.3)

    def note_questions(self, client: BenchClient) -> list[tuple[bytes, Half]]:
        asked = [(record.body, half) for half, record in client.checks()]
        self.copies += asked
        return asked

    async def step(self, bench: BrokerBench, clients: list[BenchClient]) -> None:
        rng, client = self.rng, self.rng.choice(clients)
        choice = rng.random()
        if choice < 0.35:
            await self.begin(client)
        elif choice < 0.65:
            await self.end(client)
        elif choice < 0.75:
            await client.heartbeat("shop")
        elif choice < 0.8:
            bench.gone(client)
            clients.remove(client)
            clients.append(new_client(bench, rng))
        else:
            await bench.pass_time(rng.choice([0.001, 0.5, 3.5, 31.0]))
        for one in clients:
            self.note_questions(one)


def new_client(bench: BrokerBench, rng: random.Random) -> BenchClient:
    return bench.client(rng.choice([HeaderType.JSON, HeaderType.BINARY, HeaderType.MSGPACK]))


@asynccontextmanager
async def life(directory: Path, at_ms: int, now: Callable[[int], None]) -> AsyncIterator[BrokerBench]:
    options = {"check_max": 1_000_000, "op_message_size": "32B"}
    async with broker_bench(directory, at_ms=at_ms, transactions=options) as bench:
        yield bench
        now(bench.now_ms)


@pytest.mark.parametrize("seed", range(12))
async def test_each_transaction_ends_once_and_as_it_should(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history = History(rng)
    directory, now_ms = tmp_path / "0", T0

    def set_now(ms: int) -> None:
        nonlocal now_ms
        now_ms = ms

    for number in range(_LIVES):
        image = tmp_path / f"killed{number}"
        async with life(directory, now_ms, set_now) as bench:
            if not number:
                await bench.create_topic("orders")
            clients = [new_client(bench, rng) for _ in range(2)]
            for _ in range(_STEPS):
                await history.step(bench, clients)
            if rng.random() < 0.7:
                directory = bench.killed(image)
    async with life(directory, now_ms, set_now) as bench:
        client = bench.client()
        rounds = 0
        while bench.storage.half_queue.transactions.open_by_topic["orders"]:
            await client.heartbeat("shop")
            await bench.pass_time(31.0)
            for body, half in history.note_questions(client):
                await client.end(half, history.truth[body], from_check=True)
            rounds += 1
            assert rounds < 20
        await bench.pass_time(65.0)
        got = await bench.bodies("orders")
        assert await bench.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == []
        assert client.checks() == [], "nothing is asked about once all is decided"
    committed = [body for body, state in history.truth.items() if state is COMMIT]
    assert Counter(got) == Counter(committed)
    assert len(history.truth) > 20
