"""`reput proxy`: run the gRPC proxy in the foreground."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_broker.observe.span_exporter import SpanExporter
    from reput_proxy.server import RunningProxy

_FILE = click.Path(path_type=Path, dir_okay=False)
_PORT = click.IntRange(0, 65_535)
_SPANS_S = 2.0
"""How long the end waits until the last spans are exported."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=_PORT, default=8081, show_default=True, help="Port for gRPC clients; 0 takes a free one.")
@click.option(
    "--advertise", metavar="HOST:PORT", help="Address in routes.  [default: the one that the client has connected to]"
)
@click.option("--listen-tls-cert", type=_FILE, help="Certificate of the proxy, in PEM; its clients must then use TLS.")
@click.option("--listen-tls-key", type=_FILE, help="Key of the certificate, in PEM.")
@click.option("--http-port", type=_PORT, help="Port of /metrics, /healthz and /readyz.")
@click.option(
    "--users", type=_FILE, help="File of reput user; clients must sign as one of its users, and get its rights."
)
@click.option(
    "--ack",
    type=click.Choice(["page_cache", "flushed", "replicated"]),
    default="flushed",
    show_default=True,
    help="What a send waits for before its client gets the response.",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    show_default=True,
    help="Of the log on stderr; auto: text on a terminal.",
)
@click.option(
    "--log-level",
    type=click.Choice(["info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least level that is logged.",
)
@click.option(
    "--tracing-endpoint",
    metavar="URL",
    help="Receiver of OTLP over HTTP for the spans of calls; needs the extra otel.  [default: no spans]",
)
@click.option(
    "--tracing-sample-ratio",
    type=click.FloatRange(0, 1),
    help="Share of the calls without a trace context that begin a trace.  [default: 0]",
)
@click.option("--address-file", help="Write the proxy's address to this file once it is ready.")
@shared_options
def command(
    settings: Settings,
    host: str,
    port: int,
    advertise: str | None,
    listen_tls_cert: Path | None,
    listen_tls_key: Path | None,
    http_port: int | None,
    users: Path | None,
    ack: str,
    log_format: Literal["auto", "text", "json"],
    log_level: Literal["info", "warning", "error"],
    tracing_endpoint: str | None,
    tracing_sample_ratio: float | None,
    address_file: str | None,
) -> int:
    """Serve RocketMQ 5's gRPC clients in front of the brokers at --server, until SIGTERM or Ctrl-C.

    Needs the extra grpc: pip install 'reput[grpc]'.
    """
    try:
        import grpc  # noqa: F401
    except ImportError:
        raise CommandFailed("the proxy needs the extra grpc: pip install 'reput[grpc]'") from None
    from reput_broker.compose.open_files import raise_limit
    from reput_broker.compose.proxy_process import finished_span
    from reput_broker.observe.log import configure_logging, write_event
    from reput_client.security import from_environment
    from reput_protocol.codes import AckLevel
    from reput_proxy import log
    from reput_proxy.server import ProxyOptions, run_proxy
    from reput_proxy.spans import Spans
    from reput_proxy.upstream import BrokerOptions
    from reput_proxy.users import UsersUnreadable

    if (listen_tls_cert is None) != (listen_tls_key is None):
        raise click.UsageError("--listen-tls-cert and --listen-tls-key go together")
    if tracing_sample_ratio is not None and tracing_endpoint is None:
        raise click.UsageError(
            "--tracing-sample-ratio without --tracing-endpoint exports nothing; give the endpoint, too"
        )
    configure_logging(format=log_format, level=log_level)
    log.write_log(partial(write_event, "reput_proxy"))
    raise_limit()  # each client has a connection
    credentials = None if users is not None else from_environment()

    def ready(running: RunningProxy) -> None:
        log.info("proxy_ready", address=running.address, http=running.http_address, server=settings.server)
        if users is None:
            whose = "any client of the brokers" if credentials is None else f"user {credentials.user}"
            log.warning("requests_need_no_signature", hint=f"every client has the rights of {whose}; see --users")
        if address_file is not None:
            Path(address_file).write_text(running.address)

    exporter = None if tracing_endpoint is None else _exporter(tracing_endpoint)
    spans = None
    if exporter is not None:
        spans = Spans(lambda span: exporter.add(finished_span(span)), tracing_sample_ratio or 0.0)
    try:
        run_proxy(
            ProxyOptions(
                brokers=BrokerOptions(settings.server, settings.tls, AckLevel(ack)),
                host=host,
                port=port,
                advertise=advertise,
                tls_cert=listen_tls_cert,
                tls_key=listen_tls_key,
                http_port=http_port,
                users=users,
                credentials=credentials,
                spans=spans,
            ),
            ready,
        )
    except (OSError, ValueError, UsersUnreadable) as error:
        raise CommandFailed(str(error)) from error
    finally:
        if exporter is not None:
            exporter.close(_SPANS_S)
    return ExitCode.DONE


def _exporter(endpoint: str) -> SpanExporter:
    """Return what exports spans, started."""
    from reput_broker.observe.metrics import broker_version
    from reput_broker.observe.span_exporter import SpanExporter

    try:
        exporter = SpanExporter(endpoint, {"service.name": "reput-proxy", "service.version": broker_version()})
    except ModuleNotFoundError:
        raise CommandFailed("--tracing-endpoint needs the extra otel: pip install 'reput[otel]'") from None
    exporter.start()
    return exporter
