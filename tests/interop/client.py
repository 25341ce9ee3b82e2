"""A client in its own process, driven by lines of JSON, and what its consumers have received.

Each request is a line on stdin with `id` and `do`:

- `produce`: `topic`, `messages` (each `body` in base64, `tag`, `keys`, `properties`) and `how`: `sync`, `async`,
  `one-way`, `batch`, `orderly` (with `key`) or `transaction` (decided by the property `decision`); optionally
  `delayLevel`, `delayMs` or `priority`. Results of delayed messages have a `recallHandle`.
- `recall`: `topic` and the `handle` of a delayed message.
- `consume`: `consumer` (a name), `group`, `topic` and `how`: `concurrent`, `orderly`, `broadcasting`, `lite`, `pop`,
  `simple` or `pull`;
  optionally `tags` or `sql`, `fail` (how many deliveries of each message fail), `maxTimes` (redeliveries before a
  message is dead), `invisibleMs` (of `simple`), and `reply` (every message is a request).
- `stop`: `consumer`.
- `request`: `topic` and `body`; the answer is the body of the reply.

Its answer is a line on stdout with the same `id` and `ok` or `error`. A line with `event` is a received message,
or from some gRPC clients `acknowledged`: a request to acknowledge messages, and how it ended. The end of stdin ends the
process.

With the variable `INTEROP_CA`, a file with an authority, it connects with TLS; with `INTEROP_USER` and
`INTEROP_SECRET` it does as that user.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEADLINE_S = 300.0
"""However slow the machine is; every wait ends at its event."""


class ClientFailed(Exception):
    """The client reported an error, or ended; the text says how."""


class NotReceived(AssertionError):
    """Something did not come in time."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as a check sends it."""

    body: bytes
    tag: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> dict[str, object]:
        """As a driver takes it."""
        return {
            "body": base64.b64encode(self.body).decode(),
            "tag": self.tag,
            "keys": self.keys,
            "properties": dict(self.properties),
        }


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a client has received it."""

    consumer: str
    topic: str
    queue_id: int
    offset: int
    id: str
    body: bytes
    tag: str | None
    keys: str | None
    properties: Mapping[str, str]
    times: int
    receipt: str | None
    """By which a gRPC client acknowledges it; of Python and Java only."""

    @classmethod
    def of(cls, consumer: str, line: Mapping[str, Any]) -> Received:
        """From a driver's line."""
        return cls(
            consumer,
            line["topic"],
            line["queueId"],
            line["offset"],
            line["id"],
            base64.b64decode(line["body"]),
            line.get("tag") or None,
            line.get("keys") or None,
            line["properties"],
            line["times"],
            line.get("receipt"),
        )


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One message of a request to acknowledge, with the times of the request and of its answer in s since 1970.

    `outcome` is the name of the code in the answer (`OK`), or the client's error.
    """

    group: str
    receipt: str
    asked_at: float
    answered_at: float
    outcome: str

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> list[Acknowledged]:
        """From a driver's line."""
        times = line["askedMs"] / 1000, line["answeredMs"] / 1000
        return [cls(line["group"], receipt, *times, outcome) for receipt, outcome in line["outcomes"].items()]


