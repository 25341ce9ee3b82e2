"""Handlers in several threads, and the thread that waits for them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from reput_client.blocking.consumer import run_in_threads
from reput_client.received import ReceivedMessage


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Set by the signal handler."""
    event = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_another_thread_got_is_handled(over: threading.Event) -> None:
    """The system delivers it to any thread; the handler runs in the main one, which waits."""
    deadline = time.monotonic() + 10.0
    sent = threading.Event()

    def take(_: float) -> ReceivedMessage | None:
        if not sent.is_set():
            sent.set()
            time.sleep(0.2)  # the main thread is waiting
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        over.wait(0.05)
        return None

    slots: list[ReceivedMessage | None] = [None, None]
    run_in_threads(take, lambda: over.is_set() or time.monotonic() > deadline, lambda _: None, slots)
    assert over.is_set()
    assert time.monotonic() < deadline
