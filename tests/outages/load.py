"""Programs with default settings that send while their broker goes: what they were told, and what is stored."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from typing import Any

import anyio

from reput_client import Message
from reput_client.blocking import Admin, PullConsumer
from support.faces import FACES, Face, finish

TOPIC = "outages"
QUEUES = 4
WAYS = ("send", "post", "send_batch")
_TASKS = 8
"""That use one producer with `send`."""
_BATCH = 20


class Load:
    """A producer for each API and each way to send, in threads of their own; with default settings but for `ack`.

    Attributes:
        stored: the messages for which a program got a receipt.
        failures: the exceptions that reached a program.
    """

    def __init__(self, addresses: Iterable[str], ack: str) -> None:
        self.addresses = list(addresses)
        self.stored: list[bytes] = []
        self.failures: list[BaseException] = []
        self._ack = ack
        self._ended = threading.Event()
        self._by_program: Counter[str] = Counter()
        with Admin(self.addresses, timeout_s=30.0) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        self._threads = [threading.Thread(target=self._run, args=(Face(name), way)) for name in FACES for way in WAYS]
        for thread in self._threads:
            thread.start()

    def wait_for(self, more: int) -> None:
        """Wait until so many more messages have a receipt, some for each program, or something has failed."""
        until, before = len(self.stored) + more, Counter(self._by_program)
        while not self.failures and (
            len(self.stored) < until
            or len(self._by_program) < len(self._threads)
            or any(count == before[program] for program, count in self._by_program.items())
        ):
            self._ended.wait(0.005)

    def end(self) -> None:
        """Let every program finish what it has begun."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, face: Face, way: str) -> None:
        async def main() -> None:
            async with face.Producer(self.addresses, ack=self._ack) as producer:
                if way == "send":
                    works = [self._sender(producer, face, task) for task in range(_TASKS)]
                    await face.together(*works)
                    return
                for number in count():
                    if self._ended.is_set():
                        return
                    bodies = [b"%s %s %d %d" % (face.name.encode(), way.encode(), number, k) for k in range(_BATCH)]
                    messages = [Message(TOPIC, body) for body in bodies]
                    if way == "post":
                        await face.post_all(producer, messages)
                    else:
                        await producer.send_batch(messages)
                    self._has(face, way, bodies)

        try:
            finish(main()) if face.is_blocking else anyio.run(main, backend=face.name)
        except BaseException as error:
            self.failures.append(error)

    def _has(self, face: Face, way: str, bodies: list[bytes]) -> None:
        self.stored += bodies
        self._by_program[f"{face.name} {way}"] += len(bodies)

    def _sender(self, producer: Any, face: Face, task: int) -> Callable[[], Coroutine[Any, Any, None]]:
        async def send() -> None:
            for number in count():
                if self._ended.is_set():
                    return
                body = f"{face.name} {task} {number}".encode()
                await producer.send(Message(TOPIC, body))
                self._has(face, "send", [body])

        return send


def check(load: Load) -> str:
    """Return what is wrong after the end of the load, or nothing."""
    if load.failures:
        return f"{len(load.failures)} exceptions reached programs, first {load.failures[0]!r}"
    found: Counter[bytes] = Counter()
    with PullConsumer(load.addresses, group="outages", timeout_s=30.0) as consumer:
        for queue_id in range(QUEUES):
            offset, end = 0, consumer.max_offset(TOPIC, queue_id)
            while offset < end:
                pulled = consumer.pull(TOPIC, queue_id, offset, wait_s=1.0)
                found.update(bytes(message.body) for message in pulled.messages)
                offset = pulled.next_begin_offset
    missing = set(load.stored) - found.keys()
    twice = [body for body, times in found.items() if times > 1]
    unasked = found.keys() - set(load.stored)
    if missing or twice or unasked:
        return f"missing {sorted(missing)[:5]}, twice {twice[:5]}, without a receipt {sorted(unasked)[:5]}"
    return ""
