"""The socket API of a simulated process: `socket.socket`, trio's waits for it, and trio's own sockets."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

import outcome
import trio
import trio.socket

from simulation.network import WINDOW_BYTES, Lane, Network
from simulation.scheduling import Process, current_process

_FIRST_DESCRIPTOR: Final = 1_000_000

_RealSocket = socket.socket


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class SimulatedSocket:
    """A TCP socket that does not block, in the network of the simulation."""

    network: Network
    _descriptors = count(_FIRST_DESCRIPTOR)

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """Return a real socket to code outside of the simulated processes, and for a real descriptor."""
        fileno = arguments[3] if len(arguments) > 3 else options.get("fileno")
        if current_process() is None or fileno is not None:
            return _RealSocket(*arguments, **options)
        return super().__new__(cls)

    def __init__(self, family: int = socket.AF_INET, type: int = socket.SOCK_STREAM, proto: int = 0) -> None:  # noqa: A002
        process = current_process()
        assert process is not None
        self._begin(process, type)

    def _begin(self, process: Process, kind: int = socket.SOCK_STREAM) -> None:
        self.family, self.type, self.proto = socket.AF_INET, kind, 0
        self._process = process
        self._descriptor = next(self._descriptors)
        self._local: tuple[str, int] | None = None
        self._peer_name: tuple[str, int] | None = None
        self._peer: SimulatedSocket | None = None
        self._lane: Lane | None = None
        self._state = "new"  # then bound, listening, connecting, connected, closed
        self._accepted: deque[SimulatedSocket] = deque()
        self._unread = bytearray()
        self._in_window = 0
        self._at_end = False
        self.has_shut_down = False
        self._has_dialled = False
        self._is_forgotten = False
        self._failure = 0
        self._reader: trio.lowlevel.Task | None = None
        self._writer: trio.lowlevel.Task | None = None
        process.sockets[self] = None

    # -- names and options -------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._state == "closed" else self._descriptor

    def setblocking(self, flag: bool) -> None:
        pass

    def setsockopt(self, *_: Any) -> None:
        pass

    def getsockopt(self, level: int, name: int, buflen: int = 0) -> int:
        if name == socket.SO_ERROR:
            failure, self._failure = self._failure, 0
            return failure
        return int(name == socket.SO_ACCEPTCONN and self._state == "listening")

    def getsockname(self) -> tuple[str, int]:
        self._check_open()
        return self._local or ("0.0.0.0", 0)

    def getpeername(self) -> tuple[str, int]:
        self._check_open()
        if self._peer_name is None or self._state != "connected":
            raise _error(errno.ENOTCONN)
        return self._peer_name

    def _check_open(self) -> None:
        if self._state == "closed":
            raise _error(errno.EBADF)

    # -- listening and connecting ------------------------------------------------------------------------------

    def bind(self, address: tuple[str, int]) -> None:
        host, port = address[:2]
        port = port or self.network.free_port(host)
        holder = self.network.listener((host, port))
        if holder is not None:
            raise _error(errno.EADDRINUSE)
        self._local, self._state = (host, port), "bound"

    def listen(self, backlog: int = 0) -> None:
        assert self._local is not None
        if not self.network.listen(self._local, self):
            raise _error(errno.EADDRINUSE)
        self._state = "listening"

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        self._check_open()
        if not self._accepted:
            raise BlockingIOError(errno.EAGAIN, "no connection waits")
        accepted = self._accepted.popleft()
        assert accepted._peer_name is not None
        return accepted, accepted._peer_name

    def connect(self, address: tuple[str, int]) -> None:
        code = self.connect_ex(address)
        if code:
            raise BlockingIOError(code, os.strerror(code)) if code == errno.EINPROGRESS else _error(code)

    def connect_ex(self, address: tuple[str, int]) -> int:
        self._check_open()
        host = self._process.address
        self._local = (host, self.network.free_port(host))
        if self.type == socket.SOCK_DGRAM:
            self._peer_name, self._state = address, "connected"
            return 0
        self._peer_name = address[:2]
        self._state, self._has_dialled = "connecting", True
        self._lane, back = self.network.lanes(host, address[0])
        self._lane.sender = self
        self._lane.put(0, lambda: self._asked_at(address[:2], back))
        return errno.EINPROGRESS

    def _asked_at(self, address: tuple[str, int], back: Lane) -> None:
        """The first segment has arrived: if a socket listens there, it makes its end."""
        listener = self.network.listener(address)
        if listener is None:
            back.put(0, self._was_refused)
            return
        end: SimulatedSocket = object.__new__(SimulatedSocket)
        end._begin(listener._process)
        end._local, end._peer_name, end._state = address, self._local, "connected"
        end._lane, end._peer, back.sender = back, self, end
        back.put(0, lambda: self._was_accepted(end, listener))

    def _was_refused(self) -> None:
        if self._state == "connecting":
            self._state, self._failure = "new", errno.ECONNREFUSED
            self._wake()

    def _was_accepted(self, end: SimulatedSocket, listener: SimulatedSocket) -> None:
        assert self._lane is not None
        if self._state != "connecting":  # closed meanwhile
            self._lane.put(0, end.was_reset)
            return
        self._state, self._peer = "connected", end
        self._lane.put(0, lambda: listener._arrived(end))
        self._wake()

    def _arrived(self, end: SimulatedSocket) -> None:
        if self._state != "listening":
            end._abort()
        elif end._state == "connected":
            self._accepted.append(end)
            self._wake()

    # -- data --------------------------------------------------------------------------------------------------

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check_open()
        if self._failure:
            failure, self._failure = self._failure, 0
            self._at_end = True
            raise _error(failure)
        if not self._unread:
            if self._at_end:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing to read")
        data = bytes(self._unread[:size])
        if not flags & socket.MSG_PEEK:
            del self._unread[:size]
            self._acknowledge(len(data))
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        data = self.recv(nbytes or len(buffer), flags)
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def _acknowledge(self, size: int) -> None:
        peer, lane = self._peer, self._lane
        if peer is not None and lane is not None:
            lane.put(0, lambda: peer._was_read(size))

    def _was_read(self, size: int) -> None:
        was_full = self._in_window >= WINDOW_BYTES
        self._in_window -= size
        if was_full:
            self._wake()

    def send(self, data: Any, flags: int = 0) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Sequence[Any], *_: Any) -> int:
        self._check_open()
        if self._failure or self.has_shut_down:
            self._failure, failure = 0, self._failure or errno.EPIPE
            raise _error(failure)
        if self._state != "connected" or self._lane is None:
            raise _error(errno.ENOTCONN)
        data = b"".join(buffers)[: WINDOW_BYTES - self._in_window]
        if not data:
            raise BlockingIOError(errno.EAGAIN, "the window is full")
        if self._process.is_killed:
            return len(data)
        self._in_window += len(data)
        first = self._lane.split(len(data))
        for part in (data[:first], data[first:]):
            if part:
                self._lane.put(len(part), lambda part=part: self._has_arrived(part))  # type: ignore[misc]
        return len(data)

    def _has_arrived(self, data: bytes) -> None:
        peer = self._peer
        if peer is None or peer._is_forgotten:
            return
        if peer._state == "closed":
            assert self._lane is not None
            self._lane.reset_sender()
        else:
            peer._unread += data
            peer._wake()

    def shutdown(self, how: int) -> None:
        self._check_open()
        if self._state != "connected":
            raise _error(errno.ENOTCONN)
        if how != socket.SHUT_RD and not self.has_shut_down:
            self.has_shut_down = True
            self._end_sending()

    def _end_sending(self) -> None:
        peer, lane = self._peer, self._lane
        if peer is not None and lane is not None:
            lane.put(0, peer._was_ended)

    def _was_ended(self) -> None:
        self._at_end = True
        self._wake()

    def was_reset(self) -> None:
        """The peer has aborted the connection."""
        if self._state != "closed":
            self._unread.clear()
            self._failure, self._at_end = errno.ECONNRESET, True
            self._wake()

    @property
    def is_connected(self) -> bool:
        """Whether there is a peer."""
        return self._state == "connected" and self._peer is not None

    @property
    def dialled(self) -> tuple[str, int] | None:
        """The address that it has dialled and is connected to."""
        return self._peer_name if self.is_connected and self._has_dialled else None

    def hold(self) -> Callable[[], None]:
        """Let nothing arrive at both ends; return what ends that."""
        lanes = [end._lane for end in (self, self._peer) if end is not None and end._lane is not None]
        for lane in lanes:
            lane.hold()

        def release() -> None:
            for lane in lanes:
                lane.release()

        return release

    def cut_off(self) -> None:
        """Reset the connection at both ends, as a box between them may."""
        assert self._peer is not None
        self._peer.was_reset()
        self.was_reset()

    def leave_half_open(self) -> None:
        """Reset the end that has dialled, as a box between both may; the other end hears nothing of it."""
        assert self._peer is not None
        dialled = self if self._has_dialled else self._peer
        dialled._is_forgotten = True
        dialled.was_reset()
        dialled._peer = None

    def _abort(self) -> None:
        peer, lane = self._peer, self._lane
        if self._state == "connected" and peer is not None and lane is not None:
            lane.put(0, peer.was_reset)
        self._state = "closed"

    # -- closing -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close it, if its process lives; what was sent still arrives, as with a kernel's socket."""
        if not self._process.is_killed:
            self.end()

    def end(self, *, silently: bool = False) -> None:
        """Close it, as a kernel does when its process ends; `silently` if the machine has no power."""
        if self._state == "closed":
            return
        if self._local is not None:
            self.network.no_longer_listens(self._local, self)
        for waiting in self._accepted:
            waiting.end(silently=silently)
        if silently:
            pass
        elif self._unread:
            self._abort()
        elif self._state == "connected" and not self.has_shut_down:
            self._end_sending()
        self._state = "closed"
        self._process.sockets.pop(self, None)
        self._wake()

    def detach(self) -> int:
        raise NotImplementedError

    def __enter__(self) -> SimulatedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- waiting -----------------------------------------------------------------------------------------------

    @property
    def _can_read(self) -> bool:
        return bool(self._unread or self._accepted or self._at_end or self._failure)

    @property
    def _can_write(self) -> bool:
        if self._state == "connecting":
            return False
        return bool(self._in_window < WINDOW_BYTES or self._failure or self.has_shut_down)

    def _wake(self) -> None:
        closed = self._state == "closed"
        if self._reader is not None and (closed or self._can_read):
            reader, self._reader = self._reader, None
            trio.lowlevel.reschedule(reader)
        if self._writer is not None and (closed or self._can_write):
            writer, self._writer = self._writer, None
            trio.lowlevel.reschedule(writer)

    async def wait_readable(self) -> None:
        """As `trio.lowlevel.wait_readable`."""
        self._check_waitable(self._reader)
        if self._can_read:
            await trio.lowlevel.checkpoint()
            return
        self._reader = trio.lowlevel.current_task()

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._check_waitable(None)

    async def wait_writable(self) -> None:
        """As `trio.lowlevel.wait_writable`."""
        self._check_waitable(self._writer)
        if self._can_write:
            await trio.lowlevel.checkpoint()
            return
        self._writer = trio.lowlevel.current_task()

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._check_waitable(None)

    def _check_waitable(self, waiting: trio.lowlevel.Task | None) -> None:
        if self._state == "closed":
            raise trio.ClosedResourceError("the socket was closed")
        if waiting is not None:
            raise trio.BusyResourceError("another task waits for this socket")

    def notify_closing(self) -> None:
        """As `trio.lowlevel.notify_closing`: waiting tasks raise ClosedResourceError."""
        for name in ("_reader", "_writer"):
            task = getattr(self, name)
            if task is not None:
                setattr(self, name, None)
                trio.lowlevel.reschedule(task, _closed())


