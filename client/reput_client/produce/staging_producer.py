"""A producer that stages messages at one broker and then publishes them as a batch, such as the Spark sink's.

What is staged travels in blocks like everything that a producer sends. The broker recognises repeated staging, so a
lost connection or a broker restart only costs time, if the broker is back before the timeout.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from tempfile import TemporaryFile
from typing import IO, Final, NamedTuple, Self

from reput_client.errors import BrokerNotFound, RequestTimeout, SendOutcomeUnknown
from reput_client.produce.block import OutgoingBlock, Terms
from reput_client.produce.producer import Producer, ProducerOptions
from reput_client.produce.puts import Putter
from reput_client.receipts import Posted
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.options import takes
from reput_client.transport.session import raise_refusal
from reput_protocol.buffers import Buffer
from reput_protocol.codes import Ack, AckLevel, RequestCode, ResponseCode
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
from reput_protocol.errors import BrokerBusy, BrokerError, ErrorCode, NotMaster, ReputError
from reput_protocol.kernel.records import crc32
from reput_protocol.record.layout import MESSAGE_BYTES_MAX
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import HeaderType, Value

BATCH_TIMEOUT_S: Final = 120.0
WINDOW_BYTES: Final = 8 << 20
FRAME_BYTES: Final = 1 << 20
_MSGPACK: Final = HeaderType.MSGPACK
_RETRY_PAUSE_S: Final = 0.05
_STAGED_AGAIN_MAX: Final = 5
"""How often a staging that went with its broker's master is sent again."""
_KEPT_MEMORY_BYTES: Final = 32 << 20
_KEPT_BYTES_MAX: Final = 1 << 30
"""Of a larger staging nothing is kept, so that it cannot be sent again."""
_STAGED: Final = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
"""What is not synced in time is synced with the end of its staging."""

log = logging.getLogger("reput_client")


class StagingScope(NamedTuple):
    """The attempt that a staging belongs to."""

    query_id: str
    batch_id: int
    partition_id: int
    staging_id: str
    """New for every attempt."""


class BrokerLimits(NamedTuple):
    """What a broker accepts and creates."""

    new_topic_queues: int
    """How many queues a topic gets that the commit of a batch creates."""
    body_bytes_max: int
    """The size of the largest body."""


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


class _StagedFrame(OutgoingBlock, kw_only=True):
    """A frame of a staging.

    Args:
        window: the frames of the staging that are not done, in order.
    """

    header: StageRecordsHeader
    size: int
    window: dict[_StagedFrame, None]

    def seal(self, born_timestamp_ms: int, ids: UniqueIdGenerator | None) -> None:  # noqa: ARG002
        """Do nothing: it is encoded."""
        self.count = 1

    def template(self, putter: Putter) -> RequestTemplate:  # noqa: ARG002
        """Return the header of its frame."""
        return RequestTemplate(RequestCode.STAGE_RECORDS, self.header.to_ext(_MSGPACK))

    def answered(self, call: Call) -> None:
        """Finish, even with a refusal after an attempt of unknown outcome; raises what passes soon, and `NotMaster`."""
        error: ReputError | None = None
        if call.answer.code not in _STAGED:
            try:
                raise_refusal(call)
            except NotMaster:
                raise
            except BrokerError as refusal:
                if _passes_soon(refusal):
                    raise
                if refusal.error is ErrorCode.NOT_FOUND and next(iter(self.window)) is not self:
                    # A frame before this one has not arrived yet.
                    raise BrokerBusy(ErrorCode.BUSY, str(refusal)) from None
                error = refusal
        self.finish((), error)


@dataclass(frozen=True)
class StagingProducerOptions(ProducerOptions):
    """See `StagingProducer`."""

    broker_name: str | None = None
    _: KW_ONLY
    timeout_s: float = BATCH_TIMEOUT_S
    window_bytes: int = WINDOW_BYTES


