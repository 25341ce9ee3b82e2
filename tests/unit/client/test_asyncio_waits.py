"""Waits of asyncio programs: for sockets that stay registered, and for events."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVarTuple

import anyio
import pytest

from reput_client.transport.aio import AnyioRuntime, AsyncioEvent, SocketWatch

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Ts = TypeVarTuple("Ts")
SOON_S = 10.0
"""Passes only on failure."""


def unexpected() -> None:
    raise AssertionError("there is nothing to read")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts registrations of sockets, and iterations."""

    added = removed = turns = 0

    def add_reader(self, fd: FileDescriptorLike, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        self.added += 1
        super().add_reader(fd, callback, *args)

    def remove_reader(self, *arguments: Any) -> bool:
        self.removed += 1
        return super().remove_reader(*arguments)

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


def run(work: Coroutine[Any, Any, None]) -> CountingLoop:
    loop = CountingLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(work, 30))
    finally:
        loop.close()
    return loop


def test_a_socket_is_registered_once_for_many_waits(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    waits, got = 0, b""

    def read() -> None:
        nonlocal got
        got += near.recv(10)

    async def work() -> None:
        nonlocal waits, got
        watch = SocketWatch()
        sockets = (near,)
        for number in range(50):
            far.send(bytes([number]))
            got = b""
            while not got:
                await watch.wait(sockets, SOON_S, read)
                waits += 1
            assert got == bytes([number])
        watch.forget(near)

    loop = run(work())
    assert loop.added == 1
    assert waits == 50, "no wait ends for what has been read already"


def test_data_without_a_waiter_does_not_keep_the_loop_busy(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends

    async def work() -> None:
        watch = SocketWatch()
        sockets = (near,)
        far.send(b"a")
        await watch.wait(sockets, SOON_S, lambda: near.recv(10))
        far.send(b"b")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        before = loop.turns
        await asyncio.sleep(0.05)
        assert loop.turns - before < 10
        got: list[bytes] = []
        await watch.wait(sockets, SOON_S, lambda: got.append(near.recv(10)))
        assert got == [b"b"], "the next wait hears of it all the same"

    run(work())


def test_time_limits_that_come_and_go_are_each_kept(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends

    async def work() -> None:
        watch = SocketWatch()
        loop = asyncio.get_running_loop()
        sockets = (near,)
        for limit_s in (0.05, 0.01, 0.03, 0.0):
            started_at = loop.time()
            await watch.wait(sockets, limit_s, unexpected)
            assert limit_s <= loop.time() - started_at < SOON_S / 2
        for first_s, second_s in ((SOON_S, 0.02), (0.02, 0.06), (math.inf, 0.02)):
            far.send(b"x")
            await watch.wait(sockets, first_s, lambda: near.recv(10))
            started_at = loop.time()
            while loop.time() - started_at < second_s:
                await watch.wait(sockets, second_s - (loop.time() - started_at), unexpected)
            assert loop.time() - started_at < SOON_S / 2

    run(work())


def test_an_interrupt_and_a_closed_socket_end_the_wait(ends: tuple[socket.socket, socket.socket]) -> None:
    near, _ = ends

    async def work() -> None:
        watch = SocketWatch()
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, watch.interrupt)
        await watch.wait((near,), SOON_S, unexpected)
        loop.call_later(0.01, watch.forget, near)
        await watch.wait((near,), SOON_S, unexpected)
        watch.interrupt()  # without a waiter
        assert loop.remove_reader(near.fileno()) is False, "it is registered no more"

    run(work())


def test_several_sockets_are_watched_and_others_next_time(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    third, fourth = socket.socketpair()
    got: list[bytes] = []

    async def work() -> None:
        watch = SocketWatch()
        third.setblocking(False)
        fourth.send(b"4")
        await watch.wait((near, third), SOON_S, lambda: got.append(third.recv(10)))
        far.send(b"1")
        await watch.wait((near,), SOON_S, lambda: got.append(near.recv(10)))
        assert got == [b"4", b"1"]
        assert asyncio.get_running_loop().remove_reader(third.fileno()) is False

    with third, fourth:
        run(work())


@pytest.mark.parametrize("by_scope", [False, True])
def test_a_cancelled_wait_leaves_the_watch_usable(ends: tuple[socket.socket, socket.socket], by_scope: bool) -> None:
    near, far = ends

    async def work() -> None:
        watch = SocketWatch()
        sockets = (near,)
        if by_scope:
            with anyio.move_on_after(0.01) as scope:
                await watch.wait(sockets, SOON_S, unexpected)
            assert scope.cancelled_caught
            with anyio.CancelScope() as dead:
                dead.cancel()
                await watch.wait(sockets, SOON_S, unexpected)
            assert dead.cancelled_caught
        else:
            task = asyncio.create_task(watch.wait(sockets, SOON_S, unexpected))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        far.send(b"x")
        got: list[bytes] = []
        await watch.wait(sockets, SOON_S, lambda: got.append(near.recv(10)))
        assert got == [b"x"]

    run(work())


def test_what_the_reading_raises_reaches_the_waiting_task(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends

    def fail() -> None:
        near.recv(10)
        raise TimeoutError("from a signal handler")

    async def work() -> None:
        watch = SocketWatch()
        sockets = (near,)
        far.send(b"x")
        with pytest.raises(TimeoutError, match="signal handler"):
            await watch.wait(sockets, SOON_S, fail)
        far.send(b"y")
        got: list[bytes] = []
        await watch.wait(sockets, SOON_S, lambda: got.append(near.recv(10)))
        assert got == [b"y"]

    run(work())


def test_what_the_reading_raises_after_it_has_woken_the_task_reaches_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends

    async def work() -> None:
        watch = SocketWatch()
        sockets = (near,)

        def wake_and_fail() -> None:
            near.recv(10)
            watch.interrupt()  # as the answer of the waiting task does
            raise TimeoutError("from a signal handler")

        far.send(b"x")
        with pytest.raises(TimeoutError, match="signal handler"):
            await watch.wait(sockets, SOON_S, wake_and_fail)
        far.send(b"y")
        await watch.wait(sockets, SOON_S, lambda: near.recv(10))

    run(work())


def test_bytes_that_come_after_an_interrupt_are_left_to_the_next_wait(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends

    async def work() -> None:
        watch = SocketWatch()
        sockets = (near,)
        far.send(b"x")
        asyncio.get_running_loop().call_soon(watch.interrupt)
        await watch.wait(sockets, SOON_S, unexpected)
        got: list[bytes] = []
        await watch.wait(sockets, SOON_S, lambda: got.append(near.recv(10)))
        assert got == [b"x"]

    run(work())


def test_a_watch_knows_its_loop() -> None:
    watches: list[SocketWatch] = []

    async def make() -> None:
        watches.append(SocketWatch())
        assert watches[-1].is_of_running_loop

    async def look() -> None:
        assert not watches[0].is_of_running_loop

    run(make())
    run(look())


def test_an_event_wakes_all_waiters_and_later_waits_return_at_once() -> None:
    async def work() -> None:
        event = AsyncioEvent()
        ended: list[str] = []

        async def wait(name: str, timeout_s: float) -> None:
            await event.wait(timeout_s)
            ended.append(name)

        tasks = [asyncio.create_task(wait(name, limit)) for name, limit in (("a", SOON_S), ("b", math.inf))]
        tasks.append(asyncio.create_task(wait("short", 0.01)))
        cancelled = asyncio.create_task(wait("cancelled", SOON_S))
        await asyncio.sleep(0.03)
        assert ended == ["short"]
        cancelled.cancel()
        await asyncio.sleep(0)
        event.set()
        await asyncio.gather(*tasks)
        await event.wait(math.inf)
        assert sorted(ended) == ["a", "b", "short"]

    run(work())


def test_another_thread_that_imports_trio_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is being imported has not all its names yet."""
    monkeypatch.setitem(sys.modules, "trio", ModuleType("trio"))
    runtime = AnyioRuntime()

    async def main() -> float:
        return runtime.now()

    assert asyncio.run(main()) > 0
