"""Requests of this broker to another broker or a name server (RocketMQ: NettyRemotingClient)."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from functools import partial

import structlog
import trio

from reput_broker.config.sections import TlsConfig
from reput_broker.config.value_types import checked_address
from reput_broker.remoting.request import ClientAnswer
from reput_broker.remoting.tls import TlsFilesUnusable, outgoing_context
from reput_protocol.codes import RequestCode
from reput_protocol.commands.users import NoSigner, signer_of
from reput_protocol.errors import ProtocolError, ReputError
from reput_protocol.wire.channel import Channel, Peer, Waiter
from reput_protocol.wire.header import Value
from reput_protocol.wire.signature import Credentials, RequestSigner, sign_for_rocketmq
from reput_protocol.wire.tls import tls_failure

log = structlog.get_logger(__name__)


class RemoteUnreachable(ReputError):
    """A request got no answer. The remote broker or name server may have executed it."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


async def dial(address: str, tls: TlsConfig | None = None) -> trio.abc.Stream:
    """Return a connection to `host:port`, whatever that text is, with TLS if that is configured so.

    Raises:
        RemoteUnreachable: there is none, or the other side cannot be trusted.
    """
    try:
        host, _, port = checked_address(address).rpartition(":")
        context = None
        if tls is not None and tls.connect:
            context = await trio.to_thread.run_sync(outgoing_context, tls)
        stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
        if tls is None or context is None:
            return stream
        return await _secured(stream, context, tls.server_name or host.strip("[]"), address)
    except TlsFilesUnusable as error:
        raise RemoteUnreachable(address, str(error)) from error
    except ValueError as error:
        raise RemoteUnreachable(address, f"cannot connect: {error}") from error
    except OSError as error:
        raise RemoteUnreachable(address, f"cannot connect: {_reason(error)}") from error


async def _secured(
    stream: trio.SocketStream, context: ssl.SSLContext, name: str, address: str
) -> trio.SSLStream[trio.SocketStream]:
    secured = trio.SSLStream(stream, context, server_hostname=name, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException as error:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError):
            cause = error.__cause__
            if isinstance(cause, ssl.SSLError):
                reason = str(tls_failure(cause, address))
            else:
                reason = "it has closed the connection during the TLS handshake"
            raise RemoteUnreachable(address, reason) from error
        raise
    return secured


