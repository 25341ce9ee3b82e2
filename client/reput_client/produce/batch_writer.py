"""Bulk writes for whole batches, such as the Spark sink's: several requests in flight, staged or put at once.

Every request may be repeated: the broker recognises repeated staging, and puts are at least once. So a lost connection
or a broker restart only costs time, if the broker is back before the timeout.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from tempfile import TemporaryFile
from typing import IO, Final, NamedTuple, Self

from reput_client.errors import BrokerNotFound, ConnectionLost, RequestTimeout
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.client import Client
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.options import ClientOptions, takes
from reput_client.transport.session import is_not_master, raise_refusal
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel, RequestCode, ResponseCode
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.commands.stage import (
    AbortStagedHeader,
    CommitStagedBody,
    CommitStagedHeader,
    CommitStagedResult,
    EndStagingHeader,
    QueryStagedHeader,
    QueryStagedResult,
    StagedPart,
    StageRecordsHeader,
    encode_staged_head,
)
from reput_protocol.errors import BrokerError, ErrorCode
from reput_protocol.kernel.records import crc32
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.header import HeaderType, Value

WRITE_TIMEOUT_S: Final = 120.0
WINDOW_BYTES: Final = 8 << 20
FRAME_BYTES: Final = 1 << 20
_MSGPACK: Final = HeaderType.MSGPACK
_RETRY_PAUSE_S: Final = 0.05
_STAGED_AGAIN_MAX: Final = 5
"""How often a staging that went with its broker's master is sent again."""
_KEPT_MEMORY_BYTES: Final = 32 << 20
_KEPT_BYTES_MAX: Final = 1 << 30
"""Of a larger staging nothing is kept, so that it cannot be sent again."""

log = logging.getLogger("reput_client")


class StagingScope(NamedTuple):
    """The attempt that a staging belongs to."""

    query_id: str
    batch_id: int
    partition_id: int
    staging_id: str
    """New for every attempt."""


