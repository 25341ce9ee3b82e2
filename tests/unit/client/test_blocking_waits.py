"""The waits of the blocking face."""

from __future__ import annotations

import signal
import socket
import threading
import time
from types import FrameType

import pytest

from reput_client.blocking.runtime import BlockingRuntime


class Handled(Exception):
    """What the signal handler raises."""


def test_a_signal_that_another_thread_got_ends_a_wait_for_an_answer() -> None:
    """The kernel gives it to any thread; the handler runs in the main one, which waits at a socket."""
    runtime = BlockingRuntime()
    here, there = socket.socketpair()
    waiting = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        raise Handled

    def get_it() -> None:
        waiting.wait()
        time.sleep(0.2)  # the main thread has begun to wait
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    async def wait() -> None:
        waiting.set()
        await runtime.wait_readable((here,), 30.0)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=get_it)
    thread.start()
    try:
        began = time.monotonic()
        with pytest.raises(Handled):
            runtime.run(wait())
        assert time.monotonic() - began < 15
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()
        runtime.close()
        here.close()
        there.close()


def test_a_wait_lasts_as_long_as_it_was_given_and_no_longer_than_it_takes() -> None:
    runtime = BlockingRuntime()
    here, there = socket.socketpair()

    async def wait(timeout_s: float) -> float:
        began = time.monotonic()
        await runtime.wait_readable((here,), timeout_s)
        return time.monotonic() - began

    try:
        assert runtime.run(wait(1.3)) >= 1.3  # more than one look round
        assert runtime.run(wait(0.0)) < 1.0
        there.send(b"x")
        assert runtime.run(wait(30.0)) < 10.0
    finally:
        runtime.close()
        here.close()
        there.close()
