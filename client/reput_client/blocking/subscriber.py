"""What the synchronous `Consumer` and `PopConsumer` have in common: their state, and handlers in threads."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from reput_client.blocking.client import BlockingClient
from reput_client.consume.group.subscriber import Subscriber, check_takes_a_message
from reput_client.received import R

_LOOK_ROUND_S: Final = 0.5

SubscriberT = TypeVar("SubscriberT", bound=Subscriber)


class BlockingSubscriber(BlockingClient[SubscriberT]):
    """A client that gets the messages of some topics for a group."""

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The consumed topics; with a pattern, those found so far."""
        return self._client.topics

    @property
    def topic(self) -> str:
        """The topic, or the first of several; "" while a pattern has found none."""
        return self._client.topic

    @property
    def connected(self) -> bool:
        """Whether any connection is open."""
        return self._client.connected

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._client.closed

    @property
    def stopped(self) -> bool:
        """Whether no more messages are delivered, because the consumer was stopped or closed."""
        return self._client.stopped


def check_plain(handler: Callable[[R], object]) -> None:
    """Raise TypeError if `handler` cannot be called with a message alone, or is a coroutine function.

    Its coroutines would never run, and count as handled.
    """
    check_takes_a_message(handler)
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        raise TypeError(
            f"{handler!r} is a coroutine function, and the synchronous API does not await it; pass a plain function, "
            "or import the consumer from reput_client instead of reput_client.blocking"
        )


def run_in_threads(
    take: Callable[[float], R | None],
    is_over: Callable[[], bool],
    handle: Callable[[R], None],
    slots: list[R | None],
) -> None:
    """Take and handle messages, in a thread for each slot, until it is over or `handle` raises.

    Each thread takes one message at a time, which its slot has, so a slow handler delays no other message while a
    thread is free. Returns when all threads have ended.

    Raises:
        BaseException: the first exception of `handle` or `take`, or what interrupted the calling thread.
    """
    gate = threading.Lock()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while True:
                with gate:
                    # Bounded, to notice another handler's failure.
                    message = None
                    while message is None and not failures and not is_over():
                        message = take(_LOOK_ROUND_S)
                if message is None:
                    return
                slots[number] = message
                handle(message)
                slots[number] = None
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=work, name=f"reput-handler-{n}", args=(n,)) for n in range(len(slots))]
    try:
        for thread in started:
            thread.start()
        for thread in started:
            # Python runs signal handlers in the main thread. If another thread received the signal, the main thread
            # notices only when its wait returns.
            while thread.is_alive():
                thread.join(_LOOK_ROUND_S)
    except BaseException as error:
        failures.append(error)
        for thread in started:
            if thread.ident is not None:
                thread.join()
    if failures:
        raise failures[0]
