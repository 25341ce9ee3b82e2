"""The runtime of programs without an event loop: every wait blocks the calling thread.

One lock stands for the event loop: a thread holds it while it runs the client's code and lets go of it while
it waits, so that several threads may share one client and pipeline over its one connection. After a fork the
child starts with a lock of its own and connects anew; it never touches the parent's connection.

Signal handlers run between any two instructions of the main thread, and may raise there. So the lock is let go of
inside the `try` whose `finally` takes it again: nothing comes between entering that and the release.
"""

from __future__ import annotations

import _thread
import math
import os
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from reput_protocol.errors import ReputError

T = TypeVar("T")
_LOOK_ROUND_S = 1.0
_LOOK_ROUND_MS = 1000


class BlockingEvent:
    """An event whose wait lets go of the client's lock."""

    __slots__ = ("_condition", "_flag")

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self._flag = False

    def set(self) -> None:
        """Wake whoever waits. The caller holds the client's lock."""
        self._flag = True
        self._condition.notify_all()

    async def wait(self, timeout_s: float) -> None:
        """Block until set or `timeout_s` is over; in short waits, as `_poll` says."""
        until = time.monotonic() + timeout_s
        while not self._flag and timeout_s > 0:
            self._condition.wait(min(timeout_s, _LOOK_ROUND_S))
            timeout_s = until - time.monotonic()


