"""The put lock: one append at a time, first come, first served."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from reput_broker.config.sections import StoreConfig
from reput_broker.put.put_lock import Fence, Fenced, PutLock


@pytest.mark.trio
async def test_appends_that_wait_go_in_the_order_they_came() -> None:
    lock = PutLock(Fence(), StoreConfig())
    order: list[int] = []

    async def append(number: int) -> None:
        async with lock.held():
            assert lock.is_held
            await trio.lowlevel.checkpoint()
            order.append(number)

    async with trio.open_nursery() as nursery, lock.held():
        for number in range(5):
            nursery.start_soon(append, number)
            await trio.testing.wait_all_tasks_blocked()
        assert not order
    assert order == list(range(5))
    assert not lock.is_held


@pytest.mark.trio
async def test_a_cancelled_wait_leaves_the_lock_to_the_others() -> None:
    lock = PutLock(Fence(), StoreConfig())
    got = trio.Event()

    async def take() -> None:
        async with lock.held():
            got.set()

    async with trio.open_nursery() as nursery:
        async with lock.held():
            with trio.move_on_after(0) as scope:
                async with lock.held():
                    raise AssertionError("another append holds it")
            assert scope.cancelled_caught
            nursery.start_soon(take)
            await trio.testing.wait_all_tasks_blocked()
            assert not got.is_set()
        await got.wait()
    assert not lock.is_held
    assert lock.call_now(str, 1) == "1"


@pytest.mark.trio
async def test_nothing_is_appended_after_a_wait_in_which_the_fence_was_closed() -> None:
    """The end of the log is final as soon as a hand-over has closed the fence."""
    fence = Fence()
    lock = PutLock(fence, StoreConfig())
    appended: list[int] = []

    class Files:
        def needs_new_file(self, _size: int) -> bool:
            return not appended and fence.refusal() is None

        def note_file_wait(self) -> None:
            pass

        def make_log_file(self) -> None:
            fence.close("handing over to member 2")

    files: Any = Files()
    with pytest.raises(Fenced, match="handing over to member 2"):
        await lock.call(files, 100, lambda: appended.append(1))
    with pytest.raises(Fenced):
        await lock.call(files, 100, lambda: appended.append(2))
    fence.reopen()
    appended.append(0)
    await lock.call(files, 100, lambda: appended.append(3))
    assert appended == [0, 3]
