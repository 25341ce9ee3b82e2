"""`reput doctor proxy`: a proxy for gRPC clients, its brokers, its users, and the addresses in its routes."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reput_cli.connection import TLS_KEYS, put_user_into_environment, tls_of
from reput_cli.doctor.findings import Finding, fault, ok, report, warning
from reput_cli.failures import CommandFailed
from reput_cli.options import DURATION, Settings, output_options, tls_options
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import DEFAULT_TOPIC

if TYPE_CHECKING:
    from reput_client import TLS
    from reput_client.transport.address import Address

_PORT = 8081
_LOCAL = ("127.0.0.1", "::1", "localhost")


@click.command("proxy")
@click.argument("address", default=f"127.0.0.1:{_PORT}")
@click.option("--topic", default=DEFAULT_TOPIC, metavar="NAME", help="Request the route of this topic.")
@click.option("--user", metavar="NAME", help="Sign as this user.  [default: REPUT_USER]")
@click.option("--secret-file", metavar="FILE", help="File with its secret.  [default: REPUT_SECRET_FILE]")
@click.option("--timeout", type=DURATION, default="5s", show_default=True, help="Longest wait for a response.")
@tls_options()
@output_options
def command(
    settings: Settings, address: str, topic: str, user: str | None, secret_file: str | None, timeout: float, **tls: Any
) -> int:
    """Check the proxy at ADDRESS as one of its clients, Reput's or RocketMQ's: 127.0.0.1:8081 by default.

    Needs the extra grpc: pip install 'reput[grpc]'.
    """
    try:
        import grpc  # noqa: F401
    except ImportError:
        raise CommandFailed("this check needs the extra grpc", remedy="pip install 'reput[grpc]'") from None
    from reput_client.transport.address import parse_addresses

    try:
        [place] = parse_addresses(address, _PORT)
    except ValueError as error:
        raise CommandFailed(f"{address!r} is not the address of a proxy", reason=str(error)) from error
    put_user_into_environment(user, secret_file, {})
    return report(settings, examine(place, topic, timeout, tls_of({key: tls[key] for key in TLS_KEYS}, {})))


def examine(place: Address, topic: str, timeout_s: float, tls: TLS | None) -> Iterator[Finding]:
    """Yield the findings about a proxy."""
    import grpc

    channel = _channel(place, tls)
    try:
        started_at = time.monotonic()
        try:
            grpc.channel_ready_future(channel).result(timeout_s)
        except grpc.FutureTimeoutError:
            yield _unreachable(place, tls, timeout_s)
            return
        took_ms = 1000 * (time.monotonic() - started_at)
        yield ok("connection", f"{place} takes gRPC calls, after {took_ms:.0f} ms")
        try:
            yield from _check_answers(_Asking(channel, place, timeout_s), topic)
        except grpc.RpcError as error:
            yield fault(
                "service",
                f"{place} does not respond as a proxy",
                f"{error.code().name}: {error.details()}",
                "is it the port of a proxy; reput proxy, or the option proxy_port of a broker",
            )
    finally:
        channel.close()


def _channel(place: Address, tls: TLS | None) -> Any:
    import grpc

    if tls is None:
        return grpc.insecure_channel(str(place))
    # gRPC has authorities of its own; as elsewhere, it is the system's that count.
    ca = tls.ca or ssl.get_default_verify_paths().cafile
    files = [None if path is None else Path(path).read_bytes() for path in (ca, tls.key or tls.cert, tls.cert)]
    name = [] if tls.server_name is None else [("grpc.ssl_target_name_override", tls.server_name)]
    return grpc.secure_channel(str(place), grpc.ssl_channel_credentials(*files), name)


def _unreachable(place: Address, tls: TLS | None, timeout_s: float) -> Finding:
    """Return why no connection was made."""
    try:
        with socket.create_connection((place.host, place.port), timeout_s):
            pass
    except OSError as error:
        return fault(
            "connection",
            f"nothing listens at {place}",
            str(error),
            "start it: reput proxy, or the option proxy_port of a broker, whose log says why it has ended",
            ExitCode.CANNOT_CONNECT,
        )
    return fault(
        "connection",
        f"{place} accepts connections and takes no gRPC calls",
        "it does not use TLS, or it is not a proxy" if tls is not None else "it needs TLS, or it is not a proxy",
        "leave out --tls" if tls is not None else "--tls-ca FILE with the authority of its certificate",
        ExitCode.CANNOT_CONNECT,
    )


class _Asking:
    """Makes requests to a proxy, signed if there is a user."""

    def __init__(self, channel: Any, place: Address, timeout_s: float) -> None:
        from reput_client.security import from_environment

        self._channel = channel
        self._timeout_s = timeout_s
        self.place = place
        self.credentials = from_environment(os.environ)

    def ask(self, method: str, request: Any) -> Any:
        """Return the response to a request."""
        from google.protobuf.message_factory import GetMessageClass

        from reput_proxy.service import METHODS, SERVICE

        metadata = [("x-mq-client-id", f"reput-doctor@{os.getpid()}")]
        if self.credentials is not None:
            metadata += _signature(self.credentials.user, self.credentials.secret)
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=GetMessageClass(METHODS[method].output_type).FromString,
        )
        return call(request, metadata=metadata, timeout=self._timeout_s)


def _signature(user: str, secret: str) -> list[tuple[str, str]]:
    import hmac

    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.digest(secret.encode(), now.encode(), "sha1").hex()
    form = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return [("x-mq-date-time", now), ("authorization", form)]


def _check_answers(asking: _Asking, topic: str) -> Iterator[Finding]:
    """Yield the findings about users, brokers, and the addresses in routes."""
    from reput_proxy import messaging_pb2 as pb
    from reput_proxy.routes import endpoints_of

    place = asking.place
    beat = asking.ask("Heartbeat", pb.HeartbeatRequest(client_type=pb.PRODUCER)).status
    if beat.code == pb.UNAUTHORIZED:
        yield fault(
            "users",
            f"{place} does not accept the request",
            beat.message,
            "--user and --secret-file of a user of the brokers: reput user list",
            ExitCode.NOT_AUTHORISED,
        )
        return
    yield _users(asking)
    request = pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints_of(place.host, place.port))
    route = asking.ask("QueryRoute", request)
    code, text = route.status.code, route.status.message
    if code == pb.FORBIDDEN:
        yield warning("brokers", "respond, and do not permit the topic", text, "--topic of one that the user may use")
    elif code == pb.TOPIC_NOT_FOUND and topic == DEFAULT_TOPIC:
        yield ok("brokers", "respond; name a topic with --topic to check its route too")
    elif code == pb.TOPIC_NOT_FOUND:
        yield warning("brokers", f"respond, and have no topic {topic}", text, "reput topic list shows those that exist")
    elif code != pb.OK:
        yield fault(
            "brokers",
            f"{place} does not reach a broker ({pb.Code.Name(code) if code in pb.Code.values() else code})",
            text,
            "reput doctor --server of its brokers, from its machine; --server of reput proxy",
        )
    else:
        names = {queue.broker.name for queue in route.message_queues}
        yield ok("brokers", f"{', '.join(sorted(names))} serve {topic}")
        yield _check_addresses(route)


def _users(asking: _Asking) -> Finding:
    """Return whether requests need a user: asked without one."""
    from reput_proxy import messaging_pb2 as pb

    given, asking.credentials = asking.credentials, None
    try:
        plain = asking.ask("Heartbeat", pb.HeartbeatRequest(client_type=pb.PRODUCER)).status
    finally:
        asking.credentials = given
    if plain.code == pb.UNAUTHORIZED:
        return ok("users", "requests need a user")
    if asking.place.host in _LOCAL:
        return ok("users", "requests need no user")
    return warning(
        "users",
        "requests need no user, and other machines reach the proxy",
        "every client has the rights of the proxy's own user, or of any client of the brokers",
        "reput proxy --users FILE; access.enabled for a proxy of proxy_port",
    )


def _check_addresses(route: Any) -> Finding:
    """Check that clients reach the addresses in a route."""
    found = {
        (address.host, address.port) for queue in route.message_queues for address in queue.broker.endpoints.addresses
    }
    for host, port in sorted(found):
        try:
            with socket.create_connection((host, port), 3.0):
                pass
        except OSError as error:
            return fault(
                "addresses",
                f"routes name {host}:{port}, where no proxy responds",
                f"clients connect to the address in the route; {error}",
                "start reput proxy with --advertise HOST:PORT that clients reach, or without it",
            )
    return ok("addresses", f"routes name {', '.join(f'{host}:{port}' for host, port in sorted(found))}")
