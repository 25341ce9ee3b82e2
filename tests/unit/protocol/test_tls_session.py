"""TLS without sockets: what goes through, who is trusted, and what errors say."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from reput_client.security import TLS
from reput_protocol.errors import TlsFailed
from reput_protocol.wire.tls import TlsSession
from support.tls_files import TlsFiles, make_tls_files, server_context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls_files(tmp_path_factory.mktemp("tls"))


def meet(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "127.0.0.1") -> tuple[TlsSession, TlsSession]:
    """Let both sides exchange what they have until neither has anything; raise the first failure."""
    ours = TlsSession(client, server_name=name, peer="the broker")
    theirs = TlsSession(server, server_name=None, peer="the client")
    ours.begin()
    while (asked := ours.to_send()) or (answered := theirs.to_send()):
        if asked:
            theirs.receive_data(asked)
        else:
            ours.receive_data(answered)
    return ours, theirs


def test_both_sides_read_what_the_other_sends_however_it_is_split(files: TlsFiles) -> None:
    ours, theirs = meet(TLS(ca=files.ca).context(), server_context(files.broker))
    body = bytes(range(256)) * 300
    encrypted = ours.encrypt(body)
    assert body[:100] not in encrypted
    assert b"".join(theirs.receive_data(encrypted[at : at + 1000]) for at in range(0, len(encrypted), 1000)) == body
    assert ours.receive_data(theirs.encrypt(b"yes")) == b"yes"
    assert not ours.has_ended
    ours.receive_data(theirs.end())
    assert ours.has_ended


@pytest.mark.parametrize(
    ("client", "server", "name", "says"),
    [
        ("other_ca", "broker", "127.0.0.1", "certificate of the broker is signed by an authority that is not trusted"),
        ("ca", "foreign", "127.0.0.1", "certificate of the broker is signed by an authority that is not trusted"),
        ("ca", "broker", "127.0.0.2", "certificate of the broker is for another address"),
        ("ca", "broker", "b.example", "certificate of the broker is for another name .*'b.example'"),
        ("ca", "expired", "127.0.0.1", "certificate of the broker has expired; renew it"),
    ],
)
def test_a_server_that_is_not_trusted(files: TlsFiles, client: str, server: str, name: str, says: str) -> None:
    context = TLS(ca=getattr(files, client)).context()
    with pytest.raises(TlsFailed, match=says) as failed:
        meet(context, server_context(getattr(files, server)), name)
    assert not failed.value.refuses_certificate


@pytest.mark.parametrize(
    ("cert", "server_says", "client_says"),
    [
        (None, "the client has sent no certificate", "the broker requires a certificate, and none was given"),
        ("foreign", "the client is signed by an authority", "the broker does not trust the authority of this side"),
        ("expired", "the client has expired", "the certificate of this side has expired"),
    ],
)
def test_a_client_that_is_not_trusted_learns_why(
    files: TlsFiles, cert: str | None, server_says: str, client_says: str
) -> None:
    client = TLS(ca=files.ca, cert=None if cert is None else getattr(files, cert)).context()
    ours = TlsSession(client, server_name="127.0.0.1", peer="the broker")
    theirs = TlsSession(server_context(files.broker, files.ca), server_name=None, peer="the client")
    ours.begin()
    theirs.receive_data(ours.to_send())
    ours.receive_data(theirs.to_send())
    with pytest.raises(TlsFailed, match=server_says):
        theirs.receive_data(ours.to_send())
    with pytest.raises(TlsFailed, match=client_says) as failed:
        ours.receive_data(theirs.to_send())
    assert failed.value.refuses_certificate


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\0\0\1\0\0\0\0\x50{}", "the client does not use TLS; connect without TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "the client uses HTTP without TLS; use https"),
        (b"\x16\x03\x01\0\x05aaaaaa", "the connection with the client broke"),
    ],
)
def test_bytes_that_are_not_tls(files: TlsFiles, data: bytes, says: str) -> None:
    session = TlsSession(server_context(files.broker), server_name=None, peer="the client")
    with pytest.raises(TlsFailed, match=says):
        session.receive_data(data)


def test_a_changed_file_makes_a_new_context(files: TlsFiles, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(files.ca.read_bytes())
    tls = TLS(ca=ca)
    first = tls.context()
    assert tls.context() is first
    ca.unlink()
    ca.write_bytes(files.other_ca.read_bytes())
    assert tls.context() is not first


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ca": "nope.pem"}, "ca nope.pem cannot be read: No such file"),
        ({"ca": __file__}, "has no certificate in PEM"),
        ({"cert": __file__}, "has no certificate, or no key, in PEM"),
    ],
)
def test_files_that_cannot_be_used(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TLS(**options).context()


def test_a_key_of_another_certificate(files: TlsFiles) -> None:
    with pytest.raises(ValueError, match="the key is not the certificate's"):
        TLS(cert=files.client, key=files.broker).context()
    with pytest.raises(ValueError, match="key belongs to cert"):
        TLS(key=files.client)
