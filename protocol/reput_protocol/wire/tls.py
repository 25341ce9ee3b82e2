"""TLS as bytes in and bytes out: one side of an encrypted connection, without a socket.

The bundled client and the broker's listeners drive the same code; each brings its own reads, writes and waits. Errors
name the cause and what to do about it.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

from reput_protocol.buffers import Buffer
from reput_protocol.errors import TlsFailed

FIRST_BYTE: Final = 0x16
"""What a TLS connection starts with (a handshake record). A frame starts with its length, which is far below
0x16000000."""
CHUNK_BYTES: Final = 64 * 1024
"""How much is encrypted at once: four full TLS records."""
_READ_BYTES: Final = 16 * 1024  # a TLS record

_RENEW: Final = "renew it there, or correct the clock of this machine"
GIVE_CA: Final = "give the file of the authority that has signed it as the CA"
SET_NAME: Final = "connect by one of its names, or set the server name to one of them"
NO_TLS: Final = "connect without TLS, or turn TLS on there"
GIVE_CERTIFICATE: Final = "give a certificate, and its key, that is accepted there"
# By OpenSSL's codes of verification (X509_V_ERR_...).
_VERIFICATION: Final = {
    9: ("is not valid yet", "correct the clock of this machine, or wait"),
    10: ("has expired", _RENEW),
    18: ("is self-signed and not trusted", GIVE_CA),
    19: ("is signed by an authority that is not trusted", GIVE_CA),
    20: ("is signed by an authority that is not trusted", GIVE_CA),
    21: ("is signed by an authority that is not trusted", GIVE_CA),
    23: ("has been revoked", "renew it there"),
    26: ("is not made for this purpose", "check its extended key usage"),
    62: ("is for another name", SET_NAME),
    64: ("is for another address", SET_NAME),
}
# By parts of OpenSSL's reasons: what `{peer}` did, and what helps. The first group refuses this side's certificate.
_CERTIFICATE_REFUSED: Final = (
    ("CERTIFICATE_REQUIRED", "{peer} requires a certificate, and none was given", GIVE_CERTIFICATE),
    ("ALERT_UNKNOWN_CA", "{peer} does not trust the authority of this side's certificate", GIVE_CERTIFICATE),
    ("ALERT_CERTIFICATE_EXPIRED", "the certificate of this side has expired", "renew it"),
    ("ALERT_CERTIFICATE_REVOKED", "the certificate of this side has been revoked", "renew it"),
    ("CERTIFICATE_UNKNOWN", "{peer} does not accept the certificate of this side", GIVE_CERTIFICATE),
    ("ALERT_BAD_CERTIFICATE", "{peer} does not accept the certificate of this side, or requires one", GIVE_CERTIFICATE),
    ("UNSUPPORTED_CERTIFICATE", "{peer} does not accept this kind of certificate", GIVE_CERTIFICATE),
)
_PLAIN: Final = ("{peer} does not use TLS", NO_TLS)
_VERSIONS: Final = ("{peer} and this side have no version of TLS in common", "TLS 1.2 or later is needed")
_OTHER_REASONS: Final = (
    ("WRONG_VERSION_NUMBER", *_PLAIN),
    ("PACKET_LENGTH_TOO_LONG", *_PLAIN),
    ("RECORD_LAYER_FAILURE", *_PLAIN),
    ("HTTP_REQUEST", "{peer} uses HTTP without TLS", "use https"),
    ("PEER_DID_NOT_RETURN", "{peer} has sent no certificate, and one is required", GIVE_CERTIFICATE),
    ("HANDSHAKE_FAILURE", "{peer} has rejected the handshake", "see its log"),
    ("PROTOCOL_VERSION", *_VERSIONS),
    ("UNSUPPORTED_PROTOCOL", *_VERSIONS),
    ("NO_SHARED_CIPHER", "{peer} and this side have no cipher in common", "check the kinds of their keys"),
)


def tls_failure(error: Exception, peer: str) -> TlsFailed:
    """Return what an error of the module `ssl` means and what helps; `peer` is how the text names the other side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        unknown = (f"is rejected: {error.verify_message}", "check it")
        what, remedy = _VERIFICATION.get(error.verify_code, unknown)
        detail = f" ({error.verify_message.rstrip('.')})" if error.verify_code in (62, 64) else ""
        return TlsFailed(f"the certificate of {peer} {what}{detail}", remedy)
    reason = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
    for group in (_CERTIFICATE_REFUSED, _OTHER_REASONS):
        for part, cause, remedy in group:
            if part in reason:
                is_refusal = group is _CERTIFICATE_REFUSED
                return TlsFailed(cause.format(peer=peer), remedy, refuses_certificate=is_refusal)
    text = reason.replace("_", " ").lower() or str(error)
    return TlsFailed(f"the connection with {peer} broke: {text}", "see the log of the other side")


class TlsSession:
    """One side of one connection.

    Args:
        context: certificates and rules.
        server_name: of a client: the name that the certificate must have; None: this is the server's side.
        peer: how errors name the other side.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "_peer", "has_ended", "is_established")

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None, peer: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        is_server = server_name is None
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=server_name
        )
        self._peer = peer
        self.is_established = False
        """Whether the handshake is over. Under TLS 1.3 a server may refuse a client's certificate even then."""
        self.has_ended = False
        """Whether the peer has said that it sends nothing more."""

    def begin(self) -> None:
        """Start the handshake; a client then has bytes to send.

        Raises:
            TlsFailed: the name of the server cannot be used.
        """
        self._step()

    def receive_data(self, data: Buffer) -> bytes:
        """Take bytes from the peer; return all that they decrypt to. Then send what `to_send` returns.

        Raises:
            TlsFailed: the peer cannot be trusted, or has sent something wrong. `to_send` may have an alert for it.
        """
        self._incoming.write(data)
        if not self.is_established:
            self._step()
            if not self.is_established:
                return b""
        pieces: list[bytes] = []
        try:
            while self._incoming.pending:
                piece = self._object.read(_READ_BYTES)
                if not piece:
                    self.has_ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            raise tls_failure(error, self._peer) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def encrypt(self, data: Buffer) -> bytes:
        """Return the bytes to send for `data`, after all that had to be sent before.

        Raises:
            TlsFailed: the connection cannot be used any more.
        """
        try:
            self._object.write(data)
        except ssl.SSLError as error:
            raise tls_failure(error, self._peer) from error
        return self._outgoing.read()

    def to_send(self) -> bytes:
        """Return what must be sent to the peer now, and was not returned before."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """Return the bytes that say that this side sends nothing more; b"" if there are none to send."""
        if self.is_established:
            with suppress(ssl.SSLError):  # the peer has not answered yet, and need not
                self._object.unwrap()
        return self.to_send()

    def _step(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise tls_failure(error, self._peer) from error
        self.is_established = True
