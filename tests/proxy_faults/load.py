"""Messages that official gRPC clients send and receive through a proxy while processes are killed; what is wrong."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from interop.catalogue import CLIENTS
from interop.client import Acknowledged, Client, ClientFailed, Inbox, Letter, Received
from proxy_faults.judge import Delivery, History, Span, unexplained

TOPIC = "orders"
HOWS = ("simple", "concurrent")
"""Consumers of a client; each is a group of its own, so that each receives every message."""
SENDERS = 2
INVISIBLE_S = 60.0
"""After so long what is not acknowledged comes again; also what push consumers of a proxy have that was killed."""
_LATE_S = 10.0
_END_S = 240.0


class HistoryInbox(Inbox):
    """What consumers have received and acknowledged, and when; each is in a group of its name."""

    def __init__(self) -> None:
        super().__init__()
        self.deliveries: dict[tuple[str, bytes], list[Delivery]] = {}
        self.acks: dict[tuple[str, str], list[Acknowledged]] = {}

    def add(self, received: Received) -> None:
        """Note a message."""
        assert received.receipt is not None
        delivery = Delivery(received.receipt, time.time())
        self.deliveries.setdefault((received.consumer, received.body), []).append(delivery)
        super().add(received)

    def acknowledged(self, outcomes: Sequence[Acknowledged]) -> None:
        """Note acknowledgements."""
        for each in outcomes:
            self.acks.setdefault((each.group, each.receipt), []).append(each)


class Load:
    """One client's messages.

    Args:
        client: a name of the interop suite's catalogue.
        address: of the proxy.
        home: a new directory for the clients' files.
        brokers_die: whether brokers are among what is killed.
        invisible_s: how long the simple consumer has to acknowledge a message.

    Attributes:
        stored: bodies of the messages whose sends have succeeded.
        failed: how many sends have not.
        kills: when what was killed, as of `History`.
    """

    def __init__(
        self, client: str, address: str, home: Path, *, brokers_die: bool, invisible_s: float = INVISIBLE_S
    ) -> None:
        command = CLIENTS[client].command()
        self.inbox = HistoryInbox()
        self.stored: list[bytes] = []
        self.failed = 0
        self.kills: list[Span] = []
        self._sends: dict[bytes, Span] = {}
        self._brokers_die = brokers_die
        self._invisible_s = invisible_s
        self._numbers = itertools.count()
        self._is_over = threading.Event()
        self._consumers = Client(f"{client} receives", command, address, home / "consumers", self.inbox)
        self._producers = Client(f"{client} sends", command, address, home / "producers", self.inbox)
        self._senders = [threading.Thread(target=self._send, daemon=True) for _ in range(SENDERS)]

    def start(self) -> None:
        """Create topic and groups, and begin to send and receive."""
        self._until(self._send_one, "the first send")
        for how in HOWS:
            self._until(lambda: self._consume(how), f"the consumer {how}")  # noqa: B023 - called at once
        for sender in self._senders:
            sender.start()

    def _consume(self, how: str) -> bool:
        self._consumers.consume(how, how, TOPIC, how, invisibleMs=round(1000 * self._invisible_s))
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

    def _send_one(self) -> bool:
        """Send one message, which is not sent again; raises `ClientFailed`."""
        body, started_at = f"message {next(self._numbers)}".encode(), time.time()
        self._sends[body] = Span(started_at, math.inf)
        try:
            self._producers.produce(TOPIC, [Letter(body)])
            self.stored.append(body)
        finally:
            self._sends[body] = Span(started_at, time.time())
        return True

    def _send(self) -> None:
        while not self._is_over.is_set():
            try:
                self._send_one()
            except ClientFailed:
                self.failed += 1
                self._is_over.wait(0.1)

    def more(self, count: int) -> None:
        """Wait until so many more messages are stored, and as many received by each consumer."""
        wanted = len(self.stored) + count
        received = {how: len(self.inbox.of(how)) + count for how in HOWS}
        self._wait(
            lambda: len(self.stored) >= wanted and all(len(self.inbox.of(how)) >= received[how] for how in HOWS),
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
        """Stop sending, wait until all is received and nothing comes again, and return what was wrong, a line each."""
        self._is_over.set()
        for sender in self._senders:
            sender.join()
        with suppress(AssertionError):
            self._wait(lambda: not self.missing(), "all is received")
        lost = [f"{how}: {body!r} was sent and is not received" for how, body in self.missing()]
        ends_at = time.monotonic() + self._invisible_s + _LATE_S
        while not (wrong := lost + unexplained(self.history())) and time.monotonic() < ends_at:
            time.sleep(1)
        return wrong

    def missing(self) -> list[tuple[str, bytes]]:
        """Return by consumer the stored messages that it has not received."""
        return [(how, body) for how in HOWS for body in self.stored if (how, body) not in self.inbox.deliveries]

    def history(self) -> History:
        """Return what has happened so far."""
        return History(
            dict(self._sends),
            dict(self.inbox.deliveries),
            dict(self.inbox.acks),
            self.kills,
            brokers_die=self._brokers_die,
        )

    def duplicates(self) -> int:
        """Return how many deliveries were not the first."""
        return sum(1 for _ in self.history().repeats())

    def acks(self) -> Counter[bool]:
        """Return how many acknowledgements were answered OK (True), and how many ended otherwise."""
        return Counter(ack.outcome == "OK" for acks in [*self.inbox.acks.values()] for ack in acks)

    def close(self) -> None:
        """End the clients."""
        self._is_over.set()
        for client in (self._consumers, self._producers):
            client.kill()