class BlockingRuntime:
    """Waits that block, and `run`, which drives a coroutine of the client to its end in the calling thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._on_fork: Callable[[], None] | None = None
        self._on_interrupt: Callable[[], None] | None = None
        # How many threads want the lock; only a hint, so it is not itself guarded.
        self._contenders = 0
        self._polling = False
        self._interrupted = False
        self._closing = False
        self._waker: tuple[socket.socket, socket.socket] | None = None
        self._poller: select.poll | None = None
        self._polled: tuple[socket.socket, ...] = ()

    def on_fork(self, callback: Callable[[], None]) -> None:
        """Call `callback` in a forked child before the first use of the client there."""
        self._on_fork = callback

    def on_interrupt(self, callback: Callable[[], None]) -> None:
        """Call `callback`, under the lock, where `run` ends by what the client itself does not raise.

        Such as a `KeyboardInterrupt`, which may come between any two of its instructions.
        """
        self._on_interrupt = callback

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; it runs in this thread and holds the lock except while it waits."""
        if os.getpid() != self._pid:
            self._after_fork()
        lock = self._lock
        contends = lock.locked()
        try:
            if contends:
                self._contenders += 1
            with lock:  # and not `acquire` and `try`: a signal handler may raise between these
                if contends:
                    self._contenders -= 1
                    contends = False
                try:
                    work.send(None)
                except StopIteration as done:
                    result: T = done.value
                    return result
                except ReputError:
                    raise
                except BaseException:
                    # Maybe a signal handler's, from the middle of a step.
                    if self._on_interrupt is not None:
                        self._on_interrupt()
                    raise
        finally:
            if contends:
                self._contenders -= 1
        work.close()
        raise AssertionError("a coroutine of the client awaited something that is not its runtime's")

    def call(self, function: Callable[[], T]) -> T:
        """Return what `function`, which never waits, returns; no other thread runs the client's code meanwhile."""
        if os.getpid() != self._pid:
            self._after_fork()
        with self._lock:
            return function()

    def call_soon(self, function: Callable[[], None]) -> None:
        """As `call`, but never waits: where the client's code is running, `function` follows as soon as that pauses.

        So a signal handler may call this, whatever it has interrupted.
        """
        if self._lock.acquire(blocking=False):
            try:
                function()
            finally:
                self._lock.release()
        else:
            # Not a `Thread`: starting one takes locks of its own, which the interrupted code might hold.
            _thread.start_new_thread(self.call, (function,))

    def _after_fork(self) -> None:
        # Another thread of the parent may have held the lock when it forked; here nobody will ever release it.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._contenders = 0
        self._polling = self._interrupted = False
        self._close_waker()
        if self._on_fork is not None:
            self._on_fork()

    # The monotonic clock; read six times a send, so without a call of our own around it.
    now = staticmethod(time.monotonic)

    def event(self) -> BlockingEvent:
        """Return a new event under this client's lock."""
        return BlockingEvent(self._lock)

    async def pause(self) -> None:
        """Let other threads that want the lock have it for a moment."""
        if self._contenders:
            self._sleep(0.0)

    async def sleep(self, seconds: float) -> None:
        """Block for `seconds` without the lock."""
        self._sleep(seconds)

    def _sleep(self, seconds: float) -> None:
        try:
            self._lock.release()
            time.sleep(seconds)
        finally:
            self._lock.acquire()

    async def wait_readable(self, sockets: tuple[socket.socket, ...], timeout_s: float) -> None:
        """Block until a socket is readable, interrupted, closed, or `timeout_s` is over."""
        poller = self._poller
        if poller is None or self._polled is not sockets:
            poller = self._new_poller(sockets)
        self._polling = True
        lock = self._lock
        try:
            # The first wait of `_poll`, here since usually it is the only one.
            until = time.monotonic() + timeout_s
            try:
                lock.release()
                found = poller.poll(_milliseconds(timeout_s) if timeout_s < _LOOK_ROUND_S else _LOOK_ROUND_MS)
            finally:
                lock.acquire()
            if not found and timeout_s > _LOOK_ROUND_S:
                self._poll(poller, until - time.monotonic())
        finally:
            self._polling = False
            if self._interrupted and self._waker is not None:
                self._interrupted = False
                self._waker[0].recv(1)
            if self._closing:
                self._close_waker()

    def _new_poller(self, sockets: tuple[socket.socket, ...]) -> select.poll:
        if self._waker is None:
            self._waker = socket.socketpair()
        poller = select.poll()
        for sock in (*sockets, self._waker[0]):
            poller.register(sock, select.POLLIN)
        self._poller, self._polled = poller, sockets  # last: an interrupt before must not leave half of it
        return poller

    def interrupt(self) -> None:
        """Wake the thread that polls, if one does."""
        if self._polling and not self._interrupted and self._waker is not None:
            self._interrupted = True
            self._waker[1].send(b"\0")

    async def wait_writable(self, sock: socket.socket, timeout_s: float) -> None:
        """Block until the socket takes bytes, is closed, or `timeout_s` is over."""
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        self._poll(poller, timeout_s)

    def _poll(self, poller: select.poll, timeout_s: float) -> None:
        """Wait without the lock.

        A long wait is made of short ones: Python calls signal handlers in the main thread, and where another thread got
        the signal, the main one only notices between two waits.
        """
        until = time.monotonic() + timeout_s
        lock = self._lock
        try:
            lock.release()
            while not poller.poll(_milliseconds(min(timeout_s, _LOOK_ROUND_S))):
                timeout_s = until - time.monotonic()
                if timeout_s <= 0:
                    return
        finally:
            lock.acquire()

    def close_socket(self, sock: socket.socket) -> None:
        """Close the socket; threads that poll it wake up."""
        with suppress(OSError):  # not connected yet, or the peer has reset it
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def close(self) -> None:
        """Free the descriptors of the runtime itself. The client is closed already and waits no more."""
        with self._lock:
            self._closing = True
            if not self._polling:  # else the thread that polls does it on its way out
                self._close_waker()

    def _close_waker(self) -> None:
        if self._waker is not None:
            for end in self._waker:
                end.close()
            self._waker = None
            self._poller = None

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call `function` here, without the lock."""
        try:
            self._lock.release()
            return function()
        finally:
            self._lock.acquire()

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], on_end: Callable[[], None] | None = None
    ) -> None:
        """Run `work` in a thread of its own, which holds up no exit of the program."""

        def run() -> None:
            try:
                self.run(work())
            finally:
                if on_end is not None:
                    self.call(on_end)

        threading.Thread(target=run, name="reput-group", daemon=True).start()

    async def outside(self, function: Callable[[], None]) -> None:
        """Call `function` here, without the lock, so that it may use the client."""
        lock = self._lock
        try:
            lock.release()
            function()
        finally:
            lock.acquire()

    async def shielded(self, timeout_s: float, work: Callable[[], Awaitable[Any]]) -> None:
        """Await `work()`; nothing can cancel it here, and its own deadlines bound it."""
        del timeout_s
        await work()


def _milliseconds(seconds: float) -> int:
    """Return what `poll` is given; it may last longer, never shorter."""
    return max(0, math.ceil(seconds * 1000))
