"""One client's connection: cut frames from each read, handle them all, answer with one write.

Answers that come later (after a sync, when a message arrives) go through the same outbox and never hold up the frames
behind them. A peer that breaks the framing rules gets one last error frame and is closed; nobody else notices.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
import trio

from reput_broker.config import LimitsConfig
from reput_broker.counters import Counters, ListenerTraffic, RequestTraffic
from reput_broker.request import ClientAnswer, ClientGone, PutRun, Refusal, Request, Response
from reput_broker.server.calls import ServerCalls
from reput_broker.server.dispatch import Dispatcher
from reput_broker.server.memory import BufferedBytes
from reput_broker.server.outbox import Outbox
from reput_broker.server.transport import Transport
from reput_protocol.codes import ROCKETMQ_VERSION, RequestCode
from reput_protocol.errors import ErrorCode, FrameTooLarge, ProtocolError, UnknownHeaderType, refusal_remark
from reput_protocol.frames import Frame, FrameReader, encode_frame, encode_frame_head
from reput_protocol.header import ONEWAY_FLAG, RESPONSE_FLAG, Header, HeaderType, Value, decode_header
from reput_protocol.put_frames import PutHeaderCache, opaque_of

log = structlog.get_logger(__name__)

_BODY_SENT_APART = 4096
_ANSWERS_A_WRITE = 64  # a read can bring hundreds of frames: let the peer go on while the rest is handled
_BYTES_A_TURN = 1 << 20  # after so many bytes of answers the others have their turn
_DEFERRED_REQUEST_BYTES = 512  # about what a request that is not answered yet costs
_ANSWERED_LOOK_S = 0.01
_MSGPACK = HeaderType.MSGPACK.value
_PUT_CODE = RequestCode.PUT_MESSAGE.value


class Connection:
    """A connected client.

    Args:
        transport: the peer.
        peer: `ip:port` of the peer, for logs.
        born_host, dialled_address: see `Client`.
        dispatcher: where requests go.
        traffic: counters of the listener that accepted it.
        nursery: where the connection's own tasks run.
        on_close: called once with the connection when it has ended.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        peer: str,
        born_host: bytes,
        dialled_address: str,
        dispatcher: Dispatcher,
        limits: LimitsConfig,
        counters: Counters,
        traffic: ListenerTraffic,
        memory: BufferedBytes,
        nursery: trio.Nursery,
        on_close: Callable[[Connection], None],
    ) -> None:
        self.peer = peer
        self.born_host = born_host
        self.dialled_address = dialled_address
        self.header_type = HeaderType.JSON.value
        self.silent_since = trio.current_time()
        self._transport = transport
        self._dispatcher = dispatcher
        self._limits = limits
        self._counters = counters
        self._traffic = traffic
        self._memory = memory
        self._nursery = nursery
        self._on_close = on_close
        self._role = "unknown"
        self._close_reason: str | None = None
        self._deferred: set[Request | PutRun] = set()
        self._deferred_requests = 0
        self._calls: ServerCalls | None = None
        self._memory_noted = 0
        self._scope = trio.CancelScope()
        self._reader = FrameReader(limits.frame_size, limits.header_size)
        self._put_headers = PutHeaderCache()
        self._put_traffic: RequestTraffic | None = None
        self._put_runs = False
        self.outbox = Outbox(
            transport,
            limit=lambda: limits.connection_buffer,
            note_buffered=lambda size: memory.change("write", size),
            note_sent=self._count_sent,
            start_drain=lambda: nursery.start_soon(self._drain),
        )

    # What processors use

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be answered any more."""
        return self._close_reason is not None

    @property
    def is_busy(self) -> bool:
        """Whether requests have been read that are not answered yet, or answers that are not sent."""
        return bool(self._deferred) or self.outbox.is_draining

    def answer(self, request: Request, response: Response) -> None:
        """Queue an answer; it leaves with the next `flush`. A oneway request is only counted."""
        if request.is_answered:
            return
        request.is_answered = True
        self._no_longer_deferred(request)
        frame = b""
        if self._close_reason is None and not request.header.flag & ONEWAY_FLAG:
            frame, response = self._encoded(request, response)
        request.traffic.done(response.code, time.monotonic() - request.received_at)
        if frame:
            self.outbox.write(frame)
            if len(response.body) >= _BODY_SENT_APART:
                self.outbox.write(response.body)

    def _encoded(self, request: Request, response: Response) -> tuple[bytes, Response]:
        """Return an answer's frame, without a large body, and the answer: another one if that cannot be sent."""
        header_type, body = request.header_type, response.body
        header = response.header(request.header.opaque, header_type)
        try:
            if len(body) < _BODY_SENT_APART:
                return encode_frame(header, header_type, body), response
            return encode_frame_head(header, header_type, len(body)), response
        except (ProtocolError, ValueError) as error:
            log.error(
                "answer_not_sent",
                peer=self.peer,
                code=request.header.code,
                detail=str(error),
                hint="a defect of the broker; please report it with this log entry",
            )
            refusal = Refusal(ErrorCode.INTERNAL, f"the answer cannot be sent: {error}").response()
            header = refusal.header(request.header.opaque, header_type)
            return encode_frame(header, header_type), refusal

    def answer_run(self, run: PutRun, frames: bytes, response_code: int = 0) -> None:
        """Queue the answers to all requests of a run; they leave with the next `flush`."""
        if run.is_answered:
            return
        run.is_answered = True
        if self._deferred:
            self._no_longer_deferred(run)
        run.traffic.done(response_code, time.monotonic() - run.received_at, run.count)
        if self._close_reason is None:
            self.outbox.write(frames)

    def _defer(self, asked: Request | PutRun) -> None:
        """Note that something is answered later. Until then it counts, once, as memory held for the peer."""
        if asked in self._deferred:
            return
        self._deferred.add(asked)
        self._deferred_requests += asked.count
        self._memory.change("read", asked.count * _DEFERRED_REQUEST_BYTES)

    def _no_longer_deferred(self, asked: Request | PutRun) -> None:
        if asked in self._deferred:
            self._deferred.discard(asked)
            self._deferred_requests -= asked.count
            self._memory.change("read", -asked.count * _DEFERRED_REQUEST_BYTES)

    def _count_sent(self, size: int) -> None:
        self._traffic.bytes_out += size

    def flush(self) -> None:
        """Write what is queued; a peer that has gone closes the connection."""
        try:
            self.outbox.flush()
        except OSError:
            self.close("peer")

    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run something beside the requests; an error in it is an answer's business, not the server's."""
        self._nursery.start_soon(work, *arguments)

    def note_role(self, role: str) -> None:
        """Note what the peer turned out to be; the first word stands."""
        if self._role == "unknown" and not self.is_closed:
            self._traffic.role_known(role)
            self._role = role

    def send_request(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> bool:
        """Send a oneway request now; False if it was not sent, because the peer is gone or takes nothing."""
        if self._close_reason is not None or self.outbox.is_crowded:
            return False
        header = self._server_calls.header(code, ext, self.header_type, oneway=True)
        return self._sent(encode_frame(header, self.header_type, body))

    async def call(
        self, code: int, ext: Mapping[str, Value], body: bytes = b"", *, timeout_s: float
    ) -> ClientAnswer:
        """Send a request and wait for its answer; see `Client.call`."""
        if self._close_reason is not None:
            raise ClientGone("the client's connection has ended")
        calls = self._server_calls
        header = calls.header(code, ext, self.header_type)
        frame = encode_frame(header, self.header_type, body)
        return await calls.call(
            header.opaque, lambda: not self.outbox.is_crowded and self._sent(frame), timeout_s
        )

    @property
    def _server_calls(self) -> ServerCalls:
        if self._calls is None:
            self._calls = ServerCalls()  # most clients are never asked anything
        return self._calls

    def _sent(self, frame: bytes) -> bool:
        self.outbox.write(frame)
        self.flush()
        return self._close_reason is None

    # Life

    async def run(self) -> None:
        """Serve the peer until either side ends it. Never raises what the peer or the network does."""
        try:
            with self._scope:
                await self._serve()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.close("peer")
        except Exception as error:
            log.error("connection_failed", peer=self.peer, exc_info=error, hint="a defect of the broker")
            self.close("error")
        finally:
            self.close("shutdown" if self._scope.cancel_called else "peer")
            self._on_close(self)

    def close(self, reason: str) -> None:
        """End the connection at once. The first reason counts."""
        if self._close_reason is not None:
            return
        self._close_reason = reason
        self._traffic.connection_closed(reason, self._role)
        self._memory.change("read", -self._memory_noted - self._deferred_requests * _DEFERRED_REQUEST_BYTES)
        self._memory_noted = self._deferred_requests = 0
        for request in self._deferred:
            request.is_answered = True
            request.traffic.abandoned(request.count)
        self._deferred.clear()
        if self._calls is not None:
            self._calls.ended()
        self.outbox.close()
        self._transport.close()
        self._scope.cancel()

    async def _serve(self) -> None:
        receive, reader = self._transport.receive, self._reader
        while self._close_reason is None:
            data = await receive()
            if not data:
                await self._finish_answers()
                return
            self.silent_since = trio.current_time()
            self._traffic.bytes_in += len(data)
            try:
                frames = reader.receive_data(data)
                await self._handle(frames)
                if reader.failure is not None:
                    raise reader.failure
            except ProtocolError as error:
                await self._refuse_peer(error)
                return
            buffered = reader.buffered_bytes
            if buffered != self._memory_noted:
                self._memory.change("read", buffered - self._memory_noted)
                self._memory_noted = buffered
            if self._is_held_back:
                await self._wait_for_room()

    @property
    def _is_held_back(self) -> bool:
        """Whether so much waits for this peer, or for all together, that nothing more of it is handled."""
        return (
            self.outbox.is_crowded
            or self._memory.is_over
            or (self._deferred_requests > 0 and self._owes_too_many_answers)
        )

    @property
    def _owes_too_many_answers(self) -> bool:
        return self._deferred_requests * _DEFERRED_REQUEST_BYTES > self._limits.connection_buffer

    async def _wait_for_room(self) -> None:
        if self.outbox.is_crowded:
            with self._held_back("write_queue"):
                await self.outbox.drained()
        if self._owes_too_many_answers:
            with self._held_back("memory"):
                # Rare; an event would cost every answer.
                while self._owes_too_many_answers and not self.is_closed:  # noqa: ASYNC110
                    await trio.sleep(_ANSWERED_LOOK_S)
        if self._memory.is_over:
            with self._held_back("memory"):
                await self._memory.wait()

    async def _handle(self, frames: list[Frame]) -> None:
        received_at = time.monotonic()
        self._put_runs = False
        try:
            position = 0
            while position < len(frames):
                run = self._run_of_puts(frames, position, received_at)
                count = 1 if run is None else run.count
                if run is None or not self._begin_run(run):
                    for frame in frames[position : position + count]:
                        await self._handle_one(frame, received_at)
                position += count
                if position < len(frames) and (
                    self.outbox.unsent_bytes > _BYTES_A_TURN or self._memory.is_over
                ):
                    await self._give_turn()
                if self._close_reason is not None:
                    return
            self.flush()
        finally:
            self._dispatch_puts()

    async def _give_turn(self) -> None:
        """In the middle of a read: let what is answered leave and others go on, and wait while too much is held."""
        self.flush()
        self._dispatch_puts()
        await trio.lowlevel.checkpoint()
        if self._is_held_back:
            await self._wait_for_room()

    def _run_of_puts(self, frames: list[Frame], start: int, received_at: float) -> PutRun | None:
        """Return the native puts from frame `start` on that can be handled together; None if it is none."""
        find = self._put_headers.find
        header_type, header_bytes, body = frames[start]
        header = find(header_bytes) if header_type == _MSGPACK else None
        if header is None:
            return None
        ack = header.ack
        traffic = self._put_traffic
        if traffic is None:
            traffic = self._put_traffic = self._counters.request(_MSGPACK, _PUT_CODE)
        run = PutRun(self, received_at, traffic, ack, [opaque_of(header_bytes)], [header], [body], 1)
        for header_type, header_bytes, body in frames[start + 1 : start + _ANSWERS_A_WRITE]:
            header = find(header_bytes) if header_type == _MSGPACK else None
            if header is None or header.ack is not ack:
                break
            run.opaques.append(opaque_of(header_bytes))
            run.headers.append(header)
            run.blocks.append(body)
        run.count = len(run.opaques)
        return run

    def _begin_run(self, run: PutRun) -> bool:
        run.traffic.inflight += run.count
        if not self._dispatcher.begin_run(run):
            run.traffic.inflight -= run.count
            return False
        self._put_runs = True
        self.header_type = _MSGPACK
        if not run.is_answered:
            self._defer(run)
        elif run.count == _ANSWERS_A_WRITE:
            self.flush()
        return True

    def _dispatch_puts(self) -> None:
        """Have what runs have put dispatched. Comes after the answers have left, and before anything is awaited."""
        if self._put_runs:
            self._put_runs = False
            self._dispatcher.after_puts(self)

    async def _handle_one(self, frame: Frame, received_at: float) -> None:
        header_type, header_bytes, body = frame
        header = decode_header(header_type, header_bytes)
        self.header_type = header_type
        if self._close_reason is not None:
            return
        if header.flag & RESPONSE_FLAG:
            if self._calls is not None:
                self._calls.answered(header, body)
            return
        traffic = self._counters.request(header_type, header.code)
        traffic.inflight += 1
        request = Request(self, header_type, header, body, received_at, traffic)
        result = self._dispatcher.begin(request)
        if result is not None and not isinstance(result, Response):
            self.flush()  # what is answered already does not wait for this one
            self._dispatch_puts()
            self._defer(request)
            result = await self._dispatcher.finish(request, result)
        if result is not None:
            self.answer(request, result)
            if self.outbox.queued >= _ANSWERS_A_WRITE:
                self.flush()
        elif header.flag & ONEWAY_FLAG:
            self.answer(request, Response())
        elif not request.is_answered:
            self._defer(request)
        if self._close_reason is not None:
            self._close_late(request)

    def _close_late(self, request: Request) -> None:
        """Count a request whose handling has outlived the connection."""
        if not request.is_answered:
            self._no_longer_deferred(request)
            request.is_answered = True
            request.traffic.abandoned()

    async def _finish_answers(self) -> None:
        """After the peer has closed its sending side: let what is under way be answered, if it still reads."""
        with trio.move_on_after(1.0):
            # Rare and short; an event would cost every answer.
            while self._deferred and not self.is_closed:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await self.outbox.drained()

    async def _refuse_peer(self, error: ProtocolError) -> None:
        """Say what was wrong, then close: after a framing error nothing that follows can be trusted."""
        reason = "too_large" if isinstance(error, FrameTooLarge) else "malformed"
        if isinstance(error, UnknownHeaderType):
            reason = "unknown_header_type"
        self._counters.protocol_error(self.header_type, reason)
        log.warning("connection_refused", peer=self.peer, reason=reason, detail=str(error))
        code = ErrorCode.TOO_LARGE if reason == "too_large" else ErrorCode.MALFORMED
        header = Header(
            int(code.response_code),
            0,
            RESPONSE_FLAG,
            refusal_remark(code, f"{error}; the connection is closed"),
            version=ROCKETMQ_VERSION,
        )
        self.outbox.write(encode_frame(header, self.header_type))
        self.flush()
        with trio.move_on_after(1.0):
            await self.outbox.drained()
        self.close("malformed")

    async def _drain(self) -> None:
        try:
            await self.outbox.drain()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.close("peer")

    def _held_back(self, cause: str) -> _HeldBack:
        return _HeldBack(self._counters, cause)


class _HeldBack:
    """Counts how long a client was held back."""

    def __init__(self, counters: Counters, cause: str) -> None:
        self._counters, self._cause = counters, cause
        self._since = 0.0

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._counters.backpressure_seconds[self._cause] += time.monotonic() - self._since