class _Kept:
    """The frames of a staging, to be sent again: the first ones in memory, the others in a temporary file."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self.is_whole = True

    def add(self, frame: bytes) -> None:
        """Keep a frame; if it does not fit, keep none."""
        self._bytes += len(frame)
        if self._bytes <= _KEPT_MEMORY_BYTES:
            self._frames.append(frame)
        elif self.is_whole:
            self._write(frame)

    def _write(self, frame: bytes) -> None:
        try:
            if self._bytes > _KEPT_BYTES_MAX:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            if self._file is None:
                self._file = TemporaryFile()  # noqa: SIM115 (closed with the staging)
            self._file.seek(0, os.SEEK_END)
            self._file.write(frame)
            self._sizes.append(len(frame))
        except OSError as error:
            log.info("a staging of %d bytes is not kept, to be sent again: %s", self._bytes, error)
            self.is_whole = False
            self.close()

    def frames(self) -> Iterator[bytes]:
        """Yield all frames."""
        yield from self._frames
        position = 0
        for size in self._sizes:
            assert self._file is not None, "it has frames"
            self._file.seek(position)
            yield self._file.read(size)
            position += size

    def close(self) -> None:
        """Forget the frames."""
        self._frames.clear()
        if self._file is not None:
            self._file.close()


class _Sent:
    """A request without an answer yet."""

    __slots__ = ("body", "call", "connection", "template", "waiter", "what")

    def __init__(self, template: RequestTemplate, body: Buffer, what: str) -> None:
        self.template = template
        self.body = body
        self.what = what
        self.waiter = Waiter()
        self.call: Call | None = None
        self.connection: BrokerConnection | None = None


@dataclass(frozen=True)
class BatchWriterOptions(ClientOptions):
    """See `BatchWriter`."""

    broker_name: str | None = None
    _: KW_ONLY
    timeout_s: float = WRITE_TIMEOUT_S
    window_bytes: int = WINDOW_BYTES


class BatchWriter(Client):
    """Writes blocks to one broker of a cluster. An async context manager; for one task at a time.

    If another broker of its name becomes the master, requests follow it.

    Args:
        address: `host:port` of a broker or a name server, or several of one cluster separated by commas.
        broker_name: the broker; without it, the only one.
        timeout_s: seconds a request may take, including repeats and reconnecting.
        window_bytes: maximum bytes sent and unanswered.
    """

    @takes(BatchWriterOptions)
    def __init__(self, options: BatchWriterOptions) -> None:
        super().__init__(options)
        self._broker_name = options.broker_name
        self._window_bytes = options.window_bytes
        self._window: deque[_Sent] = deque()
        self._bytes = 0
        self._scope: StagingScope | None = None
        self._kept = _Kept()
        self._again = 0
        self._parts: list[Buffer] = []
        self._parts_bytes = 0
        self._position = self._messages = self._checksum = 0

    async def __aenter__(self) -> Self:
        """Connect; waits for a broker that does not answer yet.

        Raises:
            ConnectFailed: no broker answers before the timeout.
            BrokerNotFound: there is no such broker.
            ValueError: there are several brokers, and none is named.
        """
        deadline = self._session.deadline(None)
        if self._broker_name is None:
            self._broker_name = await self._only_broker(deadline)
        await self._session.open_for(self._place(), deadline)
        return self

    async def _only_broker(self, deadline: float) -> str:
        names = sorted((await self._session.cluster(deadline)).broker_addr_table)
        if len(names) > 1:
            raise ValueError(f"there are several brokers, {', '.join(names)}; pass broker_name=")
        if not names:
            raise BrokerNotFound("", "")
        return names[0]

    def _place(self) -> MessageQueue:
        """Stands for the broker in requests."""
        assert self._broker_name is not None, "the writer is entered"
        return MessageQueue("", self._broker_name, 0)

    async def aclose(self) -> None:
        """Close the connections. Unanswered requests may or may not have been executed."""
        self._kept.close()
        self._session.close()

    async def write_queues(self, topic: str) -> list[int] | None:
        """Return the writable queues of a topic on the broker; None if it does not exist there and can be created.

        Raises:
            TopicNotFound: there is no such topic and the broker does not create topics.
        """
        route = await self._session.publish_route(topic, self._session.deadline(None))
        found = [queue.queue_id for queue in route.writable if queue.broker_name == self._broker_name]
        return None if route.template or self._broker_name not in route.brokers else found

    # -- staging ---------------------------------------------------------------------------------------------------

    def begin(self, scope: StagingScope) -> None:
        """Start a new staging for `scope`.

        A broker's next master has nothing of it; then all of it, up to 1 GiB, is staged again under another id.
        """
        self._scope = scope
        self._kept.close()
        self._kept = _Kept()
        self._again = 0
        self._parts, self._parts_bytes = [], 0
        self._position = self._messages = self._checksum = 0

    async def stage(self, topic: str, queue_id: int, count: int, block: Buffer) -> None:
        """Stage a PutMessage block of `count` records with unique ids; waits and raises like `put`."""
        head = encode_staged_head(topic, queue_id, count, block)
        self._checksum = crc32(head, self._checksum)
        self._messages += count
        self._parts += [head, block]
        self._parts_bytes += len(head) + len(block)
        if self._parts_bytes >= FRAME_BYTES:
            await self._send_parts()

    async def _send_parts(self) -> None:
        frame = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        self._kept.add(frame)
        try:
            await self._send_frame(frame)
        except BrokerError as error:
            await self._stage_again(error)

    async def _send_frame(self, frame: bytes) -> None:
        scope = self._scope
        assert scope is not None, "begun before"
        ext = StageRecordsHeader(*scope, self._position).to_ext(_MSGPACK)
        self._position += len(frame)
        await self._send(RequestCode.STAGE_RECORDS, ext, frame, f"staging {scope.staging_id}")

    async def _stage_again(self, error: BrokerError) -> None:
        """Send all frames under a new id, if the broker has lost the staging, or raise the error that said so."""
        while True:
            scope = self._scope
            self._again += 1
            is_lost = error.error is ErrorCode.NOT_FOUND and scope is not None
            if not is_lost or not self._kept.is_whole or self._again > _STAGED_AGAIN_MAX:
                raise error
            assert scope is not None, "it is lost"
            log.info("staging %s is sent again: %s", scope.staging_id, error)
            self._scope = scope._replace(staging_id=uuid.uuid4().hex)
            self._abandon()
            self._window.clear()
            self._bytes = self._position = 0
            try:
                for frame in self._kept.frames():
                    await self._send_frame(frame)
            except BrokerError as another:
                error = another
            else:
                return

    async def end(self) -> StagedPart:
        """Wait until everything staged is on the broker's disk, or raise like `put`; return what `commit` needs."""
        while True:
            await self.drain()
            try:
                await self._end()
                break
            except BrokerError as error:
                await self._stage_again(error)
        self._kept.close()
        assert self._scope is not None, "begun before"
        return StagedPart(self._scope.staging_id, self._messages, self._checksum)

    async def _end(self) -> None:
        scope = self._scope
        assert scope is not None, "begun before"
        header = EndStagingHeader(
            scope.query_id, scope.batch_id, scope.staging_id, self._position, self._messages, self._checksum
        )
        await self._ask(
            RequestCode.END_STAGING, header.to_ext(_MSGPACK), f"end of staging {scope.staging_id}"
        )

    # -- batches ---------------------------------------------------------------------------------------------------

    async def commit(
        self, query_id: str, batch_id: int, parts: Sequence[StagedPart], timeout_s: float | None = None
    ) -> CommitStagedResult:
        """Publish stagings as one batch; returns once it is on disk.

        Raises:
            BrokerError: refused; the text says whether the batch is decided nevertheless.
            RequestTimeout, ConnectFailed: no answer in time; the same commit may be repeated.
        """
        call = await self._ask(
            RequestCode.COMMIT_STAGED,
            CommitStagedHeader(query_id, batch_id).to_ext(_MSGPACK),
            f"commit of batch {batch_id}",
            CommitStagedBody(list(parts)).to_json(),
            timeout_s,
        )
        return CommitStagedResult.from_ext(call.answer.ext)

    async def abort(self, query_id: str, batch_id: int) -> QueryStagedResult:
        """Drop what is staged for a batch; return what remains of its query."""
        call = await self._ask(
            RequestCode.ABORT_STAGED,
            AbortStagedHeader(query_id, batch_id).to_ext(_MSGPACK),
            f"abort of batch {batch_id}",
        )
        return QueryStagedResult.from_ext(call.answer.ext)

    async def staged(self, query_id: str | None = None) -> QueryStagedResult:
        """Return the broker's state of a query, or the total of what is staged."""
        call = await self._ask(
            RequestCode.QUERY_STAGED, QueryStagedHeader(query_id).to_ext(_MSGPACK), "look at what is staged"
        )
        return QueryStagedResult.from_ext(call.answer.ext)

    async def _ask(
        self,
        code: RequestCode,
        ext: dict[str, Value],
        what: str,
        body: Buffer = b"",
        timeout_s: float | None = None,
    ) -> Call:
        deadline = self._session.deadline(timeout_s)
        while True:
            try:
                return await self._session.ask_ok(
                    code, ext, what=what, queue=self._place(), body=body, deadline=deadline
                )
            except BrokerError as error:
                if not _passes_soon(error) or self._session.runtime.now() >= deadline:
                    raise
            await self._session.runtime.sleep(_RETRY_PAUSE_S)

    # -- puts ------------------------------------------------------------------------------------------------------

    async def put(
        self, topic: str, queue_id: int, count: int, block: Buffer, ack: AckLevel = AckLevel.FLUSHED
    ) -> None:
        """Put a block of `count` records, at least once. Waits while the window is full.

        Raises:
            BrokerError: an earlier request was refused.
            RequestTimeout, ConnectFailed: no answer before the timeout.
        """
        ext = PutMessageHeader(topic, queue_id, count, ack, None).to_ext(_MSGPACK)
        await self._send(RequestCode.PUT_MESSAGE, ext, block, f"put to {topic}/{queue_id}")

    async def drain(self) -> None:
        """Wait until everything, including what is buffered, is answered. Raises the first refusal."""
        if self._parts:
            await self._send_parts()
        while self._window:
            try:
                await self._take()
            except BrokerError as error:
                await self._stage_again(error)

    # -- the window ------------------------------------------------------------------------------------------------

    async def _send(self, code: RequestCode, ext: dict[str, Value], body: Buffer, what: str) -> None:
        while self._window and self._bytes + len(body) > self._window_bytes:
            await self._take()
        sent = _Sent(RequestTemplate(code, ext), body, what)
        self._window.append(sent)
        self._bytes += len(body)
        connection = self._window[0].connection
        if connection is None or not connection.usable():
            connection = await self._session.open_for(self._place(), self._session.deadline(None))
        self._start(sent, connection)
        connection.flush_now()

    def _start(self, sent: _Sent, connection: BrokerConnection) -> None:
        sent.connection = connection
        sent.call = connection.start_template(sent.template, sent.waiter, sent.body)

    async def _take(self) -> None:
        """Wait for the oldest request, repeating it and all later ones while that may help."""
        oldest = self._window[0]
        started_at = self._session.runtime.now()
        deadline = self._session.deadline(None)
        while True:
            call = oldest.call
            assert call is not None, "every request in the window was started"
            if not call.done and not await self._session.pump.wait(oldest.waiter, deadline):
                raise RequestTimeout(oldest.what, deadline - started_at)
            if call.error is None:
                if _is_done(call):
                    break
                try:
                    raise_refusal(call)
                except BrokerError as error:
                    if not _passes_soon(error) or self._session.runtime.now() >= deadline:
                        raise
            elif not isinstance(call.error, ConnectionLost):
                raise call.error
            elif self._session.runtime.now() >= deadline:
                raise RequestTimeout(oldest.what, deadline - started_at, call.error) from call.error
            if call.error is None and is_not_master(call):
                await self._session.look_for_master("", deadline)
            await self._session.runtime.sleep(_RETRY_PAUSE_S)
            await self._repeat(deadline)
        self._window.popleft()
        self._bytes -= len(oldest.body)

    def _abandon(self) -> None:
        """Wait for no request in the window any more."""
        for sent in self._window:
            if sent.call is not None and sent.connection is not None and not sent.call.done:
                sent.connection.abandon(sent.call)

    async def _repeat(self, deadline: float) -> None:
        """Send everything in the window again, in order."""
        self._abandon()
        for sent in self._window:
            sent.waiter = Waiter()
        connection = await self._session.open_for(self._place(), deadline)
        for sent in self._window:
            self._start(sent, connection)
        connection.flush_now()


def _is_done(call: Call) -> bool:
    code = call.answer.code
    # Stored but not synced in time satisfies at least once.
    return code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)


def _passes_soon(error: BrokerError) -> bool:
    """Whether to repeat a refused request; a full disk may stay full for long, so the caller is notified."""
    return error.retryable and error.error is not ErrorCode.DISK_FULL
