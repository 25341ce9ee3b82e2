"""The log of a master, served to its slaves (RocketMQ: DefaultHAService)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import structlog
import trio

from reput_broker.config.sections import HAConfig
from reput_broker.ha.connection import HAConnection
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_SLAVES_MAX = 64
"""No more connections than this are served: each has a buffer of 256 KiB."""
_ACCEPT_PAUSE_S = 0.1


class HAService:
    """Sends the log to every slave that connects, and receives how far each has it.

    Args:
        epoch: of this tenure.
        on_ack: called after each report of a slave.
        on_gone: called after a slave that has begun has gone.
    """

    def __init__(
        self,
        store: MessageStore,
        config: HAConfig,
        *,
        epoch: int,
        on_ack: Callable[[HAConnection], None],
        on_gone: Callable[[HAConnection], None] = lambda _: None,
    ) -> None:
        self.epoch = epoch
        self._store = store
        self._config = config
        self._on_ack = on_ack
        self._on_gone = on_gone
        self._slaves: list[HAConnection] = []
        self._connections = 0
        self._appended = trio.Event()
        self._waiting = 0

    @property
    def slaves(self) -> tuple[HAConnection, ...]:
        """The slaves that have said where they begin, in the order in which they connected."""
        return tuple(self._slaves)

    def wake(self) -> None:
        """Note that the log has grown. Called after each append."""
        if self._waiting:
            self._waiting = 0
            self._appended.set()
            self._appended = trio.Event()

    async def appended(self) -> None:
        """Return after the next append."""
        self._waiting += 1
        await self._appended.wait()

    async def run(self, listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        """Accept slaves until cancelled. The listener stays open."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                        raise
                    log.error(
                        "slave_not_accepted",
                        detail=str(error),
                        hint="raise the limit of open files of the process",
                    )
                    await trio.sleep(_ACCEPT_PAUSE_S)
                    continue
                if self._connections >= _SLAVES_MAX:
                    log.warning(
                        "slave_refused",
                        peer=_peer_of(stream),
                        detail=f"{_SLAVES_MAX} connections are open",
                        hint="close those that are not of slaves",
                    )
                    await trio.aclose_forcefully(stream)
                    continue
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        peer = _peer_of(stream)
        connection = HAConnection(
            stream,
            peer,
            self._store,
            self._config,
            self,
            epoch=self.epoch,
            on_hello=self._begun,
            on_ack=self._on_ack,
        )
        self._connections += 1
        reason = ""
        try:
            await connection.run()
        except* ReputError as group:
            reason = "; ".join(str(error) for error in _leaves(group))
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            reason = reason or "the connection broke"
        finally:
            self._connections -= 1
            if connection in self._slaves:
                self._slaves.remove(connection)
                self._on_gone(connection)
            if reason:  # else this broker stops
                log.warning(
                    "slave_gone",
                    peer=peer,
                    member=connection.member,
                    acked_offset=connection.acked_offset,
                    detail=reason,
                    hint="it connects again; if it does not, see its log",
                )

    def _begun(self, connection: HAConnection) -> None:
        """Take up a slave that has said where it begins; its earlier connection counts no more."""
        for other in self.slaves:
            if connection.member is not None and other.member == connection.member:
                other.close(f"slave {connection.member} has connected again from {connection.peer}")
                self._slaves.remove(other)
        self._slaves.append(connection)
        log.info(
            "slave_connected",
            peer=connection.peer,
            member=connection.member,
            offset=connection.next_offset,
            behind_b=self._store.max_physical_offset - connection.next_offset,
        )


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _peer_of(stream: trio.abc.Stream) -> str:
    """Return the address of the other end; a simulated stream may have one too."""
    if isinstance(stream, trio.SocketStream):
        host, port = stream.socket.getpeername()[:2]
        return f"{host.removeprefix('::ffff:')}:{port}"
    return str(getattr(stream, "peer", "unknown"))
