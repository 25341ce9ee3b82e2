"""The producers of a history, in their own process: plain and ordered puts, delayed ones, transactions.

`python producer.py NAME ADDRESS HISTORY --seed N [--kinds KIND=WEIGHT,...]` sends until SIGTERM, and ends with the
second one: until then it answers the broker's questions about transactions. Every put is written down before it leaves
and when it is answered; one that was not answered may or may not be stored.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from histories import terms
from histories.history import Pulse, Recorder
from histories.terms import Body
from reput_client import Message, TransactionState
from reput_client.blocking import Producer, TransactionProducer
from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_protocol.errors import ReputError, TransactionEnded

_TIMEOUT_S = 5.0
_REPEATED_S = 100.0
"""How long a deduplicating producer repeats a message."""
_PAUSE_AFTER_FAILURE_S = 0.1
_LEVELS_S = {1: 1.0, 2: 5.0}
_DECISIONS = {
    terms.COMMITS: TransactionState.COMMIT,
    terms.ROLLS_BACK: TransactionState.ROLLBACK,
    terms.CHECKED_COMMITS: TransactionState.COMMIT,
    terms.CHECKED_ROLLS_BACK: TransactionState.ROLLBACK,
}


class _Producers:
    def __init__(self, arguments: argparse.Namespace, recorder: Recorder) -> None:
        self._name = arguments.name
        self._address = arguments.address
        self._seed = arguments.seed
        self._pause_s = arguments.pause
        self._note = recorder.note
        self._over = threading.Event()
        self._ended = threading.Event()
        pairs = (pair.split("=") for pair in arguments.kinds.split(","))
        self._kinds = {kind: int(weight) for kind, weight in pairs}

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        self._note("start")
        works = (self._orders, self._steps, self._later, self._deals)
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._note("end")

    def _stop(self, *_: object) -> None:
        """The first time nothing more is sent, and the broker's questions are still answered; then it ends."""
        if self._over.is_set():
            self._ended.set()
        self._over.set()

    def _guarded(self, work: Callable[[random.Random], None]) -> None:
        chance = random.Random(f"{self._seed} {work.__name__}")
        while not self._ended.is_set():  # also once nothing is to be sent any more: the broker may have questions
            try:
                work(chance)
            except ReputError as error:  # no broker to connect to
                self._note("unconnected", error=repr(error))
                self._ended.wait(_PAUSE_AFTER_FAILURE_S)
            else:
                return

    def _pause(self, chance: random.Random) -> bool:
        """Wait a moment; return whether to continue."""
        return not self._over.wait(min(1.0, chance.expovariate(1 / self._pause_s)))

    def _kind(self, chance: random.Random) -> str:
        kind: str
        (kind,) = chance.choices(list(self._kinds), list(self._kinds.values()))
        return kind

    def _put(self, topic: str, uid: str, kind: str, send: Callable[[], Any], **facts: Any) -> bool:
        self._note("put", topic=topic, uid=uid, kind=kind, wall_ms=int(time.time() * 1000), **facts)
        try:
            receipt = send()
        except (SendOutcomeUnknown, AckNotReached, TransactionEnded) as error:
            self._note("unknown", uid=uid, error=repr(error))
            return False
        except ReputError as error:
            self._note("refused", uid=uid, error=repr(error))
            self._over.wait(_PAUSE_AFTER_FAILURE_S)
            return False
        self._note("acked", uid=uid, queue=receipt.queue_id, offset=receipt.queue_offset)
        return True

    def _orders(self, chance: random.Random) -> None:
        """Half of them deduplicated and sent until they are answered; some of these once more, long after."""
        before: list[tuple[str, str]] = []
        with (
            Producer(self._address, timeout_s=_TIMEOUT_S, retries=0, deduplicate=False) as plain,
            Producer(self._address, timeout_s=_REPEATED_S, deduplicate=True) as known,
        ):
            for number in itertools.count():
                if not self._pause(chance):
                    return
                deduplicated = chance.random() < 0.5
                queue_id = chance.randrange(terms.TOPICS[terms.ORDERS])
                if deduplicated and before and chance.random() < 0.2:
                    uid, kind = chance.choice(before)
                else:
                    uid, kind = f"{self._name}-o{number}", self._kind(chance)
                message = Message(terms.ORDERS, Body(uid, kind).encode(), unique_id=uid if deduplicated else None)
                stored = self._put(
                    terms.ORDERS,
                    uid,
                    kind,
                    partial((known if deduplicated else plain).send, message, queue_id=queue_id),
                    deduplicated=deduplicated,
                )
                if stored and deduplicated:
                    before.append((uid, kind))

    def _steps(self, chance: random.Random) -> None:
        with Producer(self._address, timeout_s=_TIMEOUT_S, retries=0, deduplicate=False) as producer:
            for number in itertools.count():
                if not self._pause(chance):
                    return
                uid, kind = f"{self._name}-s{number}", self._kind(chance)
                kind = terms.FAILS_ONCE if kind == terms.FAILS_TWICE else kind  # in order that is a dead letter
                message = Message(terms.STEPS, Body(uid, kind).encode())
                queue_id = chance.randrange(terms.TOPICS[terms.STEPS])
                self._put(terms.STEPS, uid, kind, partial(producer.send, message, queue_id=queue_id))

    def _later(self, chance: random.Random) -> None:
        with Producer(self._address, timeout_s=_REPEATED_S, deduplicate=True) as producer:
            for number in itertools.count():
                if not self._pause(chance):
                    return
                uid = f"{self._name}-l{number}"
                body = Body(uid, terms.OK).encode()
                if chance.random() < 0.5:
                    level = chance.choice((1, 1, 2))
                    delay_s = _LEVELS_S[level]
                    message = Message(terms.LATER, body, delay_level=level, unique_id=uid)
                else:
                    delay_s = chance.uniform(0.3, 6.0)
                    message = Message(terms.LATER, body, delay_s=delay_s, unique_id=uid)
                self._put(
                    terms.LATER, uid, terms.OK, partial(producer.send, message), delay_s=delay_s, deduplicated=True
                )

    def _deals(self, chance: random.Random) -> None:
        def decide(body: Body) -> TransactionState:
            state = _DECISIONS[body.kind]
            self._note("decided", uid=body.uid, commits=state is TransactionState.COMMIT)
            return state

        with TransactionProducer(
            self._address,
            group="dealers",
            check=lambda message: decide(Body.of(message.body)),
            timeout_s=_TIMEOUT_S,
            heartbeat_interval_s=1.0,
        ) as producer:

            def deal(message: Message, body: Body) -> Any:
                def local(_: Message) -> TransactionState:
                    time.sleep(chance.choice((0.0, 0.0, 0.3)))
                    return TransactionState.UNKNOWN if body.kind.startswith("checked") else decide(body)

                return producer.send_in_transaction(message, local).half

            for number in itertools.count():
                if not self._pause(chance):
                    self._ended.wait()
                    return
                uid = f"{self._name}-d{number}"
                body = Body(uid, chance.choice([*_DECISIONS]))
                message = Message(terms.DEALS, body.encode())
                self._put(terms.DEALS, uid, body.kind, partial(deal, message, body))


def main() -> None:
    """Send as the command line says."""
    parser = argparse.ArgumentParser()
    for name in ("name", "address", "history"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.06, help="mean time between two puts of each producer")
    parser.add_argument("--kinds", default="ok=90,fails1=4,fails2=2,poison=2,hangs=2")
    arguments = parser.parse_args()
    recorder = Recorder(Path(arguments.history), arguments.name)
    Pulse(recorder)
    _Producers(arguments, recorder).run()


if __name__ == "__main__":
    main()
