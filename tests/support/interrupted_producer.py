"""A program that posts messages with a blocking producer, is interrupted at the worst moments, and judges the outcome.

    PYTHONPATH=tests python tests/support/interrupted_producer.py points [--first N] [--step N] [--count N] [--second N]
    PYTHONPATH=tests python tests/support/interrupted_producer.py signals [--rounds N] [--seed N]

`points` raises a KeyboardInterrupt in the main thread at one point after the other: at each place of the client's code
where CPython may run a signal handler. With `--second` another one follows so many places later, while the first is
being handled. `signals` sends itself bursts of one to five SIGINT at random times. Another thread shares the producer.

Each round prints a line that begins with `ok` or `bad`. A round that prints none hangs; the parent process notices.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dis
import itertools
import os
import random
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

from reput_client import Message, PostsFailed, blocking
from reput_client.errors import ClientClosed, SendOutcomeUnknown
from reput_protocol.errors import ReputError
from reput_protocol.record.record import decode_record
from support.fakes import FakeBroker

_numbers: Final = itertools.count()
_CLIENT: Final = f"{os.sep}reput_client{os.sep}"
_CHECKED: Final = frozenset(
    number for name, number in dis.opmap.items() if name.startswith(("RESUME", "CALL", "JUMP_BACKWARD"))
)
"""After these instructions, and nowhere else, CPython looks whether a signal has come."""


class Points:
    """Counts the places of this thread where a signal handler may run, and raises at one or two of them."""

    def __init__(self, first: int, second: int) -> None:
        self._first = first
        self._second = second
        self.seen = 0
        self._after = 0
        self._last: dict[FrameType, int] = {}

    def __enter__(self) -> None:
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if _CLIENT not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            last = self._last.get(frame)
            self._last[frame] = frame.f_code.co_code[frame.f_lasti]
            if last in _CHECKED:
                self.seen += 1
                if self.seen == self._first:
                    if self._second:
                        sys.setprofile(self._profile)
                    raise KeyboardInterrupt  # which ends the tracing
        elif event == "return":
            self._last.pop(frame, None)
        return self._step

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        """CPython looks for signals at the begin of each function, and after each that is written in C."""
        if event in {"call", "c_return"} and _CLIENT in frame.f_code.co_filename:
            self._after += 1
            if self._after == self._second:
                raise KeyboardInterrupt


class Burst:
    """Sends SIGINT to this process, in bursts; the main thread is interrupted where it does `Round.troubled`."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> None:
        signal.signal(signal.SIGINT, self._handle)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is Round.troubled.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    def _send(self) -> None:
        time.sleep(self._dice.uniform(0.0, 0.02))
        for _ in range(self._dice.randint(1, 5)):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(self._dice.choice([0.0, 0.0001, 0.001]))


