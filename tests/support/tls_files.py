"""Certificates for tests, in files: of a broker at 127.0.0.1, of a client, and wrong ones."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files; each certificate's has its key too."""

    ca: Path
    broker: Path
    client: Path
    expired: Path
    other_ca: Path
    foreign: Path
    """A certificate that the other authority has signed."""

    def server_options(self, **more: object) -> dict[str, object]:
        """Return a section `[tls]` of a broker that takes TLS only."""
        return {"mode": "required", "cert": str(self.broker), "ca": str(self.ca), **more}


def make_tls_files(directory: Path) -> TlsFiles:
    """Make an authority, what it has signed, and another authority with a client."""
    authority, other = trustme.CA(), trustme.CA()
    files = TlsFiles(
        *(directory / f"{name}.pem" for name in ("ca", "broker", "client", "expired", "other-ca", "foreign"))
    )
    authority.cert_pem.write_to_path(str(files.ca))
    other.cert_pem.write_to_path(str(files.other_ca))
    ended_at = datetime(2020, 5, 6, 7, 8, 9, tzinfo=UTC)
    for path, made in (
        (files.broker, authority.issue_cert("127.0.0.1")),
        (files.client, authority.issue_cert(common_name="orders", organization_name="Example")),
        (files.expired, authority.issue_cert("127.0.0.1", not_after=ended_at)),
        (files.foreign, other.issue_cert("127.0.0.1")),
    ):
        made.private_key_and_cert_chain_pem.write_to_path(str(path))
    return files


def server_context(cert: Path, ca: Path | None = None) -> ssl.SSLContext:
    """Return what a server needs; with `ca`, it requires a certificate of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert)
    if ca is not None:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