class StagingProducer(Producer):
    """Stages or posts blocks at one broker of a cluster. An async context manager; for one task at a time.

    If another broker of its name becomes the master, blocks follow it.

    Args:
        address: `host:port` of a broker or a name server, or several of one cluster separated by commas.
        broker_name: the broker; without it, the only one.
        timeout_s: seconds for which the broker may be silent, or a request may take, including repeats.
        window_bytes: maximum bytes staged and unanswered.
    """

    @takes(StagingProducerOptions)
    def __init__(self, options: StagingProducerOptions) -> None:
        self._begin(options)
        self._broker_name = options.broker_name
        self._window_bytes = options.window_bytes
        self._staging_terms = Terms(AckLevel.FLUSHED, options.timeout_s, retries=sys.maxsize, is_bulk=True)
        self._window: dict[_StagedFrame, None] = {}
        self._bytes = 0
        self._failure: ReputError | None = None
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
        await self._session.open_for(self._queue("", 0), deadline)
        return self

    async def _only_broker(self, deadline: float) -> str:
        names = sorted((await self._session.cluster(deadline)).broker_addr_table)
        if len(names) > 1:
            raise ValueError(f"there are several brokers, {', '.join(names)}; pass broker_name=")
        if not names:
            raise BrokerNotFound("", "")
        return names[0]

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return a queue of the broker; without a topic it stands for the broker."""
        assert self._broker_name is not None, "the producer is entered"
        return MessageQueue(topic, self._broker_name, queue_id)

    async def aclose(self) -> None:
        """Close the connections. What is unanswered may or may not be staged or stored."""
        self._kept.close()
        await super().aclose()

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
        self._leave_window()
        self._scope = scope
        self._kept.close()
        self._kept = _Kept()
        self._again = 0
        self._parts, self._parts_bytes = [], 0
        self._messages = self._checksum = 0

    async def stage(self, topic: str, queue_id: int, count: int, block: Buffer) -> None:
        """Stage a PutMessage block of `count` records with unique ids. Waits while the window is full.

        Raises:
            BrokerError: an earlier block was refused.
            RequestTimeout, ConnectFailed: no answer before the timeout.
        """
        head = encode_staged_head(topic, queue_id, count, block)
        self._checksum = crc32(head, self._checksum)
        self._messages += count
        self._parts += [head, block]
        self._parts_bytes += len(head) + len(block)
        if self._parts_bytes >= FRAME_BYTES:
            await self._send_parts()

    async def wait_staged(self) -> None:
        """Wait until all that is staged, including what is buffered, is answered; raises like `stage`."""
        if self._parts:
            await self._send_parts()
        while True:
            try:
                await self._until(lambda: not self._window)
            except BrokerError as error:
                await self._stage_again(error)
            else:
                return

    async def _send_parts(self) -> None:
        frame = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        self._kept.add(frame)
        try:
            await self._send_frame(frame)
        except BrokerError as error:
            await self._stage_again(error)

    async def _send_frame(self, data: bytes) -> None:
        scope = self._scope
        assert scope is not None, "begun before"
        await self._until(lambda: not self._window or self._bytes + len(data) <= self._window_bytes)
        header = StageRecordsHeader(*scope, self._position)
        frame = _StagedFrame(
            self._queue("", 0),
            self._staging_terms,
            self._on_answer,
            header=header,
            data=data,
            size=len(data),
            window=self._window,
        )
        self._position += len(data)
        self._window[frame] = None
        self._bytes += len(data)
        self._sender.add(frame)
        await self._sender.do_due()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, which answers to frames bring about, or raise why a frame is not staged."""
        await self._sender.until(lambda: self._failure is not None or condition())
        failure, self._failure = self._failure, None
        if isinstance(failure, SendOutcomeUnknown):
            assert self._scope is not None, "begun before"
            raise RequestTimeout(
                f"staging {self._scope.staging_id}", self._staging_terms.timeout_s, failure
            ) from failure
        if failure is not None:
            raise failure

    def _on_answer(self, frame: _StagedFrame) -> None:
        del self._window[frame]
        self._bytes -= frame.size
        self._failure = self._failure or frame.error

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
            self._leave_window()
            try:
                for frame in self._kept.frames():
                    await self._send_frame(frame)
            except BrokerError as another:
                error = another
            else:
                return

    def _leave_window(self) -> None:
        """Abandon the frames that are not answered."""
        self._sender.withdraw(self._window)
        self._window.clear()
        self._bytes = self._position = 0
        self._failure = None

    async def end(self) -> StagedPart:
        """Wait until everything staged is on the broker's disk, or raise like `stage`; return what `commit` needs."""
        while True:
            await self.wait_staged()
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
        await self._ask(RequestCode.END_STAGING, header.to_ext(_MSGPACK), f"end of staging {scope.staging_id}")

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

    async def query_staged(self, query_id: str | None = None) -> QueryStagedResult:
        """Return the broker's state of a query, or the total of what is staged."""
        call = await self._ask(
            RequestCode.QUERY_STAGED, QueryStagedHeader(query_id).to_ext(_MSGPACK), "look at what is staged"
        )
        return QueryStagedResult.from_ext(call.answer.ext)

    async def limits(self) -> BrokerLimits:
        """Ask the broker for its limits."""
        answer = await self.query_staged()
        return BrokerLimits(answer.new_topic_queues, answer.body_bytes_max or MESSAGE_BYTES_MAX)

    async def _ask(
        self, code: RequestCode, ext: dict[str, Value], what: str, body: Buffer = b"", timeout_s: float | None = None
    ) -> Call:
        deadline = self._session.deadline(timeout_s)
        while True:
            try:
                return await self._session.ask_ok(
                    code, ext, what=what, queue=self._queue("", 0), body=body, deadline=deadline
                )
            except BrokerError as error:
                if not _passes_soon(error) or self._session.runtime.now() >= deadline:
                    raise
            await self._session.runtime.sleep(_RETRY_PAUSE_S)

    # -- posts -----------------------------------------------------------------------------------------------------

    async def post_block(
        self, topic: str, queue_id: int, count: int, block: Buffer, *, ack: Ack | None = None
    ) -> Posted:
        """Send a PutMessage block of `count` records with unique ids, like `post` a message; return its first message.

        The block has one outcome, and counts as one in `PostsFailed`.

        Raises:
            RequestTimeout: there was no room for `timeout_s` seconds.
            ClientClosed: it was not taken either.
        """
        terms = self._post_terms[self._ack if ack is None else AckLevel(ack)]
        return await self._gathering.post_block(self._queue(topic, queue_id), count, block, terms)

    def _after_fork(self) -> None:
        """In a forked child: the parent stages what it has begun."""
        super()._after_fork()
        self._window.clear()
        self._bytes = 0


def _passes_soon(error: BrokerError) -> bool:
    """Whether to repeat a refused request; a full disk may stay full for long, so the caller is notified."""
    return error.retryable and error.error is not ErrorCode.DISK_FULL
