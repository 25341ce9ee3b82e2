"""One connection to a broker: identifying the broker, writing, reading, losing it. `new_socket` makes its sockets."""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from reput_client.errors import ClientClosed, ConnectFailed, ConnectionLost, NotABroker, TlsRefused
from reput_client.transport.address import Address, BrokerIdentity
from reput_client.transport.broker_requests import BrokerRequest
from reput_client.transport.channel import (
    ClientChannel,
    OnewayCall,
    Outgoing,
    RequestTemplate,
    RocketBroker,
    SentToRocket,
    UnsignedHead,
    rocket_form,
)
from reput_client.transport.new_socket import CONNECT_WITH_TLS, connect, secure, try_until
from reput_client.transport.options import ClientOptions
from reput_client.transport.pump import Pump
from reput_client.transport.runtime import Event, Runtime
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import MASTER_ID
from reput_protocol.commands.users import NoSigner, signer_of
from reput_protocol.errors import ErrorCode, ProtocolError, ReputError, TlsFailed
from reput_protocol.wire.channel import Call, Peer, Waiter
from reput_protocol.wire.frames import encode_frame_head
from reput_protocol.wire.header import ONEWAY_FLAG, Header
from reput_protocol.wire.signature import Credentials, RequestSigner

if TYPE_CHECKING:
    from reput_client.transport.tls_socket import TlsSocket

# The system maps a larger read buffer each time, which costs more than a small read. So it is large only after a read
# that filled it, or while a frame is incomplete.
_READ_BYTES: Final = 64 * 1024
_READ_BYTES_LARGE: Final = 1024 * 1024
_READS_MAX: Final = 8
_IDLE_S: Final = 0.05
"""A connection without an answer for this long is checked before use."""
_STUCK_S: Final = 0.01
"""The write turn is given up after this long without writing a byte."""
_JOIN_BYTES_MAX: Final = 256 * 1024
_OTHER_SERVERS: Final = {
    b"HTTP/": "an HTTP server responds there (the broker's http_port?)",
    b"-ERR": "a Redis server responds there",
    b"-NOAUTH": "a Redis server responds there",
    b"INFO {": "a NATS server responds there",
    b"AMQP": "an AMQP server, such as RabbitMQ, responds there",
    b"SSH-": "an SSH server responds there",
}
"""By the first bytes that they send."""
_ENDED_AT_ONCE: Final = (
    "it accepts connections and closes them without a response (the broker's ha_port, or another server?)"
)
_IOV_MAX: Final = 64
_TLS_REQUIRED: Final = f"{ErrorCode.TLS_REQUIRED.name}: "


