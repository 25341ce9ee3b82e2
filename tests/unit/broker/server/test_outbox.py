"""Unsent answers: sent at once if the peer reads them, otherwise as it reads, and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from reput_broker.observe.counters import ListenerTraffic
from reput_broker.server.transport import Outbox, Transport


class Peer(Transport):
    """A transport that takes `room` bytes without waiting, and the rest `step` at a time when it is let."""

    def __init__(self, room: int = 1 << 30, step: int = 3) -> None:
        self.room, self.step = room, step
        self.taken = b""
        self.sends = 0
        self.reads = trio.Semaphore(0)

    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        self.sends += 1
        data = b"".join(buffers)[: self.room]
        self.room -= len(data)
        self.taken += data
        return len(data)

    async def send(self, data: memoryview) -> int:
        await self.reads.acquire()
        self.taken += bytes(data[: self.step])
        return min(self.step, len(data))

    async def arrived(self) -> None:
        raise AssertionError("an outbox does not read")

    async def receive(self) -> bytes:
        raise AssertionError("an outbox does not read")

    def end_sending(self) -> None:
        pass

    def close(self) -> None:
        self.reads.release()


class Box:
    """An outbox with its drain task in a nursery."""

    def __init__(self, peer: Peer, nursery: trio.Nursery, limit: int = 10) -> None:
        self.buffered = 0
        self.traffic = ListenerTraffic()
        self.outbox = Outbox(
            peer,
            limit=lambda: limit,
            note_buffered=self._note,
            traffic=self.traffic,
            start_drain=lambda: nursery.start_soon(self.outbox.drain),
        )

    def _note(self, difference: int) -> None:
        self.buffered += difference


@pytest.mark.trio
async def test_queued_answers_leave_with_one_send() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        box = Box(peer, nursery)
        for part in (b"a", b"b", b"c"):
            box.outbox.write(part)
        assert peer.taken == b""
        box.outbox.flush()
        assert (peer.taken, peer.sends) == (b"abc", 1)
        assert not box.outbox.is_draining
        box.outbox.flush()
        assert peer.sends == 1, "nothing to send, nothing sent"


@pytest.mark.trio
async def test_what_the_peer_does_not_read_follows_in_order_and_is_accounted() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(room=4)
        box = Box(peer, nursery)
        box.outbox.write(b"0123456789")
        box.outbox.flush()
        assert peer.taken == b"0123"
        await trio.testing.wait_all_tasks_blocked()
        assert box.traffic.bytes_out == 4
        assert 10 <= box.buffered < 100, "a buffer is held whole until all of it has left"
        box.outbox.write(b"abcdefghij")
        box.outbox.flush()
        assert 20 <= box.buffered < 200, "what waits behind counts too"
        assert box.outbox.is_crowded
        for _ in range(6):
            peer.reads.release()
        await box.outbox.drained()
        assert peer.taken == b"0123456789abcdefghij"
        assert box.buffered == 0
        assert not box.outbox.is_crowded
        assert box.traffic.bytes_out == 20


@pytest.mark.trio
async def test_a_closed_outbox_releases_everything() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(room=0)
        box = Box(peer, nursery)
        box.outbox.write(b"never taken")
        box.outbox.flush()
        await trio.testing.wait_all_tasks_blocked()
        box.outbox.write(b"nor this")
        assert 19 <= box.buffered < 200
        box.outbox.close()
        peer.close()
        await box.outbox.drained()
    assert box.buffered == 0


@pytest.mark.trio
async def test_from_the_first_moment_it_is_known_since_when_the_peer_takes_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        await trio.sleep(1000)
        peer = Peer(room=0, step=100)
        box = Box(peer, nursery)
        box.outbox.write(b"x")
        box.outbox.flush()
        assert box.outbox.is_draining
        assert box.outbox.progress_at == trio.current_time()
        peer.reads.release()


@pytest.mark.trio
async def test_large_buffers_are_not_copied_together() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(room=0, step=1 << 30)
        box = Box(peer, nursery)
        parts = [bytes([number]) * size for number, size in enumerate([10, 20, 300_000, 5, 400_000, 7, 8])]
        for part in parts:
            box.outbox.write(part)
        box.outbox.flush()
        for _ in parts:
            peer.reads.release()
        await box.outbox.drained()
        assert peer.taken == b"".join(parts)
        assert peer.reads.value == len(parts) - 5, "small ones between large ones left together"
