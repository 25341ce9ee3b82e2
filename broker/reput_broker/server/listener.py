"""Listening sockets and the connections they accept.

Sockets are bound before the store recovers, so that a port in use is reported immediately, and listen only after that:
until then clients are refused.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import trio

from reput_broker.config.model import BrokerConfig, is_loopback
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Client
from reput_broker.server.connection import Addresses, Connection, Shared
from reput_broker.server.connection_limits import ConnectionRefusals, Crowd, Strangers
from reput_broker.server.gate import Acceptor, Admitted, Gate, port_refusal
from reput_broker.server.handling import RequestHandling
from reput_broker.server.local_requests import LocalRequests
from reput_broker.server.memory import HeldBytes
from reput_broker.server.transport import SocketTransport
from reput_protocol.errors import ReputError
from reput_protocol.record.message_id import born_host_bytes

_BACKLOG = 1024
_TIMEOUT_CHECK_S = 1.0
_BUSY_LOOK_S = 0.02
_GOODBYE_S = 1.0  # a busy client takes a while to read the end
"""How long clients have to close their connections when the server stops."""
_RESERVE_MAX = 16
_RESERVE_PART = 20
"""Of all connections a twentieth, at most `_RESERVE_MAX`, is for clients on this machine: its administrators."""
_EVERY_ADDRESS = ("0.0.0.0", "::")


class ListenFailed(ReputError):
    """A port cannot be opened. The broker does not listen on it."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {port_refusal(cause, port, 'host or port')}")
        self.host = host
        self.port = port


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet. Raises ListenFailed."""
    try:
        places = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, number, _, address = places[0]
        bound = socket.socket(family, kind, number)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise ListenFailed(host, port, error) from error
    return bound


def address_of(end: socket.socket, *, peer: bool = False) -> tuple[str, int]:
    """Return the local or peer address and port of a socket; IPv4 peers of an IPv6 socket have their IPv4 address."""
    host, port = (end.getpeername() if peer else end.getsockname())[:2]
    return host.removeprefix("::ffff:"), port


def listen(bound: socket.socket) -> None:
    """Start to listen. Raises ListenFailed if another process that had bound the same port was faster."""
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        raise ListenFailed(*address_of(bound), error) from error


class Server:
    """Accepts connections and checks their timeouts.

    Args:
        connections_max: the open files that are left for connections.
        on_gone: called once for every connection after it has ended.
        gate: what connections pass before their first request; None: nothing.

    Attributes:
        local: requests of the broker's own pages.
    """

    def __init__(
        self,
        config: BrokerConfig,
        handling: RequestHandling,
        counters: Counters,
        *,
        connections_max: int,
        on_gone: Callable[[Client], None],
        gate: Gate | None = None,
    ) -> None:
        self._config = config
        self._gate = None if gate is None or gate.is_open else gate
        self._connections_max = connections_max
        self._counters = counters
        self._on_gone = on_gone
        self._shared = Shared(
            handling,
            config.limits,
            counters,
            HeldBytes(counters, config.limits),
            trio.Lock(),
            ConnectionRefusals(),
            Strangers(config, counters) if config.access.enabled else None,
        )
        self.local = LocalRequests(handling)
        self._connections: set[Connection] = set()
        self._accepting = trio.CancelScope()
        self._keeps_listening = False
        self._is_draining = False
        self._accepted_all: trio.Event | None = None  # while the server runs

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The open connections."""
        return tuple(self._connections)

    @property
    def handling(self) -> RequestHandling:
        """What handles the requests."""
        return self._shared.handling

    @property
    def is_busy(self) -> bool:
        """Whether any connection has requests without an answer, or answers that are not sent."""
        return self.local.is_busy or any(connection.is_busy for connection in self._connections)

    async def run(
        self, listeners: dict[str, socket.socket], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen on bound sockets, by listener name, and serve the connections until cancelled.

        Reports that it has started once all sockets listen.

        Raises:
            ListenFailed: a port was taken since it was bound.
        """
        host, port = address_of(next(iter(listeners.values())))
        self.local.address = f"{'127.0.0.1' if host in _EVERY_ADDRESS else host}:{port}"
        self._accepted_all = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._check_timeouts)
            try:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for name, bound in listeners.items():
                            listen(bound)
                            accepting.start_soon(self._accept, name, bound, nursery)
                        task_status.started()
            finally:
                if not self._keeps_listening:
                    for name, bound in listeners.items():
                        self._accept_waiting(name, bound, nursery)
                        bound.close()
                self._accepted_all.set()

    def stop_accepting(self, *, keep_listening: bool = False) -> None:
        """Close the listening sockets; open connections continue.

        Args:
            keep_listening: leave the sockets open instead; new connections wait for the next server that runs on them.
        """
        self._keeps_listening = keep_listening
        self._accepting.cancel()
        self.local.end()

    async def drain(self, grace_s: float) -> None:
        """Wait until all requests are answered and all answers sent, `grace_s` at most; then close the connections.

        Requests that were not read before are not handled; see `Connection.finish`.
        """
        self._is_draining = True
        with trio.move_on_after(grace_s):
            if self._accepted_all is not None:
                await self._accepted_all.wait()
            async with trio.open_nursery() as nursery:
                for connection in self.connections:
                    nursery.start_soon(connection.finish)
            while self.is_busy:  # noqa: ASYNC110 - once, at the end; an event would cost every answer
                await trio.sleep(_BUSY_LOOK_S)
        with trio.move_on_after(_GOODBYE_S):
            while self._connections:  # noqa: ASYNC110 - likewise
                await trio.sleep(_BUSY_LOOK_S)
        self.close_all()

    def close_all(self) -> None:
        """Close every connection, because the server stops."""
        for connection in list(self._connections):
            connection.close("shutdown")

    async def _accept(self, name: str, bound: socket.socket, nursery: trio.Nursery) -> None:
        with Acceptor(bound) as acceptor:
            while True:
                accepted = await acceptor.accept()
                with suppress(OSError):  # the peer may be gone
                    self._start(name, accepted, nursery)

    def _accept_waiting(self, name: str, bound: socket.socket, nursery: trio.Nursery) -> None:
        """Accept what the system has connected already, so that it is told of the stop.

        If the socket were closed before, the system would reset these connections, and a peer that has sent a request
        could not know whether it was handled.
        """
        with suppress(OSError):  # there is no more
            while True:
                accepted = bound.accept()[0]
                with suppress(OSError):  # the peer may be gone
                    self._start(name, accepted, nursery)

    def _start(self, name: str, accepted: socket.socket, nursery: trio.Nursery) -> None:
        traffic = self._counters.listeners[name]
        peer_host, peer_port = address_of(accepted, peer=True)
        traffic.connection_opened()
        is_local = is_loopback(peer_host) and not (self._gate is not None and self._gate.is_proxy(peer_host))
        limit = min(self._config.limits.connections, self._connections_max)
        if not self._has_room(limit if is_local else limit - min(_RESERVE_MAX, limit // _RESERVE_PART)):
            traffic.connection_closed("limit")
            hint = "raise limits.connections" if limit < self._connections_max else "raise ulimit -n"
            self._shared.refusals.refused(f"{peer_host}:{peer_port}", "limit", limit=limit, hint=hint)
            accepted.close()
            return
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        local_host, local_port = address_of(accepted)
        addresses = Addresses(
            f"{peer_host}:{peer_port}", born_host_bytes(peer_host, peer_port), f"{local_host}:{local_port}", is_local
        )
        if self._gate is None:
            self._serve(name, Admitted(SocketTransport(accepted)), addresses, nursery)
        else:
            nursery.start_soon(self._admit, self._gate, name, accepted, addresses, nursery)

    def _has_room(self, limit: int) -> bool:
        """Tell whether one more connection is served; for that, a stranger may be closed (see `Crowd`)."""
        strangers = self._shared.strangers
        crowd = Crowd[Connection]() if strangers is None else strangers.crowd
        if self._open >= limit and self._gate is not None and self._gate.waiting > len(crowd):
            self._gate.make_room()
        while self._open >= limit:
            found = crowd.pop_greediest()
            if found is None:
                return False
            connection, network, count = found
            if connection.is_stranger:  # else it has just become a user's
                connection.turn_away(
                    "limit",
                    f"connections run out, and {count} of {network} have sent no request of a user",
                    "find out what connects from there, or raise limits.connections",
                )
                self._connections.discard(connection)
        return True

    @property
    def _open(self) -> int:
        """The connections that are open, or are being admitted."""
        return len(self._connections) + (0 if self._gate is None else self._gate.waiting)

    async def _admit(
        self, gate: Gate, name: str, accepted: socket.socket, addresses: Addresses, nursery: trio.Nursery
    ) -> None:
        admitted = await gate.admit(accepted, addresses.peer, self._counters.listeners[name])
        if admitted is None:
            return
        if admitted.source is not None:
            host, port = admitted.source
            addresses = addresses._replace(peer=f"{host}:{port}", born_host=born_host_bytes(host, port))
        self._serve(name, admitted, addresses, nursery)

    def _serve(self, name: str, admitted: Admitted, addresses: Addresses, nursery: trio.Nursery) -> None:
        connection = Connection(
            admitted.transport, addresses, self._shared, self._counters.listeners[name], nursery, self._ended, name
        )
        self._connections.add(connection)
        if self._shared.strangers is not None:
            self._shared.strangers.crowd.add(connection, connection.host)
        nursery.start_soon(connection.run)
        if self._is_draining:
            nursery.start_soon(connection.finish)

    def _ended(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._shared.strangers is not None:
            self._shared.strangers.crowd.discard(connection)
        self._on_gone(connection)

    async def _check_timeouts(self) -> None:
        """Check timeouts once a second over all connections, which costs less than a timer each."""
        while True:
            await trio.sleep(_TIMEOUT_CHECK_S)
            now = trio.current_time()
            for connection in list(self._connections):
                connection.look_after(now)
