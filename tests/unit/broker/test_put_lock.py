"""The put lock: one append at a time, first come, first served."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel
import trio.testing

from reput_broker.put.put_lock import PutLock


@pytest.mark.trio
async def test_appends_that_wait_go_in_the_order_they_came() -> None:
    lock = PutLock()
    lock.acquire_nowait()
    order: list[int] = []

    async def append(number: int) -> None:
        async with lock.held():
            assert lock.is_held
            await trio.lowlevel.checkpoint()
            order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(append, number)
            await trio.testing.wait_all_tasks_blocked()
        lock.release()
    assert order == list(range(5))
    assert not lock.is_held


@pytest.mark.trio
async def test_a_cancelled_wait_leaves_the_lock_to_the_others() -> None:
    lock = PutLock()
    lock.acquire_nowait()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0) as scope:
            async with lock.held():
                raise AssertionError("it is held by somebody else")
        assert scope.cancelled_caught
        got = trio.Event()

        async def take() -> None:
            async with lock.held():
                got.set()

        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        assert not got.is_set()
        lock.release()
        await got.wait()
    assert not lock.is_held
    lock.acquire_nowait()
    lock.release()
