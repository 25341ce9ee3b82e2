"""The certificate of a proxy, which is read again when its files have changed."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from reput_proxy import log

_Stamps: TypeAlias = list[tuple[int, int, int]]


def tls_credentials(cert: Path, key: Path | None, client_ca: Path | None) -> Any:
    """Return what a gRPC server encrypts with, in the files' state at the time of each connection.

    Args:
        cert, key: PEM files; None: the key is in `cert`.
        client_ca: the authorities of clients' certificates; None: clients show none.

    Raises:
        OSError, ValueError: a file cannot be used.
    """
    files = [path for path in (cert, key, client_ca) if path is not None]
    seen = _stamps(files)
    reload = log.WarningOnChange("tls_reload_failed", hint="the certificate in use stays")

    def changed() -> Any:
        """Return the new configuration, None if the files are as before; runs in a thread of gRPC."""
        nonlocal seen
        try:
            now = _stamps(files)
            if now == seen:
                reload.succeeded()
                return None
            found = _configuration(cert, key, client_ca)
        except (OSError, ValueError) as error:
            reload.failed(error)  # each connection tries again
            return None
        seen = now
        reload.succeeded()
        log.info("tls_reloaded")
        return found

    return grpc.dynamic_ssl_server_credentials(
        _configuration(cert, key, client_ca), changed, require_client_authentication=client_ca is not None
    )


def _stamps(files: list[Path]) -> _Stamps:
    return [(found.st_ino, found.st_size, found.st_mtime_ns) for found in (path.stat() for path in files)]


def _configuration(cert: Path, key: Path | None, client_ca: Path | None) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")  # gRPC would not say what is wrong
    except ssl.SSLError as error:
        raise ValueError(f"{cert} and its key cannot be used: {error.reason}") from error
    pair = (key or cert).read_bytes(), cert.read_bytes()
    return grpc.ssl_server_certificate_configuration(
        [pair], root_certificates=None if client_ca is None else client_ca.read_bytes()
    )
