"""The log of a master, served to its slaves, and how many copies they have (RocketMQ: DefaultHAService)."""

from __future__ import annotations

import structlog
import trio
from typing_extensions import override

from reput_broker.config.model import BrokerConfig
from reput_broker.ha.connection import HAConnection, OfferedLog
from reput_broker.ha.replication_lag import copies_among
from reput_broker.put.progress import LogProgress, Replica, Replicas
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


class Copies(Replicas):
    """How many copies of the log there are without an election: any slaves count (RocketMQ: inSyncReplicas)."""

    def __init__(self, service: HAService, progress: LogProgress, config: BrokerConfig) -> None:
        self._service = service
        self._progress = progress
        self._config = config.ha
        self._is_sync = config.store.flush == "sync"

    @override
    def moved(self) -> None:
        needed, progress = self._config.copies_if_replicated - 1, self._progress
        acked = sorted([slave.acked_offset for slave in copies_among(self._service.slaves)], reverse=True)
        if len(acked) < needed:
            return
        position = acked[needed - 1]
        progress.replicated.advance(min(position, progress.flushed.offset) if self._is_sync else position)

    @override
    def acknowledged(self, slave: Replica) -> None:
        self.moved()

    @override
    def refusal(self) -> str | None:
        needed, slaves = self._config.copies_if_replicated - 1, copies_among(self._service.slaves)
        low = self._progress.committed.offset - self._config.max_gap_not_in_sync
        in_sync = sum([slave.acked_offset >= low for slave in slaves])
        if in_sync >= needed:
            return None
        text = f"slaves in sync: {in_sync}, needed: {needed}, connected: {len(slaves)}"
        return f"{text}; start them, lower ha.in_sync_replicas, or ask for flushed or page_cache"
