"""The producers and readers of a simulation. Members of groups are those of `tests/histories`.

Every put is written down before it leaves and when it is answered, with its level of acknowledgement.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import trio

from histories import terms
from histories.terms import Body
from reput_client import Message, Producer, PullConsumer, TransactionProducer, TransactionState
from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ReputError, TransactionEnded

_TIMEOUT_S: Final = 5.0
_REPEATED_S: Final = 100.0
"""How long a deduplicating producer repeats a message."""
_PAUSE_AFTER_FAILURE_S: Final = 0.1
_LEVEL: Final = 1
_LEVEL_S: Final = 1.0
_KINDS: Final = {"ok": 88, "fails1": 4, "fails2": 3, "poison": 3, "hangs": 1}
_DECISIONS: Final = {
    terms.COMMITS: TransactionState.COMMIT,
    terms.ROLLS_BACK: TransactionState.ROLLBACK,
    terms.CHECKED_COMMITS: TransactionState.COMMIT,
    terms.CHECKED_ROLLS_BACK: TransactionState.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class Load:
    """What producers send.

    Attributes:
        levels: acknowledgement levels, with how often each is asked for.
        default: the level of sends that name none.
        pause_s: the mean time between two sends of a producer.
    """

    address: str
    levels: dict[AckLevel, int]
    default: AckLevel
    pause_s: float


class Producers:
    """Four producers in one process, which send until `over`, and answer checks until `ended`."""

    def __init__(self, name: str, load: Load, note: Callable[..., float], chance: random.Random) -> None:
        self._name = name
        self._load = load
        self._note = note
        self._chance = chance
        self.over = trio.Event()
        self.ended = trio.Event()

    async def run(self) -> None:
        """Send; a producer that cannot connect tries again."""
        self._note("start")
        async with trio.open_nursery() as nursery:
            for work in (self._orders, self._steps, self._later, self._deals):
                nursery.start_soon(self._again, work)
        self._note("end")

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self.ended.is_set():
            try:
                await work()
                return
            except ReputError as error:
                self._note("unconnected", error=str(error))
                await trio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _pause(self) -> bool:
        with trio.move_on_after(self._chance.expovariate(1.0 / self._load.pause_s)):
            await self.over.wait()
        return not self.over.is_set()

    def _kind(self) -> str:
        return self._chance.choices([*_KINDS], [*_KINDS.values()])[0]

    def _level(self) -> AckLevel:
        levels = self._load.levels
        return self._chance.choices([*levels], [*levels.values()])[0]

    async def _put(
        self,
        topic: str,
        uid: str,
        kind: str,
        send: Callable[[], Awaitable[Any]],
        *,
        level: AckLevel | None = None,
        **facts: Any,
    ) -> bool:
        asked = level or self._load.default
        self._note("put", uid=uid, topic=topic, kind=kind, ack=str(asked), wall_ms=time.time_ns() // 1_000_000, **facts)
        try:
            receipt = await send()
        except AckNotReached as error:
            self._note("not-reached", uid=uid, error=str(error))
        except (SendOutcomeUnknown, TransactionEnded) as error:
            self._note("unknown", uid=uid, error=str(error))
        except ReputError as error:
            self._note("refused", uid=uid, error=str(error))
            await trio.sleep(_PAUSE_AFTER_FAILURE_S)
        else:
            self._note(
                "acked",
                uid=uid,
                queue=receipt.queue_id,
                offset=receipt.queue_offset,
                host=receipt.store_host,
                stored_ms=receipt.store_timestamp_ms,
            )
            return True
        return False

    async def _orders(self) -> None:
        before: list[tuple[str, str]] = []
        numbers = itertools.count()
        async with (
            Producer(self._load.address, timeout_s=_TIMEOUT_S, retries=0, deduplicate=False) as plain,
            Producer(self._load.address, timeout_s=_REPEATED_S, deduplicate=True) as known,
        ):
            while await self._pause():
                level = self._level()
                deduplicated = level is self._load.default and self._chance.random() < 0.5
                queue_id = self._chance.randrange(terms.TOPICS[terms.ORDERS])
                if deduplicated and before and self._chance.random() < 0.2:
                    uid, kind = self._chance.choice(before)
                else:
                    uid, kind = f"{self._name}-o{next(numbers)}", self._kind()
                message = Message(terms.ORDERS, Body(uid, kind).encode(), unique_id=uid if deduplicated else None)
                producer = known if deduplicated else plain
                stored = await self._put(
                    terms.ORDERS,
                    uid,
                    kind,
                    lambda m=message, q=queue_id, p=producer, a=level: p.send(m, queue_id=q, ack=a),  # type: ignore[misc]
                    level=level,
                    deduplicated=deduplicated,
                )
                if stored and deduplicated:
                    before.append((uid, kind))

    async def _steps(self) -> None:
        numbers = itertools.count()
        async with Producer(self._load.address, timeout_s=_TIMEOUT_S, retries=0, deduplicate=False) as producer:
            while await self._pause():
                uid, kind = f"{self._name}-s{next(numbers)}", self._kind()
                kind = terms.FAILS_ONCE if kind == terms.FAILS_TWICE else kind
                message = Message(terms.STEPS, Body(uid, kind).encode())
                queue_id = self._chance.randrange(terms.TOPICS[terms.STEPS])
                level = self._level()
                await self._put(
                    terms.STEPS,
                    uid,
                    kind,
                    lambda m=message, q=queue_id, a=level: producer.send(m, queue_id=q, ack=a),  # type: ignore[misc]
                    level=level,
                )

    async def _later(self) -> None:
        numbers = itertools.count()
        async with Producer(
            self._load.address, timeout_s=_REPEATED_S, deduplicate=True, ack=self._load.default
        ) as producer:
            while await self._pause():
                uid = f"{self._name}-l{next(numbers)}"
                body = Body(uid, terms.OK).encode()
                if self._chance.random() < 0.5:
                    delay_s = _LEVEL_S
                    message = Message(terms.LATER, body, delay_level=_LEVEL, unique_id=uid)
                else:
                    delay_s = round(self._chance.uniform(0.3, 3.0), 3)
                    message = Message(terms.LATER, body, delay_s=delay_s, unique_id=uid)
                await self._put(
                    terms.LATER,
                    uid,
                    terms.OK,
                    lambda m=message: producer.send(m),  # type: ignore[misc]
                    delay_s=delay_s,
                    deduplicated=True,
                )

    async def _deals(self) -> None:
        def decide(body: Body) -> TransactionState:
            state = _DECISIONS[body.kind]
            self._note("decided", uid=body.uid, commits=state is TransactionState.COMMIT)
            return state

        async def check(message: Any) -> TransactionState:
            return decide(Body.of(message.body))

        numbers = itertools.count()
        async with TransactionProducer(
            self._load.address,
            group="dealers",
            check=check,
            timeout_s=_TIMEOUT_S,
            heartbeat_interval_s=1.0,
            ack=self._load.default,
        ) as producer:

            async def deal(message: Message, body: Body) -> Any:
                async def local(_: Message) -> TransactionState:
                    await trio.sleep(self._chance.choice((0.0, 0.0, 0.3)))
                    return TransactionState.UNKNOWN if body.kind.startswith("checked") else decide(body)

                return (await producer.send_in_transaction(message, local)).half

            while await self._pause():
                uid = f"{self._name}-d{next(numbers)}"
                body = Body(uid, self._chance.choice([*_DECISIONS]))
                message = Message(terms.DEALS, body.encode())
                await self._put(terms.DEALS, uid, body.kind, lambda m=message, b=body: deal(m, b))  # type: ignore[misc]
            await self.ended.wait()


class Reader:
    """Pulls every queue of a topic from its beginning, over and over, without a group; notes what it has read."""

    def __init__(self, address: str, topic: str, note: Callable[..., float], chance: random.Random) -> None:
        self._address = address
        self._topic = topic
        self._note = note
        self._chance = chance

    async def run(self) -> None:
        """Read for ever."""
        while True:
            try:
                async with PullConsumer(self._address, group="reader", timeout_s=_TIMEOUT_S) as consumer:
                    while True:
                        await self._read(consumer, self._chance.randrange(terms.TOPICS[self._topic]))
            except ReputError as error:
                self._note("unread", error=str(error))
                await trio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _read(self, consumer: Any, queue_id: int) -> None:
        offset = 0
        while True:
            result = await consumer.pull(self._topic, queue_id=queue_id, offset=offset, max_messages=64, wait_s=0.0)
            for message in result.messages:
                self._note(
                    "read",
                    topic=self._topic,
                    queue=queue_id,
                    offset=message.queue_offset,
                    uid=Body.of(message.body).uid,
                )
            if result.next_begin_offset <= offset:
                break
            offset = result.next_begin_offset
        await trio.sleep(self._chance.uniform(0.2, 1.0))
