"""Delayed delivery over a real store, in the time of trio's fake clock; kills and power cuts included.

Everything is put, flushed and dispatched at once; services run concurrently with the test until its `async with` ends.
Times are those of the injected clock: a message is delivered in the millisecond of its time.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from faults.workload import abandon
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import StoreConfig
from reput_broker.delay.feature import DelayFeature
from reput_broker.delay.state import open_delay_state
from reput_broker.delay.waiting_messages import Canceller
from reput_broker.put.held_pulls import Arrivals
from reput_broker.put.put_lock import Fence, OwnPuts, PutLock
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.codes import AckLevel
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record
from support.cores import core_of
from support.stores import T0, dispatch_all, read_queue, small_options
from support.tasks import running

TOPIC = "orders"
QUEUES = 4
TIMER_LOG_BYTES = 52 * 80 + 16
WHEEL_SLOTS = 24 * 3600
"""A day; RocketMQ's wheel takes 37 MiB in every directory."""


def bench_options(data_dir: Path, **changes: object) -> StoreOptions:
    """Store options with files large enough for some hundred messages."""
    return small_options(
        data_dir,
        **{"commit_log_file_size": 64 * 1024, "consume_queue_entries": 100, "index_slots": 500, "index_entries": 2000}
        | changes,
    )


