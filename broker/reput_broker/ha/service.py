"""The log of a master, served to its slaves (RocketMQ: DefaultHAService)."""

from __future__ import annotations

import structlog
import trio

from reput_broker.ha.connection import HAConnection, OfferedLog
from reput_protocol.errors import ReputError, leaves

log = structlog.get_logger(__name__)

_SLAVES_MAX = 64
"""No more connections than this are served: each has a buffer of 256 KiB."""


class HAService:
    """Sends the log to every slave that connects, and receives each one's acknowledged offset."""

    def __init__(self, offered: OfferedLog) -> None:
        self._offered = offered
        self._slaves: list[HAConnection] = []
        self._waiting_for_hello: list[HAConnection] = []

    @property
    def slaves(self) -> tuple[HAConnection, ...]:
        """The slaves that have sent their first report, in the order in which they connected."""
        return tuple(self._slaves)

    async def serve(self, stream: trio.abc.Stream, peer: str) -> None:
        """Serve a slave until its connection ends. Errors of the connection are logged.

        If too many connections are open, the oldest one that has said nothing is closed.

        Args:
            peer: its address, `host:port`.
        """
        silent = self._waiting_for_hello
        is_full = len(self._slaves) + len(silent) >= _SLAVES_MAX
        if is_full and silent:
            silent.pop(0).close(f"{_SLAVES_MAX} connections are open, and it has not said where it begins")
        elif is_full:
            log.warning(
                "slave_refused",
                peer=peer,
                detail=f"{_SLAVES_MAX} connections are open",
                hint="close those that are not of slaves",
            )
            await trio.aclose_forcefully(stream)
            return
        connection = HAConnection(stream, peer, self._offered, self._begun)
        silent.append(connection)
        reason = ""
        try:
            await connection.run()
        except* ReputError as group:
            reason = "; ".join(str(error) for error in leaves(group))
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            reason = reason or "the connection broke"
        finally:
            if connection in silent:
                silent.remove(connection)
            if connection in self._slaves:
                self._slaves.remove(connection)
                self._offered.progress.replicas.gone(connection)
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
        """Count a slave from its first report on, and end its earlier connection."""
        if connection not in self._waiting_for_hello:
            return  # it was closed in this moment
        for other in self.slaves:
            if connection.member is not None and other.member == connection.member:
                other.close(f"slave {connection.member} has connected again from {connection.peer}")
                self._slaves.remove(other)
        self._waiting_for_hello.remove(connection)
        self._slaves.append(connection)
        log.info(
            "slave_connected",
            peer=connection.peer,
            member=connection.member,
            offset=connection.next_offset,
            behind_bytes=self._offered.store.max_physical_offset - connection.next_offset,
        )
