"""How clients encrypt their connections, which authorities they trust, and the user whose requests they send.

The user is given by the application, or found in the environment: `REPUT_USER` names it, `REPUT_SECRET_FILE` a file
with its secret; `REPUT_SECRET` holds the secret itself. `REPUT_ROCKETMQ_SIGNATURES` is
`Credentials.rocketmq_signatures`, also of users whose secret is in a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from reput_protocol.wire.signature import Credentials as Credentials

if TYPE_CHECKING:
    import ssl  # at runtime on first use: most clients need none

_Stamp: TypeAlias = tuple[str, int, int, int] | None


@dataclass(frozen=True)
class TLS:
    """Connect with TLS: `Producer(address, tls=TLS(ca="ca.pem"))`.

    The certificate of each broker is checked, and that it is for the address that is connected to. TLS 1.2 or later is
    used. The files are read at the first connection, and again at a later one if they have changed.

    Args:
        ca: file with the certificates of the authorities that are trusted, in PEM; None: those of the system.
        cert: file with the certificate of this client, and those of the authorities between it and the brokers'
            `tls.ca`, in PEM; for brokers that require one.
        key: file with its key, in PEM and not encrypted; None: it is in `cert`.
        server_name: the name that the certificates of all brokers have, if it is not the address.

    Raises:
        ValueError: there is a key and no certificate.
    """

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise ValueError("key belongs to cert, which is not given")

    def context(self) -> ssl.SSLContext:
        """Return what connections are made with; the same one while the files stay the same.

        Raises:
            ValueError: a file cannot be used. The text has its name.
        """
        return _context(_stamp(self.ca, "ca"), _stamp(self.cert, "cert"), _stamp(self.key, "key"))


def _stamp(path: str | os.PathLike[str] | None, what: str) -> _Stamp:
    """Return the path of a file and what changes with its content."""
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError as error:
        raise ValueError(f"{what} {os.fspath(path)} cannot be read: {error.strerror}") from error
    return os.fspath(path), status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=16)
def _context(ca: _Stamp, cert: _Stamp, key: _Stamp) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(ca[0])
    except OSError as error:  # of which the errors of `ssl` are a kind
        reason = "has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise ValueError(f"ca {ca[0] if ca else 'of the system'}: {reason}") from error
    if cert is not None:
        place = cert[0] if key is None else f"{cert[0]} with key {key[0]}"
        try:
            context.load_cert_chain(cert[0], None if key is None else key[0], password=_refuse)
        except OSError as error:
            reason = _unusable(error) if isinstance(error, ssl.SSLError) else error.strerror
            raise ValueError(f"cert {place}: {reason}") from error
    return context


def _refuse() -> str:
    raise ValueError("the key is encrypted; give one without a passphrase, readable by this user only")


def _unusable(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not the certificate's"
    return "has no certificate, or no key, in PEM"


USER: Final = "REPUT_USER"
SECRET: Final = "REPUT_SECRET"
SECRET_FILE: Final = "REPUT_SECRET_FILE"
ROCKETMQ_SIGNATURES: Final = "REPUT_ROCKETMQ_SIGNATURES"


def credentials_of(
    user: str, secret_file: str | os.PathLike[str], environ: Mapping[str, str] = os.environ
) -> Credentials:
    """Return a user with the secret in a file, whose trailing newline is left out.

    Raises:
        ValueError: the file cannot be read, is empty or not text, or the user is empty. The text does not show its
            content. Or `REPUT_ROCKETMQ_SIGNATURES` has another value than true or false.
    """
    try:
        secret = Path(secret_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"the secret of user {user!r} cannot be read from {secret_file}: {reason}") from None
    if not secret:
        raise ValueError(f"{secret_file}, which is to have the secret of user {user!r}, is empty")
    return Credentials(user, secret, rocketmq_signatures=_rocketmq_signatures(environ))


def from_environment(environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return the user that the environment names, or None.

    Raises:
        ValueError: there is a user without a secret, a secret without a user, or a variable or the file cannot be used.
    """
    user, secret, file = (environ.get(name, "") for name in (USER, SECRET, SECRET_FILE))
    if not user and not secret and not file:
        return None
    if not user:
        raise ValueError(f"{SECRET if secret else SECRET_FILE} is set, but {USER} is not; set both or neither")
    if secret and file:
        raise ValueError(f"{SECRET} and {SECRET_FILE} are both set; set one of them")
    if secret:
        return Credentials(user, secret, rocketmq_signatures=_rocketmq_signatures(environ))
    if not file:
        raise ValueError(f"{USER} is set, but no secret; set {SECRET_FILE}, or {SECRET}")
    return credentials_of(user, file, environ)


def _rocketmq_signatures(environ: Mapping[str, str]) -> bool:
    value = environ.get(ROCKETMQ_SIGNATURES) or "true"
    if value not in ("true", "false"):
        raise ValueError(f"{ROCKETMQ_SIGNATURES} is {value!r}; set it to true or false")
    return value == "true"
