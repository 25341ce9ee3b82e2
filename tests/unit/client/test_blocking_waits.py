"""The waits of the blocking API."""

from __future__ import annotations

import contextlib
import errno
import math
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import pytest

from reput_client.blocking.runtime import BlockingRuntime
from reput_client.errors import ClientClosed, RequestTimeout


class Handled(Exception):
    """Raised by the signal handler."""


def _nothing() -> None: ...


def test_a_signal_that_another_thread_got_ends_a_wait_for_an_answer() -> None:
    """The system delivers it to any thread; the handler runs in the main one, which waits at a socket."""
    runtime = BlockingRuntime()
    here, there = socket.socketpair()
    waiting = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        raise Handled

    def get_it() -> None:
        waiting.wait()
        time.sleep(0.2)  # the main thread is waiting
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    async def wait() -> None:
        waiting.set()
        await runtime.wait_readable((here,), 30.0, _nothing)

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
        await runtime.wait_readable((here,), timeout_s, _nothing)
        return time.monotonic() - began

    try:
        assert runtime.run(wait(1.3)) >= 1.3  # more than one slice
        assert runtime.run(wait(0.0)) < 1.0
        there.send(b"x")
        assert runtime.run(wait(30.0)) < 10.0
    finally:
        runtime.close()
        here.close()
        there.close()


def test_an_exception_in_a_wait_cancels_the_work_and_leaves_the_client_whole() -> None:
    runtime = BlockingRuntime()
    ended: list[str] = []

    def interrupt() -> None:
        raise Handled

    async def wait() -> None:
        try:
            await runtime.outside(interrupt)
        finally:
            ended.append("cleaned up")

    with pytest.raises(Handled):
        runtime.run(wait())
    assert ended == ["cleaned up"]
    assert runtime.interruption is None
    assert runtime.call(lambda: 1) == 1


@pytest.mark.parametrize("kind", [Handled, TimeoutError])
def test_an_exception_in_a_step_closes_the_client_for_good(kind: type[Exception]) -> None:
    runtime = BlockingRuntime()
    closed: list[bool] = []
    runtime.on_interrupt(lambda: closed.append(True))

    def interrupted() -> None:
        raise kind

    with pytest.raises(kind):
        runtime.call(interrupted)
    assert closed == [True]
    with pytest.raises(ClientClosed, match=rf"an exception \({kind.__name__}\) interrupted it .*make a new one"):
        runtime.call(lambda: 1)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        KeyError(),
        RequestTimeout("x", 1.0),
        OSError(errno.EMFILE, "Too many open files"),
        TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
    ],
    ids=repr,
)
def test_what_a_call_itself_raises_closes_nothing(error: Exception) -> None:
    """Wrong arguments, the client's own errors, the operating system's."""
    runtime = BlockingRuntime()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        runtime.call(fail)
    assert runtime.call(lambda: 1) == 1


def test_what_an_iterator_of_the_application_raises_closes_nothing() -> None:
    runtime = BlockingRuntime()

    def items() -> Iterator[int]:
        yield 1
        raise Handled

    async def work() -> list[int]:
        return list(runtime.read(items()))

    with pytest.raises(Handled):
        runtime.run(work())
    assert runtime.call(lambda: 1) == 1


@pytest.mark.parametrize("error", [Handled, TimeoutError])
def test_what_a_lazy_sequence_of_the_application_raises_closes_nothing(error: type[Exception]) -> None:
    """Such as the rows of a table, read on demand."""
    runtime = BlockingRuntime()

    class Rows(Sequence[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: Any) -> Any:
            if index:
                raise error
            return 1

    async def work() -> list[int]:
        return list(runtime.read(Rows()))

    with pytest.raises(error):
        runtime.run(work())
    assert runtime.call(lambda: 1) == 1


def test_an_interrupt_of_one_thread_leaves_the_lock_of_another_alone() -> None:
    """The interrupted thread must not release a lock held by another."""
    runtime = BlockingRuntime()
    inside, leave = threading.Event(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def step() -> None:
        inside.set()
        leave.wait(30.0)
        inside.clear()

    def handle(number: int, frame: FrameType | None) -> None:
        raise Handled

    other = threading.Thread(target=runtime.call, args=(step,))

    def hold_the_lock() -> None:
        other.start()
        inside.wait(30.0)

    def send() -> None:
        inside.wait(30.0)
        time.sleep(0.05)  # the main thread has returned and wants the lock
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Handled):
            runtime.run(runtime.outside(hold_the_lock))
        assert inside.is_set()
        with pytest.raises(ClientClosed):
            runtime.call(lambda: pytest.fail("two threads run the client's code"))
    finally:
        leave.set()
        signal.signal(signal.SIGUSR1, before)
        other.join()
        sender.join()


@pytest.mark.parametrize("how", ["event", "readable", "writable"])
def test_threads_that_wait_notice_that_another_was_interrupted(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr("reput_client.blocking.runtime._SLICE_S", 0.01)
    runtime = BlockingRuntime()
    here, there = socket.socketpair()
    here.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            here.send(bytes(65536))
    waits = {
        "event": lambda: runtime.event().wait(math.inf),
        "readable": lambda: runtime.wait_readable((here,), math.inf, _nothing),
        "writable": lambda: runtime.wait_writable(here, math.inf),
    }
    waiting = threading.Event()
    raised: list[BaseException] = []

    async def wait() -> None:
        waiting.set()
        await waits[how]()

    def work() -> None:
        try:
            runtime.run(wait())
        except ClientClosed as error:
            raised.append(error)

    def interrupted() -> None:
        raise Handled

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait(30.0)
    with pytest.raises(Handled):
        runtime.call(interrupted)
    thread.join(30.0)
    assert len(raised) == 1
    runtime.close()
    here.close()
    there.close()
