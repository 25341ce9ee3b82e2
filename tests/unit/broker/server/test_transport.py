"""Sockets as a connection uses them: nothing lost, fair scheduling, few useless polls."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from reput_broker.server.transport import SocketTransport


class Counting(socket.socket):
    """Counts receives."""

    receives = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        self.receives += 1
        return super().recv(size, flags)


@pytest.fixture
def ends() -> Iterator[tuple[Counting, socket.socket]]:
    ours, theirs = socket.socketpair()
    with Counting(fileno=ours.detach()) as counting, theirs:
        yield counting, theirs


@pytest.mark.trio
async def test_sent_bytes_are_received_in_order_to_their_end(ends: tuple[Counting, socket.socket]) -> None:
    transport = SocketTransport(ends[0])
    data = bytes(range(256)) * 4096  # more than one read
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, _send_and_end, ends[1], data)
        while part := await transport.receive():
            received += part
    assert bytes(received) == data


def _send_and_end(peer: socket.socket, data: bytes) -> None:
    peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)


@pytest.mark.trio
async def test_a_busy_peer_leaves_others_their_turn(ends: tuple[Counting, socket.socket]) -> None:
    transport = SocketTransport(ends[0])
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(20):
            ends[1].send(b"x")
            assert await transport.receive() == b"x"
        nursery.cancel_scope.cancel()
    assert turns >= 15


@pytest.mark.trio
async def test_a_peer_with_long_pauses_is_hardly_ever_looked_at_in_vain(ends: tuple[Counting, socket.socket]) -> None:
    transport = SocketTransport(ends[0])
    reads = 200

    async def peer(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        for _ in range(reads):
            await trio.testing.wait_all_tasks_blocked()
            ends[1].send(b"x")

    async with trio.open_nursery() as nursery:
        await nursery.start(peer)
        for _ in range(reads):
            assert await transport.receive() == b"x"
    # Two for each read cannot be avoided: one finds nothing, one comes after the wait. More only now and then.
    assert ends[0].receives <= 2 * reads + 30


@pytest.mark.trio
async def test_arrived_bytes_are_still_received() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        transport = SocketTransport(ours)
        with trio.move_on_after(0.01) as waiting:
            await transport.arrived()
        assert waiting.cancelled_caught
        for data in (b"first", b"second"):
            theirs.send(data)
            await transport.arrived()
            await transport.arrived()
            assert await transport.receive() == data
        theirs.shutdown(socket.SHUT_WR)
        await transport.arrived()
        assert await transport.receive() == b""
        transport.close()


@pytest.mark.trio
async def test_closing_ends_a_receive_that_waits(ends: tuple[Counting, socket.socket]) -> None:
    transport = SocketTransport(ends[0])
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises((trio.ClosedResourceError, OSError)):
                await transport.receive()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        transport.close()
        transport.close()


@pytest.mark.trio
async def test_a_full_socket_takes_what_it_can_and_the_rest_later(ends: tuple[Counting, socket.socket]) -> None:
    transport = SocketTransport(ends[0])
    data = bytes(8 << 20)
    sent = transport.try_send([data[: 4 << 20], memoryview(data)[4 << 20 :]])
    assert 0 < sent < len(data)
    assert transport.try_send([data]) == 0
    received = 0

    async def read() -> None:
        nonlocal received
        while received < len(data):
            received += len(await trio.to_thread.run_sync(ends[1].recv, 1 << 20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        rest = memoryview(data)[sent:]
        while len(rest):
            rest = rest[await transport.send(rest) :]
    assert received == len(data)