class BrokerConnection:
    """A connection to `address`, opened when needed and again after it was lost.

    Alternative addresses are tried one after the other, each for a short time, starting with the last that worked; one
    may accept connections and never answer. An address that another broker announced may belong to a different broker.
    In both cases the broker must identify itself before a new connection is used.

    Invariant: without a socket, no call is pending and nothing is unwritten. Losing it fails every pending call and
    drops every unwritten frame; a call's `sent` tells which.

    Attributes:
        epoch: counts the sockets. What the broker knows of this client by its connection is valid for one epoch.
        has_slaves: whether a slave may be asked instead of the broker at this address.
        broker: the broker's identity, if it was asked and answered.
        is_master: whether it was a master then, or was not asked; a broker closes its connections when that changes.
    """

    def __init__(
        self,
        runtime: Runtime,
        pump: Pump,
        address: Address,
        options: ClientOptions,
        on_request: Callable[[BrokerRequest], None],
        on_lost: Callable[[BrokerConnection], None],
        on_met: Callable[[BrokerConnection], None] = lambda _connection: None,
    ) -> None:
        """Start without a connection. The callbacks must neither wait nor raise.

        Args:
            options: of the client: its back-off; how to encrypt, and what requests are signed with.
            on_request: called with each request from the broker.
            on_lost: called when the connection has ended.
            on_met: called when the broker has identified itself.
        """
        self._runtime = runtime
        self._pump = pump
        self.address = address
        self.epoch = 0
        self._backoff = options.new_backoff()
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_met = on_met
        self._credentials = options.credentials
        self._places = deque(address.each)  # next to try first
        self._expected: BrokerIdentity | None = None
        self.has_slaves = False
        self.broker: BrokerIdentity | None = None
        self.is_master = True
        self._in_doubt = False  # whether the broker must identify itself before use
        self._peer = Peer.UNKNOWN  # of the last connection
        self._rocket = RocketBroker(str(address))
        self._channel = self._new_channel()
        self._tls = options.tls
        self._socket: socket.socket | None = None  # waits are for it
        self._wire: socket.socket | TlsSocket | None = None  # reads and writes; the socket itself without TLS
        self._secured: TlsSocket | None = None  # `_wire`, with TLS
        self._connecting: Event | None = None
        self._next_attempt_at = -math.inf
        self._failed_at = -math.inf
        self._last_failure = "not tried yet"
        self._out: deque[Outgoing] = deque()
        self._out_skip = 0  # written bytes of the first frame
        self._writing = False
        self._closed = False
        self._useful = False  # whether it has received anything
        self._read_bytes = _READ_BYTES
        self._read_at = -math.inf

    # -- connecting ------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether frames may be queued: there is a socket, and its broker is not in doubt."""
        return self._socket is not None and not self._in_doubt

    def silence(self, since: float) -> str | None:
        """Return why a request that began at `since` timed out, if the present connection has never received a byte."""
        if self._socket is None or self._useful:
            return None
        if self._failed_at >= since:
            return f"{self.place}: {self._last_failure}"
        return f"{self.place} has not responded at all: check that it is a broker's port for clients"

    def is_of(self, broker_name: str) -> bool:
        """Whether the broker at the other end may have this name."""
        return self.broker is None or self.broker.name == broker_name

    @property
    def place(self) -> Address:
        """The address of the present or next connection, if there are several to try."""
        return self._places[0]

    @property
    def sock(self) -> socket.socket:
        """The socket of an open connection."""
        assert self._socket is not None, "the connection is not open"
        return self._socket

    async def open(self, deadline: float, *, patient: bool) -> None:
        """Connect if there is no connection. Concurrent calls wait for the same attempt.

        Args:
            deadline: when to give up, on the runtime's clock.
            patient: retry with back-off until the deadline instead of failing after one attempt.

        Raises:
            ConnectFailed: no connection before the deadline.
            ClientClosed: the client was closed.
        """
        if self.usable():
            return
        began_at = self._runtime.now()
        while not self.is_open:
            if self._closed:
                raise ClientClosed
            if self._connecting is not None:
                await self._connecting.wait(deadline - self._runtime.now())
            else:
                await self._attempt(began_at, deadline, patient)
            if not self.is_open and self._runtime.now() >= deadline:
                raise self.failure()

    async def check(self, deadline: float) -> None:
        """Make a broker in doubt identify itself; if it does not in a short time, the connection is lost."""
        if self._connecting is not None:
            await self._connecting.wait(deadline - self._runtime.now())
            return
        self._connecting = event = self._runtime.event()
        try:
            began_at = self._runtime.now()
            is_lost = self._socket is not None and not await self._still_answers(began_at, deadline)
            if is_lost and not self.address.others:  # else the others have not been tried
                self._next_attempt_at = self._runtime.now() + self._backoff.next_delay_s()
        finally:
            self._connecting = None
            event.set()

    @property
    def is_resting(self) -> bool:
        """Whether there is no connection, and the last attempt failed so recently that the next one is not due."""
        return self._socket is None and self._runtime.now() < self._next_attempt_at

    async def _attempt(self, began_at: float, deadline: float, patient: bool) -> None:
        self._connecting = event = self._runtime.event()
        try:
            if self._socket is not None and await self._still_answers(began_at, deadline):
                return
            pause_s = self._next_attempt_at - self._runtime.now()
            if pause_s > 0 and patient:
                await self._runtime.sleep(max(0.0, min(pause_s, deadline - self._runtime.now())))
            if self._closed:
                raise ClientClosed
            if self._runtime.now() >= deadline:
                return
            failures: list[str] = []
            refused: list[TlsRefused] = []
            for left in range(len(self._places), 0, -1):
                place = self._places[0]
                until = deadline if not self.address.others else self._try_until(deadline, left)
                try:
                    await self._connect_to(place, until, deadline)
                except (ConnectionLost, ConnectFailed) as error:  # before its base class
                    reason = error.reason
                    if isinstance(error, TlsRefused):
                        refused.append(error)
                except OSError as error:
                    if error.errno is None:
                        raise  # from a signal handler
                    reason = error.strerror or str(error)
                else:
                    return
                failures.append(f"{place}: {reason}" if self.address.others else reason)
                self._places.rotate(-1)
            self._note_failure("; ".join(failures), began_at, deadline)
            self._next_attempt_at = self._runtime.now() + self._backoff.next_delay_s()
            if len(refused) == len(failures):
                raise refused[0]  # which no repetition changes
            if not patient:
                raise self.failure()
        finally:
            self._connecting = None
            event.set()

    def _note_failure(self, reason: str, began_at: float, deadline: float) -> None:
        """Keep the reason, unless the deadline has ended this attempt and there is one of an earlier attempt."""
        now = self._runtime.now()
        if now < deadline or self._failed_at < began_at:
            self._last_failure = reason
            self._failed_at = now

    def failure(self) -> ConnectFailed:
        """Return the error of the last attempt."""
        expected = self._expected
        return ConnectFailed(str(self.address), self._last_failure, None if expected is None else expected.name)

    async def _connect_to(self, place: Address, until: float, deadline: float) -> None:
        """Connect to one address by `until` and, if the broker is in doubt, make it identify itself."""
        sock = await connect(self._runtime, place, until)
        secured = None if self._tls is None else await secure(self._runtime, sock, self._tls, place, until)
        if self._closed:
            sock.close()
            raise ClientClosed
        self._channel = self._new_channel()
        self._useful = False
        try:
            self._in_doubt = self.has_alternative or self._credentials is not None
            self._socket, self._secured = sock, secured
            self._wire = sock if secured is None else secured
            self.epoch += 1
            self._pump.add(self)
            if self._credentials is not None:
                await self._agree_on_signatures(self._credentials, until)
                self._in_doubt = self.has_alternative
            if self._in_doubt:
                await self._meet(deadline)
        except ReputError as error:
            self.lose(error)
            raise
        except BaseException:
            self.lose(ConnectionLost(str(self._places[0]), "connecting was cancelled"))
            raise

    # -- identity ----------------------------------------------------------------------------------------------

    @property
    def has_alternative(self) -> bool:
        """Whether a silent or wrong broker must be noticed, because there is another address to use."""
        return self.has_slaves or bool(self.address.others) or self._expected is not None

    def expect(self, broker: BrokerIdentity) -> None:
        """Accept only `broker` here: another broker has announced this address for it."""
        if broker != self._expected:
            self._expected = broker
            self._in_doubt = self._in_doubt or self.broker is None or bool(self.broker.difference_from(broker))

    def expect_master(self) -> None:
        """Make the broker identify itself before the next use if it was a slave, because it is announced as the master.

        It closes its connections when it becomes one, but not if it has lost power before.
        """
        self._in_doubt = self._in_doubt or (self._socket is not None and not self.is_master)

    def doubt(self, since: float) -> bool:
        """Note that a request sent at `since` has no answer: the broker must identify itself before the next use.

        Return whether it is in doubt. It is not if anything was read since, or there is no alternative.
        """
        if self._socket is not None and self.has_alternative and self._read_at < since:
            self._in_doubt = True
        return self._in_doubt

    async def _still_answers(self, began_at: float, deadline: float) -> bool:
        try:
            await self._meet(deadline)
        except (ConnectionLost, ConnectFailed) as error:
            self._note_failure(error.reason, began_at, deadline)
            self._places.rotate(-1)
            self.lose(error)
            return False
        return True

    async def _meet(self, deadline: float) -> None:
        """Make the broker identify itself within a short time.

        Raises `ConnectionLost` if it does not answer, `ConnectFailed` if it is not the announced broker.
        """
        ext = (await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, self._try_until(deadline))).answer.ext
        name = ext.get("brokerName")
        # A broker without a name counts as the expected one.
        self.broker = BrokerIdentity(str(name), str(ext.get("startId"))) if name is not None else None
        self.is_master = int(str(ext.get("brokerId", MASTER_ID))) == MASTER_ID
        if self.broker is not None and self._expected is not None:
            difference = self.broker.difference_from(self._expected)
            if difference is not None:
                raise ConnectFailed(str(self.address), difference, self._expected.name)
        if self.is_rocketmq and self._expected is not None:
            config = await self._ask(RequestCode.GET_BROKER_CONFIG, self._try_until(deadline))
            self._rocket = RocketBroker.of_config(self._expected.name, config.body)
        self._in_doubt = False
        self._on_met(self)

    def _try_until(self, deadline: float, left: int = 1) -> float:
        return try_until(self._runtime.now(), deadline, left)

    async def _agree_on_signatures(self, credentials: Credentials, until: float) -> None:
        """Ask the server for a challenge, and sign the requests as its answer says; see `signer_of`.

        The first request signed in Reput's form leaves at once: a broker gives strangers little time.

        Raises `ConnectionLost` if it does not answer, or as it should not.
        """
        answer = (await self._ask(RequestCode.SIGNATURE_CHALLENGE, until)).answer
        try:
            signer = signer_of(credentials, answer.code, answer.remark, answer.ext, self._runtime.now)
        except NoSigner as error:
            raise ConnectionLost(str(self._places[0]), str(error)) from error
        if isinstance(signer, Credentials):
            self._channel.rocketmq_user = signer
        if not isinstance(signer, RequestSigner):
            return
        self._channel.signer = signer
        self.start_oneway(RequestTemplate(RequestCode.SIGNATURE_CHALLENGE, {}, flag=ONEWAY_FLAG), Waiter())
        self.flush_now()

    async def _ask(self, code: RequestCode, until: float) -> Call:
        timeout_s = max(0.0, until - self._runtime.now())
        call = self.start_template(RequestTemplate(code, {}), Waiter())
        try:
            await self._pump.wait(call.waiter, self._runtime.now() + timeout_s)
        finally:
            if not call.done:
                self.abandon(call)
        if not call.done:
            silence = f"it accepts connections, but did not respond within {timeout_s:.2g} s"
            raise ConnectionLost(str(self._places[0]), silence)
        if call.error is not None:
            raise call.error
        return call

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def has_unwritten(self) -> bool:
        """Whether there are unwritten frames and no caller is writing them."""
        is_taken = self._secured is None or not self._secured.has_unsent  # by the system, what TLS has taken
        return not self._writing and (bool(self._out) or not is_taken)

    def start_template(self, template: RequestTemplate, waiter: Waiter, body: Buffer = b"") -> Call:
        """Queue a request on the open connection; the caller then calls `Pump.wait`."""
        channel = self._channel
        peer = channel.peer
        if peer is Peer.ROCKETMQ:
            return self._start_rocket(template, waiter, body)
        call = Call(channel.next_opaque(), waiter)
        head = (
            template.encode(call.opaque, len(body), peer)
            if self._credentials is None
            else channel.head(template, call.opaque, body)
        )
        channel.add(call)  # only now: encoding fails if the header is too large
        self._out.append((call, (head, body) if body else (head,)))
        return call

    def start_oneway(self, template: RequestTemplate, waiter: Waiter, body: Buffer = b"") -> OnewayCall:
        """Like `start_template`, for a oneway request: done when the system has taken the whole frame."""
        channel = self._channel
        call = channel.new_oneway(waiter)
        if channel.peer is Peer.ROCKETMQ:
            try:
                template, body, _ = rocket_form(template, body, self._rocket)
            except ReputError as error:
                call.fail(error)
                return call
        self._out.append((call, (channel.head(template, call.opaque, body), body)))
        return call

    def _start_rocket(self, template: RequestTemplate, waiter: Waiter, body: Buffer) -> Call:
        """Like `start_template`, for a server of RocketMQ. A call that it cannot serve fails at once."""
        channel = self._channel
        try:
            template, body, ack = rocket_form(template, body, self._rocket)
        except ReputError as error:
            refused = Call(channel.next_opaque(), waiter)
            refused.fail(error)
            return refused
        opaque = channel.next_opaque()
        call = Call(opaque, waiter) if ack is None else SentToRocket(opaque, waiter, ack=ack)
        head = channel.head(template, opaque, body)
        channel.add(call)
        self._out.append((call, (head, body) if body else (head,)))
        return call

    @property
    def is_rocketmq(self) -> bool:
        """Whether a server of RocketMQ answers, which may handle a client's requests in any order."""
        return self._channel.peer is Peer.ROCKETMQ

    def answer(self, channel: ClientChannel, header: Header, header_type: int, body: Buffer) -> None:
        """Queue the answer to a request on `channel`; dropped if that connection is gone. Never waits."""
        if channel is not self._channel or self._socket is None:
            return
        frame = encode_frame_head(header, header_type, len(body))
        self._out.append((channel.new_oneway(Waiter()), (frame, body)))
        if not self.flush_now():
            self._runtime.interrupt()  # the reader writes the rest

    def _new_channel(self) -> ClientChannel:
        def take(header: Header, header_type: int, body: memoryview) -> None:
            self._on_request(BrokerRequest(self, channel, header, header_type, body))

        # With a user, each connection begins with a question that every server answers.
        channel = ClientChannel(take, peer=self._peer if self._credentials is None else Peer.UNKNOWN)
        return channel

    def usable(self) -> bool:
        """Whether frames may be queued now.

        An idle connection is read first, to notice that the broker has closed it.
        """
        if self._socket is None or self._in_doubt:
            return False
        if self._runtime.now() - self._read_at > _IDLE_S and self._channel.pending == 0 and not self._pump.reading:
            self.read_ready()
        return self._socket is not None

    async def write_out(self, timeout_s: float, *, polite: bool) -> None:
        """Take the write turn: write queued frames until none is left, `timeout_s` has passed or writing is stuck.

        It is given up shortly after the system accepts no more, so that a broker that does not read does not delay
        callers of other brokers. `polite`: first let other ready tasks queue their frames, to share the write.
        """
        started_at = self._runtime.now()
        deadline, stuck_at = started_at + timeout_s, started_at + _STUCK_S
        self._writing = True
        try:
            if polite:
                await self._runtime.pause()
            while (self._out or not self._flush_secured()) and self._socket is not None and self._wire is not None:
                if not self._write_some(self._wire):
                    now = self._runtime.now()
                    if now >= min(deadline, stuck_at):
                        return
                    await self._runtime.wait_writable(self._socket, min(deadline, stuck_at) - now)
                else:
                    stuck_at = self._runtime.now() + _STUCK_S
        finally:
            self._writing = False
            self._pump.look_at_reader()

    def flush_now(self) -> bool:
        """Write what the system takes without waiting; return whether nothing is left that no caller is writing."""
        if not self._writing and self._wire is not None:
            self._write_some(self._wire)
        return not self.has_unwritten

    def _write_some(self, sock: socket.socket | TlsSocket) -> bool:
        """Write what the system takes without waiting; False if it took nothing. Frames are signed now."""
        out, skip = self._out, self._out_skip
        pieces: list[Buffer] = []
        size = 0
        for place, (call, (head, *body)) in enumerate(out):
            if isinstance(head, UnsignedHead):
                head = head.signed(tuple(body))
                out[place] = (call, (head, *body))
            pieces += (head, *body)
            size += len(head) + sum(map(len, body))
            if size >= _JOIN_BYTES_MAX or len(pieces) >= _IOV_MAX * 4:
                break
        if not pieces:
            return self._flush_secured()
        try:
            if size - skip <= _JOIN_BYTES_MAX * 2:
                joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                written = sock.send(memoryview(joined)[skip:] if skip else joined)
            elif hasattr(sock, "sendmsg"):
                written = sock.sendmsg(_skip(pieces, skip)[:_IOV_MAX])
            else:  # Windows
                written = sock.send(_skip(pieces, skip)[0])
        except OSError as error:
            return self._write_failed(error)
        written += skip
        while written:
            call, frame = out[0]
            size = sum(map(len, frame))
            if written < size:
                break
            out.popleft()
            call.sent = True
            if isinstance(call, OnewayCall):
                call.written()
            written -= size
        self._out_skip = written
        return True

    def _flush_secured(self) -> bool:
        """Write what TLS has taken before; False if the system does not take all of it."""
        try:
            return self._secured is None or self._secured.flush()
        except OSError as error:
            return self._write_failed(error)

    def _write_failed(self, error: OSError) -> bool:
        if error.errno is None:
            raise error  # from a signal handler, such as a TimeoutError: bytes may have been written
        if isinstance(error, (BlockingIOError, InterruptedError)):
            return False
        self.lose(ConnectionLost(str(self._places[0]), error.strerror or str(error)))
        return True

    def abandon(self, call: Call) -> bool:
        """Stop waiting for `call`; True if its frame was unwritten and has been removed."""
        self._channel.abandon(call)
        if call.sent:
            return False
        for index, (queued, _) in enumerate(self._out):
            if queued is call:
                if index == 0 and self._out_skip:
                    return False  # partly written: the rest must follow
                del self._out[index]
                return True
        return not call.sent

    # -- reading ---------------------------------------------------------------------------------------------

    def read_ready(self) -> bool:
        """Read what the socket has and finish the answered calls; a failure ends the connection.

        Return False if there is certainly nothing more: the socket was empty, or the connection has ended.
        """
        channel = self._channel
        for _ in range(_READS_MAX):
            if self._wire is None:
                return False
            wanted = self._read_bytes
            try:
                data = self._wire.recv(wanted)
            except (BlockingIOError, InterruptedError):
                return False
            except TlsFailed as error:
                self.lose(self._tls_end(error))
                return False
            except OSError as error:
                if error.errno is None:
                    raise  # from a signal handler
                self.lose(ConnectionLost(str(self._places[0]), error.strerror or str(error)))
                return False
            if not data:
                self.lose(self._end_of(self._channel.last_words))
                return False
            try:
                self._read_at = self._runtime.now()
                expects_more = channel.receive_data(data)
            except ProtocolError as error:
                self.lose(self._refusal_of(data, error))
                return False
            if not self._useful:
                self._useful = True
                self._backoff.reset()
            if channel.has_stopped:
                channel.drop_all()
                self.lose(self._end_of(channel.last_words))
                return False
            more = len(data) >= wanted or expects_more
            self._read_bytes = _READ_BYTES_LARGE if more else _READ_BYTES
            if not more:
                break
        return True

    def _tls_end(self, error: TlsFailed) -> ReputError:
        """Return what a failure of TLS after the handshake means for the open calls."""
        place = str(self._places[0])
        if error.refuses_certificate and not self._useful:
            return TlsRefused(place, f"TLS: {error.cause}", error.remedy)  # TLS 1.3 says so only now
        return ConnectionLost(place, str(error))

    def _end_of(self, last_words: str | None) -> ReputError:
        """Return what it means that the broker has closed the connection, for the reason that it gave."""
        place = str(self._places[0])
        if last_words is None:
            return ConnectionLost(place, "the broker closed it" if self._useful else _ENDED_AT_ONCE)
        if last_words.startswith(_TLS_REQUIRED):
            return TlsRefused(place, "this port takes encrypted connections only", CONNECT_WITH_TLS)
        return ConnectionLost(place, f"the broker closed it: {last_words}")

    def _refusal_of(self, data: bytes, error: ProtocolError) -> ReputError:
        place = str(self._places[0])
        if not self._useful:
            for beginning, server in _OTHER_SERVERS.items():
                if data.startswith(beginning):
                    return NotABroker(place, server)
        return ConnectionLost(place, f"the broker violated the protocol: {error}")

    # -- ending ----------------------------------------------------------------------------------------------

    def lose(self, error: ReputError) -> None:
        """Close the socket and fail every pending call. The next `open` reconnects."""
        sock, self._socket = self._socket, None
        self._wire = self._secured = None
        # A server that answered nothing may be another than before, and not read its headers.
        self._peer = self._channel.peer if self._useful else Peer.UNKNOWN
        self._drop_unwritten(error)
        if sock is not None:
            self._pump.remove(self)
            self._runtime.close_socket(sock)
            if not self._useful:
                # Accepted and closed at once: without a delay this would repeat thousands of times.
                self._next_attempt_at = self._runtime.now() + self._backoff.next_delay_s()
                if isinstance(error, ConnectionLost):
                    self._last_failure, self._failed_at = error.reason, self._runtime.now()
        self._channel.end(error)
        if sock is not None:
            self._on_lost(self)

    def close(self) -> None:
        """Close the connection for good; calls in progress raise `ClientClosed`."""
        self._closed = True
        self.lose(ClientClosed("the client was closed while it was used"))
        if self._connecting is not None:
            self._connecting.set()

    def leave_to_parent(self) -> None:
        """In a forked child: release the parent's socket without sending anything on it."""
        sock, self._socket = self._socket, None
        self._wire = self._secured = None
        if sock is not None:
            sock.close()
        self._connecting = None
        self._writing = False
        error = ConnectionLost(str(self._places[0]), "it belongs to the parent process")
        self._drop_unwritten(error)
        self._channel.end(error)

    def _drop_unwritten(self, error: ReputError) -> None:
        """Drop the unwritten frames. Calls that expect an answer are pending and fail with the others."""
        dropped = [call for call, _ in self._out]
        self._out.clear()
        self._out_skip = 0
        for call in dropped:
            if isinstance(call, OnewayCall):
                call.fail(error)


def _skip(pieces: list[Buffer], count: int) -> list[Buffer]:
    """Return `pieces` without their first `count` bytes."""
    left: list[Buffer] = []
    for piece in pieces:
        if count >= len(piece):
            count -= len(piece)
        elif count:
            left.append(memoryview(piece)[count:])
            count = 0
        else:
            left.append(piece)
    return left
