"""A client's connection: split each read into frames, handle them all, answer with one write.

Later answers (after a sync, when a message arrives) go through the same outbox and do not delay the frames behind
them. A peer that breaks the framing rules receives an error frame and is closed; other connections are not affected.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import structlog
import trio
from typing_extensions import override

from reput_broker.config.sections import LimitsConfig
from reput_broker.observe.counters import Counters, ListenerTraffic
from reput_broker.remoting.request import (
    Client,
    ClientAnswer,
    ClientGone,
    Handled,
    Principal,
    Put,
    Refusal,
    Request,
    Response,
)
from reput_broker.server.connection_limits import HEADER_BYTES_MAX, UNAUTHENTICATED_MAX, ConnectionRefusals, Strangers
from reput_broker.server.handling import PUTS, RequestHandling
from reput_broker.server.memory import FramePermit, FrameProgress, HeldBytes, Holder
from reput_broker.server.transport import ClientCalls, Outbox, Transport
from reput_broker.store.base.results import PutResult
from reput_protocol.codes import ROCKETMQ_VERSION
from reput_protocol.commands.base import Sender
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import ErrorCode, FrameTooLarge, ProtocolError, UnknownHeaderType, refusal_remark
from reput_protocol.wire.frames import Frame, FrameReader, decode_header, encode_frame, encode_frame_head
from reput_protocol.wire.header import ONEWAY_FLAG, RESPONSE_FLAG, Header, HeaderType, Value
from reput_protocol.wire.signature import SignatureChecker
from reput_protocol.wire.tls import FIRST_BYTE

log = structlog.get_logger(__name__)

_BODY_SENT_APART = 4096
_ANSWERS_A_WRITE = 64  # a read can hold hundreds of frames: the peer continues while the rest is handled
_BYTES_A_TURN = 1 << 20  # after so many bytes of answers other tasks run
_HANDLING_S = 0.002  # likewise
DEFERRED_REQUEST_BYTES = 512  # approximate memory of a request that is not answered
_ANSWERED_LOOK_S = 0.01
_HEADER_FACTOR = 8  # memory of a decoded header per encoded byte, approximately
_NO_BODY = memoryview(b"")
# By who sends a request, the role that a connection has from then on; others may come from any peer.
_ROLES = {Sender.PRODUCER: "producer", Sender.CONSUMER: "consumer", Sender.OPERATOR: "admin", Sender.BROKER: "broker"}


class Addresses(NamedTuple):
    """The ends of a connection; see `Client`."""

    peer: str
    born_host: bytes
    dialled_address: str
    is_local: bool = False


class Shared(NamedTuple):
    """What the connections of a server share."""

    handling: RequestHandling
    limits: LimitsConfig
    counters: Counters
    memory: HeldBytes
    next_turn: trio.Lock
    """Acquired, and released at once, before every turn but the first of a read: in a round of the event loop one of
    the connections that have much to do continues, so that the others wait for one turn and not for all of them."""
    refusals: ConnectionRefusals
    strangers: Strangers[Connection] | None = None
    """Limits of connections before their first request of a user; None without access control."""


class Connection(Client, Holder):
    """A connected client.

    Args:
        transport: the peer.
        traffic: counters of the listener that accepted the connection.
        nursery: where the tasks of the connection run.
        on_close: called once with the connection when it has ended.
        listener: the name of that listener.
    """

    def __init__(
        self,
        transport: Transport,
        addresses: Addresses,
        shared: Shared,
        traffic: ListenerTraffic,
        nursery: trio.Nursery,
        on_close: Callable[[Connection], None],
        listener: str = "main",
    ) -> None:
        self.peer, self.born_host, self.dialled_address, self.is_local = addresses
        self.principal: Principal | None = None
        self.signatures: SignatureChecker | None = None
        self.header_type = HeaderType.JSON.value
        self.listener = listener
        self.role = "unknown"
        """See `note_role`."""
        self.opened_at = self.silent_since = trio.current_time()
        self._transport = transport
        self._shared = shared
        self._handling, self._counters, self._strangers = shared.handling, shared.counters, shared.strangers
        self._is_stranger = self._strangers is not None
        self._memory = shared.memory if self._strangers is None else self._strangers.memory
        self._traffic = traffic
        self._nursery = nursery
        self._on_close = on_close
        self._close_reason: str | None = None
        self._deferred: dict[Request, int] = {}  # with the bytes that each is counted with
        self._deferred_bytes = 0
        self._read_noted = 0  # bytes of frames that are unfinished, or whose handling waits
        self._read_size = 0
        self._progress = FrameProgress()
        self._permit = FramePermit()
        self._scope = trio.CancelScope()
        self._reader = FrameReader(self._shared.limits.frame_size, self._shared.limits.header_size)
        self._has_put = False
        self._is_handling = False
        self._is_ending = False
        self.unauthenticated = 0
        self._penalized = 0
        self.outbox = Outbox(
            transport,
            limit=lambda: self._memory.share,
            note_buffered=self._note_written,
            traffic=traffic,
            start_drain=lambda: nursery.start_soon(self._drain),
        )
        self._calls = ClientCalls(self.outbox, self._send_now)

    # What processors use

    @property
    @override
    def is_closed(self) -> bool:
        return self._close_reason is not None

    @property
    def host(self) -> str:
        """The address of the peer."""
        return self.peer.rpartition(":")[0]

    @property
    def is_busy(self) -> bool:
        """Whether requests that were read are not answered, or answers are not sent."""
        return bool(self._deferred) or self.outbox.is_draining

    @property
    @override
    def share(self) -> int:
        return self._memory.share

    @property
    @override
    def is_crowded(self) -> bool:
        return self.outbox.is_crowded

    @override
    async def drained(self) -> None:
        await self.outbox.drained()

    @override
    def answer(self, request: Request, response: Response) -> None:
        """The answer to a oneway request is only counted."""
        if request.is_answered:
            return
        request.is_answered = True
        if self._deferred:
            self._no_longer_deferred(request)
        frame, body = b"", response.body
        if self._close_reason is None and not request.header.flag & ONEWAY_FLAG:
            header_type = request.header_type
            header = response.header(request.header.opaque, header_type)
            try:
                frame = encode_frame_head(header, header_type, len(body))
            except (ProtocolError, ValueError) as error:
                response, body = self._not_sent(request, error), b""
                frame = encode_frame(response.header(request.header.opaque, header_type), header_type)
        request.traffic.done(response.code, time.monotonic() - request.received_at)
        if frame:
            if len(body) < _BODY_SENT_APART:
                self.outbox.write(frame + body if body else frame)
            else:
                self.outbox.write(frame)
                self.outbox.write(body)

    def _not_sent(self, request: Request, error: Exception) -> Response:
        """Log an answer that cannot be encoded; return the refusal to send instead."""
        if isinstance(error, FrameTooLarge):
            log.warning(
                "response_too_large",
                peer=self.peer,
                code=request.header.code,
                detail=str(error),
                hint="delete topics and groups that are not used; slaves get their tables in parts",
            )
            text = f"the response to request {request.header.code} does not fit a frame: {error}"
            return Refusal(ErrorCode.TOO_LARGE, text).response()
        log.error(
            "response_not_sent",
            peer=self.peer,
            code=request.header.code,
            detail=str(error),
            hint="a defect of the broker; please report it with this log entry",
        )
        return Refusal(ErrorCode.INTERNAL, f"the response cannot be sent: {error}").response()

    def _defer(self, asked: Request, size: int) -> None:
        """Count `size` bytes as held for the peer until a request is answered."""
        change = size - self._deferred.get(asked, 0)
        self._deferred[asked] = size
        self._deferred_bytes += change
        self._memory.change(self, "read", change)

    def _no_longer_deferred(self, asked: Request) -> None:
        size = self._deferred.pop(asked, 0)
        if size:
            self._deferred_bytes -= size
            self._memory.change(self, "read", -size)

    @override
    def held_elsewhere(self, request: Request) -> None:
        if request in self._deferred:
            self._defer(request, 0)

    @override
    def flush(self) -> None:
        """If the peer has gone, the connection is closed."""
        try:
            self.outbox.flush()
        except OSError:
            self.close("peer")

    @override
    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """The task handles its own errors."""
        self._nursery.start_soon(work, *arguments)

    @override
    def note_role(self, role: str) -> None:
        """The first role counts."""
        if self.role == "unknown" and not self.is_closed:
            self._traffic.role_known(role)
            self.role = role

    @override
    def send_request(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> bool:
        if self._close_reason is not None or self.outbox.is_crowded:
            return False
        return self._calls.send_oneway(self.header_type, code, ext, body)

    @override
    async def call(self, code: int, ext: Mapping[str, Value], body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        if self._close_reason is not None:
            raise ClientGone("the client's connection has ended")
        return await self._calls.call(self.header_type, code, ext, body, timeout_s)

    def _send_now(self, frame: bytes) -> bool:
        self.outbox.write(frame)
        self.flush()
        return self._close_reason is None

    # Life

    async def run(self) -> None:
        """Serve the peer until either side ends the connection. Does not raise errors of the peer or the network."""
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
            self._permit.release()  # it may have begun after `close`
            self._on_close(self)

    async def finish(self) -> None:
        """Answer what was read, then tell the peer that nothing else was handled, because the server stops.

        What arrives from now on is dropped. The connection is left for the peer to close: if it were closed with bytes
        that were not read, the system would take back answers that the peer has not read.
        """
        self._is_ending = True
        while (self._is_handling or self.is_busy) and not self.is_closed:  # noqa: ASYNC110 - once, at the end
            await trio.sleep(_ANSWERED_LOOK_S)
        if self.is_closed:
            return
        nothing_came = self.silent_since == self.opened_at
        if nothing_came or self.header_type == HeaderType.MSGPACK:
            detail = "the broker stops; requests without a response were not handled"
            self.outbox.write(self._last_words(ErrorCode.DRAINING, detail))
        self.flush()
        await self.outbox.drained()
        with suppress(OSError):
            self._transport.end_sending()

    @override
    def close(self, reason: str) -> None:
        """The first reason counts."""
        if self._close_reason is not None:
            return
        self._close_reason = reason
        self._traffic.connection_closed(reason, self.role)
        self._memory.change(self, "read", -self._read_noted - self._deferred_bytes)
        self._read_noted = self._deferred_bytes = 0
        self._reader.close()  # frees its memory; the connection may be collected much later
        self._permit.release()
        for request in self._deferred:
            request.is_answered = True
            request.traffic.abandoned()
        self._deferred.clear()
        self._calls.end()
        self.outbox.close()
        self._transport.close()
        self._scope.cancel()

    @property
    def is_stranger(self) -> bool:
        """Whether access control is on, and no request of a user has come."""
        return self._is_stranger and self.principal is None

    async def _serve(self) -> None:
        await self._pause_stranger()
        receive, reader, progress = self._transport.receive, self._reader, self._progress
        while self._close_reason is None:
            data = await (self._receive_more() if self._read_noted else receive())
            if not data:
                await self._finish_answers()
                return
            if self._is_ending:
                continue  # the peer is told that this was not handled
            self.silent_since = now = trio.current_time()
            self._traffic.bytes_in += len(data)
            try:
                frames = reader.receive_data(data)
                mid_frame = reader.mid_frame
                if mid_frame and self._read_noted and not frames:
                    progress.received(len(data), now)
                elif mid_frame:
                    progress.begin(now)
                if frames:
                    if self._permit.is_held:
                        self._permit.release()
                    self._read_size = self._read_noted + len(data)
                    if mid_frame:
                        progress.pause(now)
                    self._is_handling = True
                    await self._handle(frames)
                    self._is_handling = False
                    if mid_frame:
                        progress.begin(trio.current_time())
                if reader.failure is not None:
                    raise reader.failure
                if self._is_stranger or self.unauthenticated:
                    await self._check_user()
            except ProtocolError as error:
                await self._refuse_peer(error)
                return
            data, frames = b"", []  # frees the memory before the next read
            if self._read_noted or mid_frame:
                self._note_read(reader.allocated_bytes)
            if self.outbox.unsent_bytes or self._deferred_bytes:
                await self._wait_for_room()

    async def _check_user(self) -> None:
        """After a read: apply the limits of strangers, or lift them once a user is known.

        Raises:
            FrameTooLarge: a stranger has begun a frame that is too large for it.
        """
        if self.unauthenticated:
            await self._pause_stranger()
            if self.unauthenticated >= UNAUTHENTICATED_MAX:
                self.turn_away(
                    "auth",
                    f"{self.unauthenticated} requests in a row had no valid signature",
                    "check the user and secret of this client",
                )
        if not self._is_stranger or self._strangers is None:
            return
        if self.principal is not None:
            self._is_stranger = False
            self._strangers.crowd.discard(self)
            self._strangers.memory.hand_over(self, self._shared.memory)
            self._memory = self._shared.memory
        elif self._reader.needed_bytes > self._strangers.frame_size:
            raise FrameTooLarge(
                "frame before the first valid signature", self._reader.needed_bytes, self._strangers.frame_size
            )

    async def _pause_stranger(self) -> None:
        """Wait if requests without a valid signature came from the peer's address, this connection's included."""
        if self._strangers is None or (self.principal is not None and not self.unauthenticated):
            return
        host, penalties = self.host, self._strangers.penalties
        penalties.failed(host, max(0, self.unauthenticated - self._penalized))
        self._penalized = self.unauthenticated
        pause_s = penalties.pause_s(host)
        if pause_s > 0:
            await trio.sleep(pause_s)

    async def _receive_more(self) -> bytes:
        """Receive more of an unfinished frame. One beyond the share of the connection needs the permit."""
        transport, permit, data = self._transport, self._permit, None
        if permit.is_held:
            data = await permit.receive(transport)
        if data is None:
            if self._exceeds_share:
                await transport.arrived()  # so that a peer that sends nothing takes no permit
            if self._exceeds_share:
                with self._held_back("memory"):
                    await permit.acquire(self._memory)
            data = await transport.receive()
        permit.received_bytes += len(data)
        return data

    @property
    def _exceeds_share(self) -> bool:
        return self._memory.held_for(self) > self._memory.share

    def _note_read(self, size: int) -> None:
        if self._close_reason is None:
            change, self._read_noted = size - self._read_noted, size
            self._memory.change(self, "read", change)

    def _note_written(self, change: int) -> None:
        self._memory.change(self, "write", change)
        limit = self._shared.limits.connection_buffer + self._shared.limits.frame_size
        if change > 0 and self.outbox.unsent_bytes > limit:
            self.turn_away(
                "memory",
                f"{self.outbox.unsent_bytes} bytes of responses wait for it; at most {limit} may",
                "make the client read its responses, or raise limits.connection_buffer",
            )

    @property
    def _owes_too_many_answers(self) -> bool:
        return self._deferred_bytes > self._shared.limits.connection_buffer

    async def _wait_for_room(self) -> None:
        """Wait while so much is held for the peer that its requests are not handled."""
        if self.outbox.is_crowded:
            self._permit.release()
            with self._held_back("write_queue"):
                await self.outbox.drained()
        if self._owes_too_many_answers:
            self._permit.release()
            with self._held_back("memory"):
                # Rare; an event would cost every answer.
                while self._owes_too_many_answers and not self.is_closed:  # noqa: ASYNC110
                    await trio.sleep(_ANSWERED_LOOK_S)

    async def _handle(self, frames: list[Frame]) -> None:
        received_at = time.monotonic()
        puts: list[Put] = []  # of consecutive requests; appended together
        begin, last = self._handling.begin, frames[-1]
        try:
            turn_ends_at = time.perf_counter() + _HANDLING_S
            for frame in frames:
                request = self._request_of(frame, received_at)
                if request is None:
                    continue
                if puts and request.header.code not in PUTS:
                    await self._append(puts)
                result = begin(request)
                if self.role == "unknown":
                    self._note_sender(request)
                if not isinstance(result, Put):
                    if puts:
                        await self._append(puts)
                    if isinstance(result, Awaitable):
                        result = await self._resolved(request, result)
                if isinstance(result, Put):
                    puts.append(result)
                    if len(puts) < _ANSWERS_A_WRITE:
                        continue
                    await self._append(puts)
                else:
                    if result is not None:
                        self.answer(request, result)
                    if not request.is_answered:
                        self._note_answered_later(request)
                if self._close_reason is not None or self.unauthenticated >= UNAUTHENTICATED_MAX:
                    return
                if frame is last:
                    break
                if time.perf_counter() > turn_ends_at or self.outbox.unsent_bytes > _BYTES_A_TURN:
                    await self._give_turn()
                    turn_ends_at = time.perf_counter() + _HANDLING_S
                elif len(self.outbox.queued) >= _ANSWERS_A_WRITE:
                    self.flush()
            if puts:
                await self._append(puts)
        except ProtocolError:  # the frames before it are valid
            if puts:
                await self._append(puts)
            raise
        finally:
            for put in puts:  # left over if the connection was closed
                self._close_late(put.request)
            self._send_answers()

    async def _give_turn(self) -> None:
        """Within a read: send the answers, let other tasks run, and wait while too much is held."""
        self._send_answers()
        async with self._shared.next_turn:
            pass
        await self._wait_for_room()

    def _send_answers(self) -> None:
        """Send the answers, then have what was put dispatched; before awaiting."""
        self.flush()
        after_puts = self._handling.after_puts
        if self._has_put and after_puts is not None:
            self._has_put = False
            after_puts(self)

    def _request_of(self, frame: Frame, received_at: float) -> Request | None:
        """Return the request in a frame; None if it is an answer, or the connection is closed."""
        header_type, header_bytes, body = frame
        if len(header_bytes) > HEADER_BYTES_MAX and self.is_stranger:
            raise FrameTooLarge("header before the first valid signature", len(header_bytes), HEADER_BYTES_MAX)
        header = decode_header(header_type, header_bytes)
        self.header_type = header_type
        if self._close_reason is not None:
            return None
        if header.flag & RESPONSE_FLAG:
            if not self._calls.answered(header, body) and self.is_stranger:
                self.unauthenticated += 1  # it was asked nothing
            return None
        traffic = self._counters.requests[header_type, header.code]
        traffic.inflight += 1
        cost = DEFERRED_REQUEST_BYTES + _HEADER_FACTOR * len(header_bytes)
        return Request(self, header_type, header, body, received_at, traffic, cost=cost)

    async def _append(self, puts: list[Put]) -> None:
        """Append puts, at least one, and answer those that need not wait for the disk."""
        waiting = self._handling.append(puts)
        self._has_put = True
        if waiting is not None:
            self._note_waiting([put.request for put in puts])
            await waiting
        for put in puts:
            outcome = put.outcome
            if isinstance(outcome, Exception):
                outcome = self._handling.refused(put.request, outcome)
            assert not isinstance(outcome, PutResult), "`append` has replaced it"
            if outcome is not None:
                self.answer(put.request, outcome)
            if not put.request.is_answered:
                self._note_answered_later(put.request)
        puts.clear()

    async def _resolved(self, request: Request, work: Awaitable[Handled]) -> Handled:
        """Return what the coroutine of a handler ends with."""
        self._note_waiting([request])
        result = await self._handling.resolve(request, work)
        self._has_put = True  # it may have
        return result

    def _note_waiting(self, requests: Sequence[Request]) -> None:
        """Before a wait: send the answers, and count the read as held, since it stays in memory."""
        self._send_answers()
        self._note_read(self._read_size)
        for request in requests:
            self._defer(request, request.cost)

    def _note_sender(self, request: Request) -> None:
        if not self.is_stranger:
            row = REQUESTS.get(request.header.code)
            if row is not None and row.sender in _ROLES:
                self.note_role(_ROLES[row.sender])

    def _note_answered_later(self, request: Request) -> None:
        if request.is_oneway:
            self.answer(request, Response())
            return
        if not request.body:
            request.body = _NO_BODY  # an empty view would keep the whole read in memory
        self._defer(request, 0 if request.is_held else request.cost + len(request.body))
        if self._close_reason is not None:
            self._close_late(request)

    def _close_late(self, request: Request) -> None:
        """Count a request whose connection was closed while it was handled."""
        if not request.is_answered:
            self._no_longer_deferred(request)
            request.is_answered = True
            request.traffic.abandoned()

    async def _finish_answers(self) -> None:
        """After the peer has closed its sending side: wait up to a second for the answers in flight."""
        with trio.move_on_after(1.0):
            # Rare and short; an event would cost every answer.
            while self._deferred and not self.is_closed:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await self.outbox.drained()

    async def _refuse_peer(self, error: ProtocolError) -> None:
        """Send the error, then close: after a framing error the rest of the stream cannot be parsed."""
        reason = "too_large" if isinstance(error, FrameTooLarge) else "malformed"
        if isinstance(error, UnknownHeaderType):
            reason = "unknown_header_type"
        self._counters.protocol_error(self.header_type, reason)
        detail = str(error)
        if isinstance(error, FrameTooLarge) and error.size >> 24 == FIRST_BYTE:
            detail = "it begins with TLS, and tls.mode is off"
        if self.is_stranger and self._strangers is not None:
            self._strangers.penalties.failed(self.host, 1)
        self._shared.refusals.refused(self.peer, reason, detail=detail)
        code = ErrorCode.TOO_LARGE if reason == "too_large" else ErrorCode.MALFORMED
        self.outbox.write(self._last_words(code, str(error)))
        self.flush()
        with trio.move_on_after(1.0):
            await self.outbox.drained()
        self.close("malformed")

    async def _drain(self) -> None:
        try:
            await self.outbox.drain()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.close("peer")

    def _last_words(self, code: ErrorCode, detail: str) -> bytes:
        header = Header(
            int(code.response_code),
            0,
            RESPONSE_FLAG,
            refusal_remark(code, f"{detail}; the connection is closed"),
            version=ROCKETMQ_VERSION,
        )
        return encode_frame(header, self.header_type)

    # Timeouts and the memory limit

    def look_after(self, now: float) -> None:
        """Close the connection if the peer is silent, does not read its answers, or sends a frame too slowly."""
        limits, outbox, reader, progress = self._shared.limits, self.outbox, self._reader, self._progress
        if outbox.is_draining and now - outbox.progress_at > limits.slow_reader_timeout:
            self.turn_away(
                "slow_reader",
                f"it does not read its responses; {outbox.unsent_bytes} bytes wait",
                "see limits.slow_reader_timeout",
            )
        elif reader.mid_frame and not progress.is_paused and progress.slow_s(now) > limits.slow_sender_timeout:
            sizes = f"{reader.buffered_bytes} of {reader.needed_bytes} bytes have arrived"
            self.turn_away(
                "slow_sender",
                f"it has sent slower than 16 KiB a second for {limits.slow_sender_timeout:g} s: {sizes}",
                "see limits.slow_sender_timeout",
            )
        elif self.is_stranger and self._strangers and now - self.opened_at > self._strangers.timeout_s:
            self.turn_away(
                "auth",
                f"it has sent no request with a valid signature within {self._strangers.timeout_s:g} s",
                "see access.first_signature_timeout",
            )
        elif self.is_busy:
            self.silent_since = now  # the client waits for the broker
        elif now - self.silent_since > limits.idle_timeout:
            self.close("idle")

    @override
    def stuck_s(self, now: float) -> float:
        reading = self._progress.stuck_s(now) if self._reader.mid_frame else 0.0
        writing = now - self.outbox.progress_at if self.outbox.is_draining else 0.0
        return max(reading, writing)

    @override
    def give_way(self, detail: str) -> None:
        self.turn_away("memory", detail, "raise limits.buffer_total")

    def turn_away(self, reason: str, detail: str, hint: str) -> None:
        """Close the connection and name the reason, in the log and to the peer; `hint` is for the log."""
        if self.is_closed:
            return
        self._shared.refusals.refused(self.peer, reason, detail=detail, hint=hint)
        if not self.outbox.is_draining:  # otherwise the peer is receiving another answer
            code = ErrorCode.BUSY if reason == "memory" else ErrorCode.TIMEOUT
            with suppress(OSError):
                self._transport.try_send([self._last_words(code, detail)])
        self.close(reason)

    @contextmanager
    def _held_back(self, cause: str) -> Iterator[None]:
        """Count the time for which the peer is held back, which does not count against its frame."""
        started_at = trio.current_time()
        was_paused = self._progress.is_paused
        if not was_paused:
            self._progress.pause(started_at)
        try:
            yield
        finally:
            if not was_paused:
                self._progress.resume()
            self._counters.backpressure_seconds[cause] += trio.current_time() - started_at
