"""Delayed messages that a group pops, while its members and the broker are killed; and bugs to plant.

Members receive by the `PopConsumer` that Celery's transport uses, and keep some messages for longer than their
invisible times. The marks are those that the judge of `tests/task_faults` reads.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import trio
from typing_extensions import override

from crash.sync_shadow import SyncShadow
from reput_broker import BrokerConfig
from reput_broker.delay.deliverer import Deliverer
from reput_broker.pop.revive_service import PopReviveService
from reput_client import Admin, Message, PopConsumer, PoppedMessage, Posted, Producer
from reput_client.pop.popped import Settling
from reput_protocol.errors import ReputError
from simulation.disks import Disk
from simulation.machines import PORT, BrokerMachine
from simulation.scheduling import Process, current_process
from simulation.stand_ins import Platform
from simulation.world import Client, Group, World
from support.planted_bugs import Bug, table_of
from task_faults.judge import Kill, Marks, Run

SENDING_S: Final = 30.0
_SPREAD_S: Final = (2.0, 30.0)
_SENDERS: Final = 2
_MEMBERS: Final = 4
_AT_A_TIME: Final = 64
_TICK_S: Final = 0.5
"""Messages are sent, and are due, at multiples of this: it is what requests are for that takes time, and not them."""
_TIMEOUT_S: Final = 30.0
_TOPIC: Final = "tasks"
_GROUP: Final = "workers"
_QUEUES: Final = 4
_INVISIBLE_S: Final = 4.0
_LONG_S: Final = (4.0, 8.0)
"""How long a member keeps a message for longer than it is invisible. Its run is noted at the end: only then a message
that a killed member had begun with has to be redelivered, or else it never ran.
"""
_LONG_ONES: Final = 100
"""How many messages are kept so long."""
_KILL_EACH_S: Final = (1.0, 4.0)
_OF_BROKER: Final = 1 / 6
"""How many of the kills are of the broker: they explain what runs again, at any member."""
_DOWN_S: Final = (0.1, 0.8)
"""Shorter than members can extend the invisible time afterwards."""
_AFTERMATH_S: Final = 2.0
"""How long the clients of a broker that is back may take to see that."""
_PAUSE_S: Final = 0.2
_QUIET_S: Final = 8.0
"""After so long without a run nothing is redelivered."""
_LOST_S: Final = 60.0
"""What has not run so long after it was due is lost."""
_EACH: Final = 50
_AHEAD_MS: Final = 2000


class _KeptDisk(Disk):
    """A disk that never loses power, so that nothing has to be kept of what was synced."""

    @override
    def _begin(self) -> None:
        super()._begin()
        self._shadow = _NoShadow(self.data_dir, self._durable)


class _NoShadow(SyncShadow):
    @override
    def record(self, fd: int, path: str, sync: Callable[[int], None]) -> None:
        sync(fd)

    @override
    def forget(self, path: Any) -> None:
        pass


class _TaskBroker(BrokerMachine):
    """A broker with files of a size for so many messages."""

    kind_of_disk = _KeptDisk

    @override
    def config(self) -> BrokerConfig:
        return BrokerConfig(
            data_dir=self.disk.data_dir,
            host=self.address,
            port=PORT,
            name_port="off",
            http_port="off",
            delay={"timer_log_file_size": 1 << 20},
            store={"commit_log_file_size": 1 << 24, "index_slots": 100_000, "index_entries": 400_000},
        )


class TaskWorld(World):
    """A broker, senders and members.

    Attributes:
        marks: what was sent and has run.
        kills: what was killed and when.
    """

    broker_machine = _TaskBroker

    def __init__(self, platform: Platform, seed: int, directory: Path) -> None:
        super().__init__(platform, seed, directory, Group())
        self.marks = Marks()
        self.kills: list[Kill] = []
        self._long_each = 1

    async def run(self, nursery: trio.Nursery, messages: int) -> None:
        """Send, kill meanwhile and until all is due, and wait until everything has run."""
        self.nursery = nursery
        self._long_each = max(1, messages // _LONG_ONES)
        self.brokers[0].start()
        await self._make_topic()
        ended = [self._send(range(first, messages, _SENDERS)) for first in range(_SENDERS)]
        members = [self._member() for _ in range(_MEMBERS)]
        chance = self.chance("kills")
        until = trio.current_time() + SENDING_S + _SPREAD_S[1]
        while trio.current_time() < until:
            await trio.sleep(chance.uniform(*_KILL_EACH_S))
            if chance.random() < _OF_BROKER:
                await self._kill_broker(chance)
            else:
                self._kill_member(members, chance)
        for one in ended:
            await one.wait()
        await self._settle()

    async def _make_topic(self) -> None:
        async def work(admin: Admin) -> None:
            await admin.ensure_topic(_TOPIC, queues=_QUEUES)

        await self.as_operator(work)

    def _send(self, numbers: Sequence[int]) -> trio.Event:
        ended = trio.Event()

        def make(name: str, _: trio.Event) -> Callable[[], Awaitable[None]]:
            chance = self.chance(name)

            async def run() -> None:
                async with Producer(
                    self.endpoints, group="senders", timeout_s=_TIMEOUT_S, create_topics=False
                ) as producer:
                    for batch in _batches(numbers, each):
                        for number in batch:
                            due = time.time() + chance.uniform(*_SPREAD_S)
                            await self._post(producer, number, math.ceil(due / _TICK_S) * _TICK_S)
                        await trio.sleep(_TICK_S)
                    await producer.flush()
                ended.set()

            return run

        each = max(1, round(len(numbers) * _TICK_S / SENDING_S))
        self._start("p", "senders", make)
        return ended

    async def _post(self, producer: Producer, number: int, due: float) -> None:
        marks = self.marks

        def on_done(posted: Posted) -> None:
            if posted.error is None:
                marks.sent.add(number)

        marks.due[number] = due
        deliver_at = datetime.fromtimestamp(due, UTC)
        await producer.post(Message(_TOPIC, b"%d" % number, deliver_at=deliver_at), on_done=on_done)

    def _member(self) -> Client:
        def make(name: str, _: trio.Event) -> Callable[[], Awaitable[None]]:
            chance = self.chance(name)
            return lambda: self._receive(chance)

        return self._start("q", _GROUP, make)

    async def _receive(self, chance: random.Random) -> None:
        """Receive until the process is killed."""
        process: Process | None = current_process()
        assert process is not None, "members are processes"
        pid = process.pid

        async def handle(message: PoppedMessage) -> None:
            number = int(message.body)
            if number % self._long_each == 0:
                await trio.sleep(chance.uniform(*_LONG_S))
            self.marks.runs.setdefault(number, []).append(Run(pid, time.time()))

        while True:
            try:
                async with PopConsumer(self.endpoints, group=_GROUP, topic=_TOPIC) as consumer:
                    await consumer.run(handle, concurrency=_AT_A_TIME, invisible_s=_INVISIBLE_S, handle_signals=False)
            except ReputError as error:
                self.log("warning", str(error))
                await trio.sleep(_PAUSE_S)

    async def _kill_broker(self, chance: random.Random) -> None:
        at, broker = time.time(), self.brokers[0]
        broker.kill()
        await trio.sleep(chance.uniform(*_DOWN_S))
        broker.start()
        self.kills.append(Kill("broker", at, time.time() + _AFTERMATH_S))

    def _kill_member(self, members: list[Client], chance: random.Random) -> None:
        member = members.pop(chance.randrange(len(members)))
        self.kill(member)
        self.kills.append(Kill("member", time.time(), time.time(), frozenset([member.process.pid])))
        members.append(self._member())

    async def _settle(self) -> None:
        """Wait until everything that was sent has run, and long enough for what runs again."""
        marks = self.marks
        lost_at = max(marks.due.values()) + _LOST_S
        while not marks.sent <= marks.runs.keys() and time.time() < lost_at:
            await trio.sleep(1.0)
        count, since = -1, 0.0
        while time.time() < since + _QUIET_S:
            runs = sum(map(len, marks.runs.values()))
            if runs != count:
                count, since = runs, time.time()
            await trio.sleep(1.0)


def _batches(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def ack_not_sent() -> None:
    """each fiftieth acknowledgement is not sent"""
    real, numbers = Settling.ack, itertools.count(1)

    async def ack(self: Settling, messages: Any) -> Any:
        return await real(self, [each for each in messages if next(numbers) % _EACH])

    Settling.ack = ack  # type: ignore[method-assign]


def not_redelivered() -> None:
    """what a killed member had is not redelivered"""

    async def revive(*_: Any) -> None:
        pass

    PopReviveService._revive_one = revive  # type: ignore[method-assign,assignment]


def too_early() -> None:
    """messages are delivered two seconds before their time"""
    real = Deliverer.step

    async def step(self: Deliverer, **options: Any) -> int:
        core = self._core
        self._core = replace(core, clock_ms=lambda: core.clock_ms() + _AHEAD_MS)
        try:
            return await real(self, **options)
        finally:
            self._core = core

    Deliverer.step = step  # type: ignore[method-assign]


BUGS: Final = table_of(map(Bug, (ack_not_sent, not_redelivered, too_early)))
