"""Lines of JSON between a broker and the proxy process that it has started, on the proxy's stdin and stdout.

The broker's first line is a `ProxyTask`. DRAIN asks the proxy to end. The end of its stdin ends it immediately: then
the broker is gone. The proxy writes `ProxyReady` once, a `ProxyLog` for each event of its log, and `ProxyFigures` every
second, before `ProxySpans` if there are any. It writes no line of more than LINE_BYTES_MAX.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from reput_protocol.codes import AckLevel

DRAIN: Final = b"drain\n"
FIGURES_S: Final = 1.0
"""Time between two `ProxyFigures`."""
LINE_BYTES_MAX: Final = 1 << 20
"""A proxy that writes a longer line is killed."""


class ProxyTask(msgspec.Struct, frozen=True, kw_only=True):
    """How the proxy is to serve.

    Attributes:
        server: `host:port` of brokers or name servers, joined by commas.
        host, port: where gRPC clients connect.
        advertise: `host:port` that routes name; None: the address that the client has dialled.
        tls_cert, tls_key: PEM files; "": connections are not encrypted. Read again when they change.
        tls_client_ca: file with the authorities of clients' certificates, which every client must show then.
        users: file with the users; None: requests need no signature.
        configured_users: secrets by user, of users that are not in the file.
        ack: how safe a message is when its client gets the response.
        drain_s: how long requests have to finish after DRAIN.
        server_tls: whether connections to the server are encrypted; the next five are for that.
        server_ca, server_cert, server_key, server_name: as those of `TLS` of the client; "": none.
        server_pin: the file with the certificate that the server has: it alone is trusted, under any name.
        sample_ratio: the share of calls without a trace context that begin a trace, 0 to 1; None: there are no spans.
    """

    server: str
    host: str
    port: int
    advertise: str | None = None
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    users: str | None = None
    configured_users: dict[str, str] = {}
    ack: AckLevel = AckLevel.FLUSHED
    drain_s: float
    server_tls: bool = False
    server_ca: str = ""
    server_cert: str = ""
    server_key: str = ""
    server_name: str = ""
    server_pin: str = ""
    sample_ratio: float | None = None


class ProxyReady(msgspec.Struct, frozen=True, tag="ready"):
    """The proxy serves.

    Attributes:
        address: where, `host:port`.
    """

    address: str


class ProxyLog(msgspec.Struct, frozen=True, tag="log"):
    """An event of the proxy's log.

    Attributes:
        level: of Python's logging, in lower case.
        facts: by name; texts, numbers and whether.
    """

    level: str
    event: str
    facts: dict[str, Any]


class ProxyFigures(msgspec.Struct, frozen=True, tag="figures"):
    """What has happened since the proxy's start, and what there is now.

    Attributes:
        requests: by method and code, how many were answered.
        sent, received, acknowledged: messages.
        clients: open Telemetry streams.
        waiting_receives: receives and pulls that wait for messages.
        held_messages: messages of push consumers, whose invisible times are renewed.
        reaches_broker: whether a broker has answered the last request of the proxy's own, made every few seconds.
        broker_error: why none has.
    """

    requests: list[tuple[str, str, int]] = []
    sent: int = 0
    received: int = 0
    acknowledged: int = 0
    clients: int = 0
    waiting_receives: int = 0
    held_messages: int = 0
    reaches_broker: bool = False
    broker_error: str = ""


class ProxySpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The span of a call; ids in hexadecimal digits, times in nanoseconds since 1970.

    Attributes:
        parent_id: "": the call begins the trace.
        error: the code of the response, if it is an error, or why there was none.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    started_at_ns: int
    ended_at_ns: int
    attributes: dict[str, str | int]
    error: str | None = None


class ProxySpans(msgspec.Struct, frozen=True, tag="spans"):
    """Spans of calls that have ended, and how many more were dropped since the last ones."""

    spans: list[ProxySpan]
    dropped: int = 0


ProxyReport: TypeAlias = ProxyReady | ProxyLog | ProxyFigures | ProxySpans
