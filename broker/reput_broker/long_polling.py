"""Hold pulls that found nothing until there is something (RocketMQ: PullRequestHoldService).

A held pull leaves when a message arrives that its filter lets through, when its time is up, when somebody shuts the
broker down, or when its connection is gone. It is then run once more, and answered whatever comes out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import trio

from reput_broker.config import LongPollingConfig
from reput_broker.request import Client, Request
from reput_broker.store.dispatch import DispatchBatch, QueueRows
from reput_protocol.filters import MessageFilter
from reput_protocol.sql import SqlFilter

QueueKey = tuple[str, int]
K = TypeVar("K")

_TIDY_FROM = 64
_LOOKED_AT_MAX = 256
"""Arriving messages of a queue up to which their properties are looked at for the pulls that wait."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """One parked request."""

    number: int
    request: Request
    queue: QueueKey
    offset: int
    message_filter: MessageFilter | None
    deadline: float
    resume: Callable[[], None]
    """Run the pull again and answer."""
    abandon: Callable[[], None]
    """Nobody waits for it any more."""


class PullRequestHoldService:
    """The parked pulls. It is the store's MessageArrivingListener.

    Attributes:
        is_stopping: the broker is about to stop, and no pull should be parked any more.
    """

    def __init__(self, config: LongPollingConfig) -> None:
        self.is_stopping = False
        self._config = config
        self._held: dict[QueueKey, set[HeldPull]] = {}
        self._by_number: dict[int, HeldPull] = {}
        self._by_client: dict[Client, set[HeldPull]] = {}
        self._deadlines: list[tuple[float, int]] = []  # also of pulls that have left, until it is tidied
        self._sequence = count()
        self._ready: list[HeldPull] = []
        self._earlier_deadline = trio.Event()

    @property
    def count(self) -> int:
        """How many pulls are parked."""
        return len(self._by_number)

    def hold(
        self,
        request: Request,
        queue: QueueKey,
        offset: int,
        message_filter: MessageFilter | None,
        wait_s: float,
        resume: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        """Park a pull for at most `wait_s` seconds, and never longer than `long_polling.max_wait`.

        In the end either `resume` is called, or, if its client has gone, `abandon`.
        """
        deadline = trio.current_time() + min(wait_s, self._config.max_wait)
        number = next(self._sequence)
        held = HeldPull(number, request, queue, offset, message_filter, deadline, resume, abandon)
        self._held.setdefault(queue, set()).add(held)
        self._by_number[number] = held
        self._by_client.setdefault(request.client, set()).add(held)
        if not self._deadlines or deadline < self._deadlines[0][0]:
            self._earlier_deadline.set()
        heapq.heappush(self._deadlines, (deadline, number))

    def arriving(self, rows: QueueRows, batch: DispatchBatch) -> None:
        """Note new messages; pulls that they are for run again at the next `answer_ready`."""
        waiting = self._held.get((rows.topic, rows.queue_id))
        if not waiting:
            return
        end = rows.end_queue_offset
        verdicts: dict[SqlFilter, bool] = {}  # members of a group have one filter
        for held in list(waiting):
            if held.request.client.is_closed:
                self._drop(held)
            elif end > held.offset and _lets_any_through(held.message_filter, rows, batch, verdicts):
                self._release(held)
                self._ready.append(held)

    def answer_ready(self) -> None:
        """Run the pulls again that messages have arrived for."""
        if self._ready:
            ready, self._ready = self._ready, []
            for held in ready:
                if held.request.client.is_closed:
                    held.abandon()
                else:
                    held.resume()

    def drop_client(self, client: Client) -> None:
        """Forget the pulls of a client that is gone."""
        for held in list(self._by_client.get(client, ())):
            self._drop(held)

    def release_all(self) -> None:
        """Run every held pull again: the broker is about to stop."""
        self.is_stopping = True
        for queue in list(self._held):
            self._ready += self._held.get(queue, ())
            for held in list(self._held.get(queue, ())):
                self._release(held)
        self.answer_ready()

    def release_topic(self, topic: str) -> None:
        """Run the held pulls of a topic again: it has been deleted."""
        for queue in [queue for queue in self._held if queue[0] == topic]:
            for held in list(self._held[queue]):
                self._release(held)
                self._ready.append(held)
        self.answer_ready()

    def release_group(self, group: str, queues: Iterable[QueueKey] | None = None) -> None:
        """Run the held pulls of a group in some queues, or in all, again: it may not go on as it did."""
        for queue in list(self._held if queues is None else queues):
            for held in list(self._held.get(queue, ())):
                if held.request.ext.get("consumerGroup") == group:
                    self._release(held)
                    self._ready.append(held)
        self.answer_ready()

    async def run(self) -> None:
        """Let pulls go whose time is up, until cancelled. Parks while none is held."""
        while True:
            self._earlier_deadline = trio.Event()
            while self._deadlines and self._deadlines[0][1] not in self._by_number:
                heapq.heappop(self._deadlines)
            if not self._deadlines:
                await self._earlier_deadline.wait()
                continue
            with trio.move_on_at(self._deadlines[0][0]):
                await self._earlier_deadline.wait()
                continue
            now = trio.current_time()
            while self._deadlines and self._deadlines[0][0] <= now:
                held = self._by_number.get(heapq.heappop(self._deadlines)[1])
                if held is not None:
                    self._release(held)
                    self._ready.append(held)
            self.answer_ready()

    def _drop(self, held: HeldPull) -> None:
        self._release(held)
        held.abandon()

    def _release(self, held: HeldPull) -> None:
        del self._by_number[held.number]
        _discard(self._held, held.queue, held)
        _discard(self._by_client, held.request.client, held)
        if len(self._deadlines) > 2 * len(self._by_number) + _TIDY_FROM:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._by_number]
            heapq.heapify(self._deadlines)


def _discard(table: dict[K, set[HeldPull]], key: K, held: HeldPull) -> None:
    pulls = table[key]
    pulls.discard(held)
    if not pulls:
        del table[key]


def _lets_any_through(
    message_filter: MessageFilter | None,
    rows: QueueRows,
    batch: DispatchBatch,
    verdicts: dict[SqlFilter, bool],
) -> bool:
    if message_filter is None:
        return True
    if isinstance(message_filter, SqlFilter):
        verdict = verdicts.get(message_filter)
        if verdict is None:
            verdict = verdicts[message_filter] = _matches_any(message_filter, rows, batch)
        return verdict
    return message_filter.matches_all or any(
        message_filter.matches_code(int(code)) for code in rows.tags_codes
    )


def _matches_any(sql_filter: SqlFilter, rows: QueueRows, batch: DispatchBatch) -> bool:
    if len(rows.sizes) > _LOOKED_AT_MAX:
        return True  # the pull itself looks, in bounds
    return any(properties is None or sql_filter.matches(properties) for properties in batch.properties(rows))
