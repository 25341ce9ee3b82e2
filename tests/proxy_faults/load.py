"""Messages that official gRPC clients send and receive through a proxy while processes are killed; what is wrong."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from interop.catalogue import CLIENTS
from interop.client import Client, ClientFailed, Inbox, Letter, Received

TOPIC = "orders"
HOWS = ("simple", "concurrent")
"""Consumers of a client; each is a group of its own, so that each receives every message."""
SENDERS = 2
SETTLED_S = 15.0
"""A message that was received so long before a kill is acknowledged by then, unless a client waited for its answer."""
_END_S = 240.0


class TimedInbox(Inbox):
    """What consumers have received, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: dict[tuple[str, bytes], list[float]] = {}

    def add(self, received: Received) -> None:
        """Note a message."""
        self.arrivals.setdefault((received.consumer, received.body), []).append(time.monotonic())
        super().add(received)


class Load:
    """One client's messages.

    Args:
        client: a name of the interop suite's catalogue.
        address: of the proxy.
        home: a new directory for the clients' files.

    Attributes:
        stored: bodies of the messages whose sends have succeeded.
        failed: how many sends have not.
        kills: the times of kills.
    """

    def __init__(self, client: str, address: str, home: Path) -> None:
        command = CLIENTS[client].command()
        self.inbox = TimedInbox()
        self.stored: list[bytes] = []
        self.failed = 0
        self.kills: list[float] = []
        self._numbers = itertools.count()
        self._is_over = threading.Event()
        self._consumers = Client(f"{client} receives", command, address, home / "consumers", self.inbox)
        self._producers = Client(f"{client} sends", command, address, home / "producers", self.inbox)
        self._senders = [threading.Thread(target=self._send, daemon=True) for _ in range(SENDERS)]

    def start(self) -> None:
        """Create topic and groups, and begin to send and receive."""
        self._until(lambda: bool(self._producers.produce(TOPIC, [Letter(b"first")])), "the first send")
        self.stored.append(b"first")
        for how in HOWS:
            self._until(lambda: self._consume(how), f"the consumer {how}")  # noqa: B023 - called at once
        for sender in self._senders:
            sender.start()

    def _consume(self, how: str) -> bool:
        self._consumers.consume(how, f"billing-{how}", TOPIC, how)
        return True

    def _until(self, action: Callable[[], bool], what: str) -> None:
        """Repeat an action that clients do not repeat themselves."""
        ends_at = time.monotonic() + _END_S
        while True:
            try:
                if action():
                    return
            except ClientFailed as error:
                if time.monotonic() > ends_at:
                    raise AssertionError(f"{what}: {error}") from error
                time.sleep(0.5)

    def _send(self) -> None:
        while not self._is_over.is_set():
            body = f"message {next(self._numbers)}".encode()
            try:
                self._producers.produce(TOPIC, [Letter(body)])
            except ClientFailed:
                self.failed += 1
                self._is_over.wait(0.1)
            else:
                self.stored.append(body)

    def more(self, count: int) -> None:
        """Wait until so many more messages are stored, and as many received by each consumer."""
        wanted = len(self.stored) + count
        received = {how: len(self.inbox.of(how)) + count for how in HOWS}
        self._wait(
            lambda: (
                len(self.stored) >= wanted and all(len(self.inbox.of(how)) >= received[how] for how in HOWS)
            ),
            "sends and receives go on",
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + _END_S
        while not condition():
            self._consumers.check_alive()
            self._producers.check_alive()
            if time.monotonic() > ends_at:
                got = {how: len(self.inbox.of(how)) for how in HOWS}
                raise AssertionError(
                    f"{what}: not within {_END_S:.0f} s; {len(self.stored)} stored, {self.failed} failed, "
                    f"received {got}\n"
                    f"{self._consumers.log_tail()}\n{self._producers.log_tail()}"
                )
            time.sleep(0.05)

    def finish(self) -> list[str]:
        """Stop sending, wait until all is received, and return what was wrong, a line each."""
        self._is_over.set()
        for sender in self._senders:
            sender.join()
        with suppress(AssertionError):
            self._wait(lambda: not self.missing(), "all is received")
        lost = [f"{how}: {body!r} was sent and is not received" for how, body in self.missing()]
        return lost + self.unexplained()

    def missing(self) -> list[tuple[str, bytes]]:
        """Return by consumer the stored messages that it has not received."""
        return [(how, body) for how in HOWS for body in self.stored if (how, body) not in self.inbox.arrivals]

    def duplicates(self) -> int:
        """Return how many deliveries were not the first."""
        return sum(len(times) - 1 for times in self.inbox.arrivals.values())

    def unexplained(self) -> list[str]:
        """Return the duplicates of messages that were received long before the next kill: they were acknowledged."""
        return [
            f"{how}: {body!r} was received again after {times[n] - times[n - 1]:.1f} s, and no kill explains it"
            for (how, body), times in self.inbox.arrivals.items()
            for n in range(1, len(times))
            if not any(times[n - 1] - SETTLED_S <= kill <= times[n - 1] + SETTLED_S for kill in self.kills)
        ]

    def close(self) -> None:
        """End the clients."""
        self._is_over.set()
        for client in (self._consumers, self._producers):
            client.kill()