class Round:
    """One producer, two threads that post with it, and what became of each message."""

    def __init__(self, broker: FakeBroker, count: int, *, closes: bool) -> None:
        self.broker = broker
        self.topic = f"t{next(_numbers)}"
        self.count = count
        self.closes = closes
        self.producer = blocking.Producer(
            broker.address, timeout_s=0.5, batch_bytes=600, linger_s=0.001, ack="page_cache"
        )
        self.posted: dict[str, list[Any]] = {"main": [], "other": []}
        self.called: collections.Counter[bytes] = collections.Counter()
        self.raised: list[Any] = []
        self.sent: dict[bytes, ReputError | None] = {}
        self.problems: list[str] = []

    def _work(self, name: str) -> None:
        """Post and flush; keep each answer as soon as `post` returns it."""

        def post(number: int) -> tuple[bytes, Any]:
            body = b"%s %d" % (name.encode(), number)
            on_done = (lambda _posted: self._count(body)) if number % 3 == 0 else None
            message = Message(self.topic, body)
            return body, self.producer.post(message, queue_id=number % 2, on_done=on_done)

        self.posted[name].extend(map(post, range(self.count)))
        self.posted[name][0][1].result()
        self._flush()
        for number in range(4):
            self._send(b"%s send %d" % (name.encode(), number))

    def _send(self, body: bytes) -> None:
        try:
            self.producer.send(Message(self.topic, body), queue_id=0)
            self.sent[body] = None
        except ReputError as error:
            self.sent[body] = error

    def _count(self, body: bytes) -> None:
        self.called.update((body,))

    def _flush(self) -> None:
        try:
            self.producer.flush()
        except PostsFailed as failed:
            self.raised.extend(failed.failed)

    def troubled(self) -> None:
        """What is interrupted; an interrupted program often flushes and closes, and may be interrupted once more."""
        try:
            self._work("main")
        except KeyboardInterrupt:
            self._flush()
        if self.closes:
            self.producer.close()

    def _other(self) -> None:
        with contextlib.suppress(ClientClosed, SendOutcomeUnknown):
            self._work("other")

    def run(self, trouble: Any) -> list[str]:
        """Work with `trouble` in the main thread; return what is wrong afterwards."""
        producer = self.producer
        producer.__enter__()
        other = threading.Thread(target=self._other, daemon=True)
        other.start()
        with trouble, contextlib.suppress(KeyboardInterrupt, ClientClosed, SendOutcomeUnknown):
            self.troubled()
        with contextlib.suppress(ClientClosed):
            self._flush()
        other.join()
        with contextlib.suppress(ClientClosed):
            self._flush()
        self._go_on()
        producer.close()
        self._judge()
        return self.problems

    def _go_on(self) -> None:
        """The producer is whole, or says that it is closed."""
        with contextlib.suppress(ClientClosed):
            self.producer.post(Message(self.topic, b"last")).result()
            self._flush()

    def _judge(self) -> None:
        # What was posted may arrive after the producer was closed.
        stored = collections.Counter(
            decode_record(data).body
            for (topic, _), records in list(self.broker.log.items())
            for data in list(records)
            if topic == self.topic
        )
        self._expect(not stored or max(stored.values()) == 1, "stored twice")
        for body, posted in self.posted["main"] + self.posted["other"]:
            error = posted.error
            self._expect(posted.done, f"{body!r} has no outcome")
            if error is None:
                self._expect(stored[body] == 1, f"{body!r} has a receipt and is not stored")
            elif not isinstance(error, SendOutcomeUnknown):
                self._expect(not stored[body], f"{body!r} is stored and has {error!r}")
            if int(body.split()[1]) % 3 == 0:
                self._expect(self.called[body] == 1, f"{self.called[body]} callbacks for {body!r}")
            self._expect(self.raised.count(posted) <= 1, f"{body!r} was raised by flush more than once")
        for body, error in self.sent.items():
            self._expect(error is not None or stored[body] == 1, f"{body!r} has a receipt and is not stored")
            is_known = error is not None and not isinstance(error, SendOutcomeUnknown)
            self._expect(not (is_known and stored[body]), f"{body!r} is stored and raised {error!r}")

    def _expect(self, is_so: bool, problem: str) -> None:
        if not is_so:
            self.problems.append(problem)


def main() -> None:
    """Run rounds, and print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["points", "signals"])
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--second", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with FakeBroker() as broker:
        if asked.kind == "signals":
            dice = random.Random(asked.seed)
            for number in range(asked.rounds):
                _say(f"burst {number}", Round(broker, 300, closes=number % 2 > 0).run(Burst(dice)))
            return
        for first in range(asked.first, asked.first + asked.step * asked.count, asked.step):
            points = Points(first, asked.second)
            _say(f"point {first}+{asked.second}", Round(broker, 24, closes=first % 2 > 0).run(points))
            if points.seen < first:
                return


def _say(what: str, problems: list[str]) -> None:
    print("bad" if problems else "ok", what, "; ".join(problems[:3]), flush=True)


if __name__ == "__main__":
    main()
