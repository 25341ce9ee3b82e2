"""What a channel has received and not settled."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kombu.transport import virtual
from kombu.utils import uuid

from reput_client.tasks.celery.receiving import Delivery, Receiver

_UNLIMITED: Final = 64
"""How many messages of a channel without a prefetch limit wait to be delivered."""
_RETURN_S: Final = 5.0


class Held(virtual.QoS):
    """The received messages of a channel by delivery tag. Any thread may settle one.

    Attributes:
        given_back_at: when a message was last given back, on the monotonic clock.
    """

    def __init__(self, channel: virtual.Channel, prefetch_count: int = 0) -> None:
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._held: dict[str, Delivery] = {}
        self._lock = threading.Lock()
        self.given_back_at = -math.inf
        self._waiting: dict[str, object] = {}  # of these, the ones that are not delivered yet
        self._ending: dict[str, Delivery] = {}  # those that a thread is settling

    def room(self) -> int:
        """Return how many messages more the channel may receive."""
        if not self.can_consume():
            return 0
        if not self.prefetch_count:
            return max(0, _UNLIMITED - len(self._waiting))
        return max(0, self.prefetch_count - len(self._held))

    def can_consume(self) -> bool:
        """Whether the prefetch limit permits another message."""
        return not self.prefetch_count or len(self._held) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many messages the prefetch limit permits, or None without one."""
        return max(0, self.prefetch_count - len(self._held)) if self.prefetch_count else None

    def hold(self, delivery: Delivery, consumer: object, *, can_refuse: bool) -> str | None:
        """Keep a received message that waits to be delivered to a consumer; return its delivery tag.

        With `can_refuse`, None if it is over the prefetch limit: each queue's thread has asked for itself whether there
        is room.
        """
        tag: str = uuid()
        with self._lock:
            if can_refuse and not self.can_consume():
                return None
            self._held[tag] = delivery
            self._waiting[tag] = consumer
        return tag

    def begin(self, tag: str) -> bool:
        """Note that a message is delivered; return False if it was given back meanwhile."""
        self._waiting.pop(tag, None)
        return tag in self._held

    def give_back_waiting(self, consumer: object) -> None:
        """Give back what was not delivered to a consumer."""
        self._return([tag for tag, waits_for in [*self._waiting.items()] if waits_for is consumer])

    def _return(self, tags: Iterable[str]) -> None:
        """Give back messages that were not tried, as far as this is known; not for long if the broker is away."""
        until = time.monotonic() + _RETURN_S
        for tag in tags:
            with self._settling(tag) as delivery:
                if delivery is None:
                    continue
                if time.monotonic() < until:
                    delivery.give_back(counts=False)
                else:
                    delivery.abandon()

    def has_any_of(self, receiver: Receiver) -> bool:
        """Whether anything that a receiver has received is not settled."""
        with self._lock:
            deliveries = [*self._held.values(), *self._ending.values()]
        return any(delivery.receiver is receiver for delivery in deliveries)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: a message is held since it was received."""

    def get(self, delivery_tag: str) -> Any:
        """Return the received message."""
        return self._held[delivery_tag].message

    def ack(self, delivery_tag: str) -> None:
        """Note that the queue is done with a message. The broker knows soon, but not before this returns."""
        with self._settling(delivery_tag) as delivery:
            if delivery is not None:
                delivery.done()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back to its queue, or make it a dead letter."""
        with self._settling(delivery_tag) as delivery:
            if delivery is None:
                return
            if requeue:
                self.given_back_at = time.monotonic()
                delivery.give_back(counts=True)
            else:
                delivery.reject()

    @contextmanager
    def _settling(self, tag: str) -> Iterator[Delivery | None]:
        """Yield a held message, which one thread alone settles; it counts as not settled until the block ends.

        Else the thread that settles the last one would close its receiver under those that are not through yet, and
        what they have acknowledged would be delivered again.
        """
        with self._lock:
            self._waiting.pop(tag, None)
            delivery = self._held.pop(tag, None)
            if delivery is not None:
                self._ending[tag] = delivery
        try:
            yield delivery
        finally:
            with self._lock:
                self._ending.pop(tag, None)

    def restore_unacked(self) -> list[Any]:
        """Give back all that is not settled."""
        self._return([*self._held])
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Do nothing: the end of a channel gives back what is not settled."""

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the broker does it."""
