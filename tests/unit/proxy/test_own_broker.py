"""The TLS of a proxy to the broker that has started it: it trusts the certificate in the file, and no other."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from reput_protocol.proxy_process import ProxyTask
from reput_proxy.__main__ import _tls
from support.tls_files import TlsFiles, make_tls_files, server_context


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return make_tls_files(tmp_path)


def context_of(pin: Path) -> ssl.SSLContext:
    tls = _tls(ProxyTask(server="a:1", host="", port=1, drain_s=0, server_tls=True, server_pin=str(pin)))
    assert tls is not None
    return tls.context()


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Have them make a connection; raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="another-name"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", " \n\n"])
def test_the_end_of_the_file_does_not_matter(files: TlsFiles, tmp_path: Path, end: str) -> None:
    pin = tmp_path / "pin.pem"
    pin.write_text(files.broker.read_text().rstrip() + end)
    shake_hands(context_of(pin), server_context(files.broker))


def test_another_certificate_of_the_same_authority_is_not_trusted(files: TlsFiles, tmp_path: Path) -> None:
    """Also if the file has the authority's certificate after the broker's."""
    pin = tmp_path / "pin.pem"
    pin.write_text(files.broker.read_text() + files.ca.read_text())
    shake_hands(context_of(pin), server_context(files.broker))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context_of(pin), server_context(files.client))


def test_a_file_without_a_certificate_is_reported(tmp_path: Path) -> None:
    pin = tmp_path / "pin.pem"
    pin.write_text("no certificate")
    with pytest.raises(ValueError, match=r"pin\.pem"):
        context_of(pin)
