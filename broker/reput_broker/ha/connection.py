"""One slave of this master: its reports, and the transfer of the log to it (RocketMQ: DefaultHAConnection)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from reput_broker.config.sections import HAConfig
from reput_broker.ha.frames import HEADER, HAProtocolError, Hello, ReportReader
from reput_broker.put.progress import LogProgress
from reput_broker.store.base.errors import FileMissing
from reput_broker.store.message_store import MessageStore

_REPORT_BYTES: Final = 4096
_BUFFER_BYTES: Final = 256 * 1024
"""About as many bytes leave with one system call."""
_HEADER_BYTES: Final = HEADER.size


@dataclass(frozen=True, slots=True)
class OfferedLog:
    """The log of a master in one tenure, as its slaves copy it.

    Attributes:
        epoch: of the tenure, which a Reput slave must name.
        admit: awaited with each connection before anything else; raises HAProtocolError to refuse the slave.
    """

    store: MessageStore
    config: HAConfig
    progress: LogProgress
    epoch: int
    admit: Callable[[trio.abc.Stream], Awaitable[None]] | None = None


class HAConnection:
    """The connection of one slave.

    Args:
        peer: its address, for logs and status.
        on_hello: called after the slave's first report, before anything is sent.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        peer: str,
        offered: OfferedLog,
        on_hello: Callable[[HAConnection], None],
    ) -> None:
        self.peer = peer
        self.member: int | None = None
        """The number of a Reput slave; None for one of RocketMQ."""
        self.acked_offset = -1
        """The slave has the log up to here; -1 before its first report."""
        self.next_offset = 0
        """The log has been sent up to here."""
        self._stream = stream
        self._offered = offered
        self._store = offered.store
        self._config = offered.config
        self._progress = offered.progress
        self._on_hello = on_hello
        self._scope = trio.CancelScope()
        self._end_reason = ""
        self._sent_at = trio.current_time()

    def close(self, reason: str) -> None:
        """End the connection; `run` raises HAProtocolError with this reason."""
        self._end_reason = self._end_reason or reason
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the slave until its connection ends.

        Raises:
            HAProtocolError: it sent something wrong, was silent for too long, or cannot be served; or `close`.
            OSError, trio.BrokenResourceError: the connection broke.
        """
        with self._scope:
            async with self._stream, trio.open_nursery() as nursery:
                if self._offered.admit is not None:
                    await self._offered.admit(self._stream)
                reports = ReportReader()
                await self._begin(reports)
                nursery.start_soon(self._transfer)
                while True:
                    self._acknowledged((await self._reports(reports))[-1])
        if self._end_reason:
            raise HAProtocolError(self._end_reason)

    # -- from the slave ----------------------------------------------------------------------------------

    async def _reports(self, reader: ReportReader) -> list[int]:
        """Return the next reports, at least one."""
        while True:
            with trio.move_on_after(self._config.housekeeping_interval) as silence:
                data = await self._stream.receive_some(_REPORT_BYTES)
            if silence.cancelled_caught:
                raise HAProtocolError(
                    f"it has sent nothing for {self._config.housekeeping_interval:g} s (ha.housekeeping_interval)"
                )
            if not data:
                raise HAProtocolError("it has closed the connection")
            reports = reader.feed(bytes(data))
            if reports:
                return reports

    async def _begin(self, reader: ReportReader) -> None:
        """Read where the slave begins, and check that the log has that place."""
        reports = await self._reports(reader)
        offset = reports[0]
        if reader.hello is None:
            self.next_offset = offset or self._last_file()
        else:
            self._check_hello(reader.hello, offset)
            self.member = reader.hello.member
            self.next_offset = offset
        low, high = self._store.min_physical_offset, self._store.max_physical_offset
        if self.next_offset > high:
            raise HAProtocolError(
                f"its log ends at {offset}, beyond the end of this one, {high}: it holds what this master does not have"
            )
        if self.next_offset < low:
            raise HAProtocolError(
                f"its log ends at {offset}, but this one begins at {low}: files that it needs have been deleted"
            )
        self.acked_offset = offset
        self._on_hello(self)
        self._acknowledged(reports[-1])

    def _last_file(self) -> int:
        """Return where a slave of RocketMQ without data begins: at the last file of the log."""
        end = self._store.max_physical_offset
        return end - end % self._store.options.commit_log_file_size

    def _check_hello(self, hello: Hello, offset: int) -> None:
        """Check the identity that only a Reput slave sends."""
        epoch = self._offered.epoch
        if hello.epoch != epoch:
            raise HAProtocolError(
                f"it has compared its history with epoch {hello.epoch}, and this is epoch {epoch}; it asks again"
            )
        store = self._store
        if store.min_physical_offset <= offset < store.max_physical_offset and not store.is_boundary(offset):
            raise HAProtocolError(f"its log ends at {offset}, where no record of this log starts")

    def _acknowledged(self, offset: int) -> None:
        if self._end_reason:
            return  # it arrived before `close`, and its slave speaks on another connection now
        if not self.acked_offset <= offset <= self.next_offset:
            raise HAProtocolError(
                f"it reports log offset {offset} after {self.acked_offset}, "
                f"and was sent the log up to {self.next_offset}"
            )
        self.acked_offset = offset
        self._progress.replicas.acknowledged(self)

    # -- to the slave ---------------------------------------------------------------------------------------

    async def _transfer(self) -> None:
        """Send the log from `next_offset` on, and heartbeats while there is nothing more."""
        buffer, offered = memoryview(bytearray()), self._progress.offered
        while True:
            size = self._config.transfer_batch_size
            frames = max(1, _BUFFER_BYTES // size)
            if len(buffer) != frames * (_HEADER_BYTES + size):
                buffer = memoryview(bytearray(frames * (_HEADER_BYTES + size)))
            end = offered.offset
            if self.next_offset < end:
                await self._send_log(buffer, min(end, self._file_end()), size)
                continue
            quiet_until = self._sent_at + self._config.send_heartbeat_interval
            with trio.move_on_at(quiet_until):
                await offered.reached(end + 1)
                continue
            self._progress.offer()  # what no sync has followed
            if offered.offset > end:
                continue
            await self._send(memoryview(HEADER.pack(self.next_offset, 0)))

    def _file_end(self) -> int:
        size = self._store.options.commit_log_file_size
        return self.next_offset - self.next_offset % size + size

    async def _send_log(self, buffer: memoryview, end: int, size: int) -> None:
        """Send the log up to `end`, in the same file, as much as the buffer holds, in frames of up to `size` bytes."""
        offset, at = self.next_offset, 0
        parts: list[memoryview] = []
        while offset < end and at < len(buffer):
            length = min(size, end - offset)
            HEADER.pack_into(buffer, at, offset, length)
            at += _HEADER_BYTES
            parts.append(buffer[at : at + length])
            at += length
            offset += length
        try:
            if not self._store.read_for_replica(self.next_offset, parts, wait=False):
                await trio.to_thread.run_sync(self._read_cold, parts)
        except FileMissing:
            raise HAProtocolError(
                f"it is at log offset {self.next_offset}, and that file has been deleted; it fell too far behind"
            ) from None
        # The offset moves first: the slave's report may arrive before the last byte has left.
        self.next_offset = offset
        await self._send(buffer[:at])

    def _read_cold(self, parts: list[memoryview]) -> None:
        self._store.read_for_replica(self.next_offset, parts, wait=True)

    async def _send(self, data: memoryview) -> None:
        await self._stream.send_all(data)
        self._sent_at = trio.current_time()