class DelayBench:
    """One run of a broker's delayed delivery on a directory.

    Args:
        options: of the store.
        offset_ms: how far the wall clock is ahead of trio's, from T0 on.
        wheel_slots: seconds in one turn of the wheel.
        file_reserved_time: how long files of the log are kept; messages further ahead than half of
            that are delayed again.
        delay: options of that section.
    """

    def __init__(
        self,
        options: StoreOptions,
        *,
        offset_ms: int = 0,
        wheel_slots: int = WHEEL_SLOTS,
        file_reserved_time: str = "72h",
        **delay: object,
    ) -> None:
        self.options = options
        self.offset_ms = offset_ms
        self._wheel_slots = wheel_slots
        self._file_reserved_time = file_reserved_time
        self._delay = delay
        self.config = BrokerConfig(
            data_dir=options.data_dir,
            port=0,
            store={"file_reserved_time": file_reserved_time},
            delay={"timer_log_file_size": f"{TIMER_LOG_BYTES}B", **delay},
        )
        self.arrivals = Arrivals()
        self.store = MessageStore(options, clock_ms=self.clock_ms, dispatchers=[self.arrivals])
        self.store.open()
        self.topics = TopicConfigManager(options.data_dir / "config" / "topics.json", clock_ms=self.clock_ms)
        self.topics.load()
        for topic in (TOPIC, "others"):
            self.topics.put(TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6))
        self.lock = PutLock(Fence(), StoreConfig())
        self.holds_writes = False
        """What is put stays where it is, neither flushed nor dispatched."""
        self.delays = open_delay_state(
            self.config, self.store, self.topics.all(), self.clock_ms, wheel_slots=wheel_slots
        )
        progress, fence = SimpleNamespace(answer_when=self._answer), Fence()
        own = OwnPuts(self.store, self.lock, fence, self.wrote)
        core = core_of(
            config=self.config,
            store=self.store,
            arrivals=self.arrivals,
            tables=SimpleNamespace(topics=self.topics),
            clock_ms=self.clock_ms,
            warm_from=0,
            puts=SimpleNamespace(progress=progress, fence=fence, own=own),
            sources=SimpleNamespace(),
        )
        self.parts = DelayFeature(core, self.delays)
        self.processor = self.parts.processors[0]

    def clock_ms(self) -> int:
        """The wall clock."""
        return T0 + self.offset_ms + round(trio.current_time() * 1000)

    def wrote(self) -> None:
        """Flush and dispatch, as the services would."""
        if not self.holds_writes:
            dispatch_all(self.store)

    def _answer(self, _level: AckLevel, end_offset: int, put: Any) -> None:
        assert self.store.flushed_offset >= end_offset
        put.acknowledge()

    @property
    def stats(self) -> Any:
        return self.delays.stats

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the services while the body runs."""
        async with running(*self.parts.tasks()):
            yield

    def park(self, body: bytes, queue_id: int = 0, topic: str = TOPIC, **properties: str) -> int:
        """Send a message with these properties; return when it is due."""
        found = {"UNIQ_KEY": f"ID-{body.decode()}", **properties}
        record = Record(topic, body, queue_id=queue_id, properties=encode_properties(found))
        parked = self.parts.delay_redirects.redirect(record, dict(found))
        assert parked is not None, "it is for later"
        result = self.store.put_record(parked)
        assert result.status is PutStatus.PUT_OK
        if self.store.should_prepare_next_file():
            self.store.prepare_next_file()
        self.wrote()
        if "DELAY" in properties:
            level = min(int(properties["DELAY"]), 18)
            return result.store_timestamp_ms + self.options.delay_levels_ms[level - 1]
        return int(parked.property_map()["TIMER_DELIVER_MS"])

    def level(self, body: bytes, level: int, queue_id: int = 0, **properties: str) -> int:
        """Send a message with a delay level."""
        return self.park(body, queue_id, DELAY=str(level), **properties)

    def timed(self, body: bytes, delay_ms: int, queue_id: int = 0, **properties: str) -> int:
        """Send a message with an exact time."""
        return self.park(body, queue_id, TIMER_DELAY_MS=str(delay_ms), **properties)

    def delivered(self, topic: str = TOPIC) -> dict[bytes, list[int]]:
        """When each message was delivered, by its body; more than once if it was."""
        found: dict[bytes, list[int]] = {}
        for queue_id in range(QUEUES):
            for record in read_queue(self.store, topic, queue_id):
                found.setdefault(record.body, []).append(record.store_timestamp_ms)
        return found

    async def cancel(self, key: str, topic: str = TOPIC) -> list[str]:
        """Cancel by key; what it came to."""
        return [*(await self.cancelled(key, topic)).values()]

    async def cancelled(self, key: str, topic: str = TOPIC) -> dict[bytes, str]:
        """Cancel by key; what it came to for each message, by its body."""
        cancelling: Canceller = self.processor._cancelling
        results = await cancelling.cancel(topic, key)
        return {bytes(result.delayed.record.body): str(result.outcome) for result in results}

    async def listed(self, count: int = 7) -> list[bytes]:
        """The bodies of all messages that wait, as pages of `count` give them."""
        from reput_broker.delay.waiting_messages import WalkCursor

        bodies, cursor = [], WalkCursor()
        await self.processor._waiting.until_walked()
        while (some := await self.processor._waiting.next(cursor, count)) is not None:
            for parked in some:
                if not parked.rolled or parked.record.body not in bodies:  # it may have been delayed again
                    bodies.append(parked.record.body)
            cursor = WalkCursor.parse(str(cursor))
        return bodies

    def stop(self) -> None:
        """Stop in order."""
        self.delays.finish()
        assert self.store.close()

    def kill(self) -> DelayBench:
        """Go on in the directory as `kill -9` leaves it; this run is over."""
        self.abandon()
        return self.go_on()

    def go_on(self) -> DelayBench:
        """The next run on the directory, with the same clock."""
        return DelayBench(
            self.options,
            offset_ms=self.offset_ms,
            wheel_slots=self._wheel_slots,
            file_reserved_time=self._file_reserved_time,
            **self._delay,
        )

    def abandon(self) -> None:
        """Let go of the directory without a word, as a killed process does."""
        log = self.delays.timers.log
        prepared = [log._prepared] if log._prepared is not None else []
        for fd in (*log._retired, *(file.fd for file in (*log._files, *prepared))):
            os.close(fd)
        self.delays.timers.wheel.close()
        abandon(self.store)

    def restart(self) -> DelayBench:
        """Stop orderly and continue."""
        self.stop()
        return self.go_on()


def some_times(rng: random.Random, count: int, most_ms: int) -> list[int]:
    """Random delays, some of them next to whole seconds."""
    return [
        rng.choice((rng.randrange(1, most_ms), rng.randrange(1, most_ms // 1000) * 1000 + rng.choice((-1, 0, 1))))
        for _ in range(count)
    ]