class Inbox:
    """What the consumers of several clients have received, in order of arrival."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._received: list[Received] = []

    def add(self, received: Received) -> None:
        """Note a message."""
        with self._changed:
            self._received.append(received)
            self._changed.notify_all()

    def acknowledged(self, outcomes: Sequence[Acknowledged]) -> None:
        """Note how a request to acknowledge messages has ended."""

    def stir(self) -> None:
        """Have waiting checks look again."""
        with self._changed:
            self._changed.notify_all()

    def of(self, *consumers: str) -> list[Received]:
        """What these have received so far."""
        with self._changed:
            return [each for each in self._received if each.consumer in consumers]

    def wait(
        self,
        consumers: Sequence[str],
        enough: Callable[[list[Received]], bool],
        what: str,
        alive: Callable[[], None] = lambda: None,
        deadline_s: float = DEADLINE_S,
    ) -> list[Received]:
        """Wait until `enough` accepts what these consumers have received; return that.

        Raises:
            NotReceived: it did not in time.
            ClientFailed: from `alive`, which is called after every change.
        """
        ends_at = time.monotonic() + deadline_s
        with self._changed:
            while True:
                found = [each for each in self._received if each.consumer in consumers]
                if enough(found):
                    return found
                alive()
                left = ends_at - time.monotonic()
                if left <= 0:
                    raise NotReceived(f"{what}: {len(found)} deliveries within {deadline_s:.0f} s")
                self._changed.wait(left)


class Client:
    """One process of a client, from when it is ready until it is closed or killed.

    Args:
        command: starts the driver; the address is its last argument.
        home: a new directory, which the client takes for its user's home; its stderr is there.
        environment: more variables of the process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        address: str,
        home: Path,
        inbox: Inbox,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        home.mkdir(parents=True)
        self.name = name
        self._inbox = inbox
        self._log = home / "stderr"
        self._ids = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._ready = self._ended = False
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, address],
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "HOME": str(home), **(environment or {})},
                text=True,
                encoding="utf-8",
            )
        self._reader = threading.Thread(target=self._read, name=f"reads {name}", daemon=True)
        self._reader.start()
        try:
            self._wait(lambda: self._ready, "start")
        except BaseException:
            self.kill()
            raise

    def produce(
        self, topic: str, letters: Sequence[Letter], how: str = "sync", **options: object
    ) -> list[dict[str, Any]]:
        """Have messages sent; return the results that the client gave, for each or for the whole batch."""
        answer = self.ask("produce", topic=topic, how=how, messages=[each.line() for each in letters], **options)
        assert isinstance(answer, list)
        return answer

    def recall(self, topic: str, handle: str) -> None:
        """Have a delayed message recalled."""
        self.ask("recall", topic=topic, handle=handle)

    def consume(self, consumer: str, group: str, topic: str, how: str = "concurrent", **options: object) -> None:
        """Have a consumer started; `Inbox` has what it receives."""
        self.ask("consume", consumer=consumer, group=group, topic=topic, how=how, **options)

    def stop(self, consumer: str) -> None:
        """Have a consumer ended."""
        self.ask("stop", consumer=consumer)

    def request(self, topic: str, body: bytes) -> bytes:
        """Have a request sent; return the body of its reply."""
        return base64.b64decode(self.ask("request", topic=topic, body=base64.b64encode(body).decode()))

    def ask(self, verb: str, **fields: object) -> Any:
        """Have one request carried out; return its answer.

        Raises:
            ClientFailed: with the client's text.
        """
        number = next(self._ids)
        assert self._process.stdin is not None
        line = json.dumps({"id": number, "do": verb, **{k: v for k, v in fields.items() if v is not None}})
        with self._changed:
            try:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            except OSError:
                raise ClientFailed(self._end()) from None
        self._wait(lambda: number in self._answers, verb)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise ClientFailed(f"{self.name}: {verb}: {answer['error']}")
        return answer["ok"]

    def check_alive(self) -> None:
        """Raise `ClientFailed` if the process has ended."""
        if self._ended:
            raise ClientFailed(self._end())

    def close(self) -> None:
        """End the process by the end of its stdin, or by SIGKILL if that does not help."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for text in self._process.stdout:
                line = json.loads(text)
                if line.get("event") == "received":
                    self._inbox.add(Received.of(line["consumer"], line["message"]))
                    continue
                if line.get("event") == "acknowledged":
                    self._inbox.acknowledged(Acknowledged.of(line))
                    continue
                with self._changed:
                    if "event" in line:
                        self._ready = True
                    else:
                        self._answers[line["id"]] = line
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self._inbox.stir()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition() or self._ended, DEADLINE_S):
                raise ClientFailed(f"{self.name}: no answer to {what} within {DEADLINE_S:.0f} s\n{self.log_tail()}")
            if not condition():
                raise ClientFailed(self._end())

    def _end(self) -> str:
        return f"{self.name} ended with {self._process.poll()}\n{self.log_tail()}"

    def log_tail(self) -> str:
        """Return the last lines of its stderr."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if " |-INFO in " not in line][-15:])