class RemotingClient:
    """Sends requests to one address. Many may be open at the same time, on one connection.

    The connection is made by the first request, and again by the first request after it ended. Runs under trio.

    Args:
        address: `host:port`.
        peer: what answers there; all servers read what is meant for RocketMQ's.
        tls: whether and how to encrypt; None: not at all.
        credentials: what the requests are signed with; None: they are not.
    """

    def __init__(
        self,
        address: str,
        *,
        peer: Peer = Peer.ROCKETMQ,
        tls: TlsConfig | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self._tls = tls
        self.connections = 0
        """How many connections were made."""
        self._peer = peer
        self._credentials = credentials
        self._connection: _RemoteConnection | None = None
        self._connecting = trio.Lock()
        self._is_closed = False

    async def call(self, code: int, ext: Mapping[str, Value], body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        """Send a request and return its answer, whatever its code.

        Raises:
            RemoteUnreachable: no connection, or no response within `timeout_s` seconds. In the second case the next
                request makes a new connection; other open requests keep the old one.
        """
        connection = None
        with trio.move_on_after(timeout_s):
            connection = await self._connected()
            if self._credentials is not None:
                await connection.agree_on_signatures(self._credentials)
            return await connection.call(code, ext, body)
        if connection is None:
            raise RemoteUnreachable(self.address, f"has not accepted a connection within {timeout_s:g} s")
        connection.retire()
        raise RemoteUnreachable(self.address, f"has not responded to request {code} within {timeout_s:g} s")

    async def disconnected(self) -> None:
        """Return once there is no connection, because it has ended or none was made."""
        if self._connection is not None:
            await self._connection.ended.wait()

    def close(self) -> None:
        """Close the connection. Open requests and later ones raise RemoteUnreachable."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.end("the connection was closed by this broker")

    async def _connected(self) -> _RemoteConnection:
        async with self._connecting:
            if self._is_closed:
                raise RemoteUnreachable(self.address, "the connection was closed by this broker")
            if self._connection is None or not self._connection.is_usable:
                stream = await dial(self.address, self._tls)
                self._connection = _RemoteConnection(self.address, stream, self._peer)
                self.connections += 1
            return self._connection


def _reason(error: OSError) -> str:
    """Return the reason of a failed connect; trio keeps it in the causes, one for each address of the host."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    found = cause if isinstance(cause, OSError) else error
    if isinstance(found, socket.gaierror) or not found.errno:
        return found.strerror or str(found)
    return os.strerror(found.errno)  # without the address, which trio puts before it


class _RemoteConnection:
    """One connection, its open requests, and a system task that reads their answers."""

    def __init__(self, address: str, stream: trio.abc.Stream, peer: Peer) -> None:
        self._address = address
        self._stream = stream
        self._channel = Channel(peer=peer)
        self._agreeing = trio.Lock()
        self._has_agreed = False
        self._sending = trio.Lock()
        self._failure: RemoteUnreachable | None = None
        self._is_retired = False
        self.ended = trio.Event()
        self._reading = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._read)

    @property
    def is_usable(self) -> bool:
        """Whether a new request may use this connection."""
        return self._failure is None and not self._is_retired

    async def agree_on_signatures(self, credentials: Credentials) -> None:
        """Before the first request: ask for a challenge, and sign the requests as the answer says.

        A server without users gets no signatures; one that does not know the question gets them in RocketMQ's form.

        Raises:
            RemoteUnreachable: the connection has ended; the challenge cannot be read, or is refused for another reason
                (the next request asks again); RocketMQ's form is forbidden.
        """
        if self._has_agreed:
            return
        async with self._agreeing:
            if not self._has_agreed:
                await self._agree_on_signatures(credentials)
                self._has_agreed = True

    async def _agree_on_signatures(self, credentials: Credentials) -> None:
        answer = await self.call(RequestCode.SIGNATURE_CHALLENGE, {})
        try:
            signer = signer_of(credentials, answer.code, answer.remark, answer.ext, trio.current_time)
        except NoSigner as error:
            self.end(str(error))
            raise RemoteUnreachable(self._address, str(error)) from error
        if signer is not None:
            self._channel.sign = (
                signer.sign if isinstance(signer, RequestSigner) else partial(sign_for_rocketmq, signer)
            )

    async def call(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> ClientAnswer:
        """Send a request and wait for its answer. Raises RemoteUnreachable if the connection ends before."""
        if self._failure is not None:
            raise self._failure
        channel, answered, waiter = self._channel, trio.Event(), Waiter()
        waiter.wake = answered.set
        call = channel.new_call(waiter)
        try:
            await self._send(channel.frame(call.opaque, code, ext, body))
            await answered.wait()
        finally:
            channel.abandon(call)
            self._end_if_retired()
        return ClientAnswer.of(call)

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            if self._failure is not None:
                return
            try:
                await self._stream.send_all(frame)
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                self.end("the connection broke while a request was sent")
            except trio.Cancelled:
                self.end("a request was sent in part and given up")
                raise

    def retire(self) -> None:
        """Take no new request; end once the open ones are answered or given up."""
        self._is_retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self._is_retired and not self._channel.pending:
            self.end("the connection was closed after a request without a response")

    def end(self, reason: str) -> None:
        """End the connection and its open requests. The first reason counts."""
        if self._failure is None:
            self._failure = RemoteUnreachable(self._address, reason)
            self._channel.end(self._failure)
        self.ended.set()
        self._reading.cancel()

    async def _read(self) -> None:
        try:
            with self._reading:
                await self._read_answers()
        finally:
            with trio.CancelScope(shield=True):  # also at the end of the event loop
                await trio.aclose_forcefully(self._stream)

    async def _read_answers(self) -> None:
        try:
            await self._take_answers()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            self.end("the connection broke")
        except ProtocolError as error:
            self.end(f"sent bytes that are not a response: {error}")
        except Exception as error:  # an error of a system task would end the whole process
            log.error("remoting_failed", address=self._address, exc_info=error, hint="a defect; report it")
            self.end(f"its response could not be read: {error}")

    async def _take_answers(self) -> None:
        while data := await self._stream.receive_some():
            self._channel.receive_data(data)
        self.end("closed the connection")