class TrioSocket(trio.socket.SocketType):
    """The same as one of trio's sockets, for `trio.open_tcp_stream` and `trio.SocketStream`."""

    def __init__(self, sock: SimulatedSocket) -> None:
        self._sock = sock
        for name in (
            "fileno", "setsockopt", "getsockopt", "getsockname", "getpeername", "listen", "shutdown"
        ):  # fmt: skip
            setattr(self, name, getattr(sock, name))

    @property
    def type(self) -> Any:
        return self._sock.type

    @property
    def family(self) -> Any:
        return self._sock.family

    @property
    def did_shutdown_SHUT_WR(self) -> bool:  # noqa: N802
        return self._sock.has_shut_down

    def close(self) -> None:
        self._sock.notify_closing()
        self._sock.close()

    async def bind(self, address: Any) -> None:
        await trio.lowlevel.checkpoint()
        self._sock.bind(address)

    async def connect(self, address: Any) -> None:
        try:
            if self._sock.connect_ex(address):
                await self._sock.wait_writable()
        except trio.Cancelled:
            self._sock.close()
            raise
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise _error(code)

    async def accept(self) -> tuple[TrioSocket, Any]:
        while True:
            await self._sock.wait_readable()
            try:
                accepted, peer = self._sock.accept()
            except BlockingIOError:
                continue
            return TrioSocket(accepted), peer

    async def recv(self, size: int, flags: int = 0) -> bytes:
        while True:
            await self._sock.wait_readable()
            try:
                return self._sock.recv(size, flags)
            except BlockingIOError:
                continue

    async def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        while True:
            await self._sock.wait_readable()
            try:
                return self._sock.recv_into(buffer, nbytes, flags)
            except BlockingIOError:
                continue

    async def send(self, data: Any, flags: int = 0) -> int:
        while True:
            await self._sock.wait_writable()
            try:
                return self._sock.send(data)
            except BlockingIOError:
                continue

    async def wait_writable(self) -> None:
        await self._sock.wait_writable()


class SocketFactory(trio.abc.SocketFactory):
    """Makes trio's sockets."""

    def socket(self, family: Any = None, type: Any = None, proto: Any = 0) -> TrioSocket:  # noqa: A002
        return TrioSocket(SimulatedSocket(socket.AF_INET, type or socket.SOCK_STREAM))


def _closed() -> outcome.Error:
    return outcome.Error(trio.ClosedResourceError("the socket was closed"))
