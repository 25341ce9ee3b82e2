"""FastStream's security objects, as the user and the encryption of clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext

from reput_client.credentials import Credentials
from reput_client.tls import TLS


@dataclass(frozen=True)
class _OfContext(TLS):
    """Connect with an SSL context that the application has made."""

    given: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """See `TLS`."""
        return super().context() if self.given is None else self.given


def clients_security(security: BaseSecurity | None, tls: TLS | None) -> tuple[Credentials | None, TLS | None]:
    """Return what clients take for `security`, and `tls` if that is given.

    Raises:
        SetupError: `security` is for another way to identify users, or both say how to encrypt.
        ValueError: the user or the secret is empty.
    """
    if security is None:
        return None, tls
    if not isinstance(security, SASLPlaintext) and type(security) is not BaseSecurity:
        raise SetupError(
            f"{type(security).__name__} is not supported; pass SASLPlaintext(user, secret), whose secret only signs "
            "the requests, or BaseSecurity for TLS without a user"
        )
    if security.use_ssl and tls is not None:
        raise SetupError(
            "security= and tls= both say how to encrypt; leave ssl_context and use_ssl out, or tls="
        )
    credentials = None
    if isinstance(security, SASLPlaintext):
        credentials = Credentials(security.username, security.password)
    return credentials, _OfContext(given=security.ssl_context) if security.use_ssl else tls
