"""The certificates of a broker: for its ports, and for its connections to other brokers and name servers.

The files are read at the start, on a reload of the configuration, and when they change. Open connections keep what they
were made with.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, TypeAlias

import structlog
import trio

from reput_broker.config.sections import TlsConfig
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_LOOK_S: Final = 5.0
_Stamp: TypeAlias = tuple[str, int, int, int]


class TlsFilesUnusable(ReputError):
    """A certificate, a key or an authority cannot be used.

    Attributes:
        option: the key of the option that names the file: `tls.cert`.
        problem: the file, what is wrong with it, and the remedy.
    """

    def __init__(self, name: str, path: str, problem: str) -> None:
        self.option = f"tls.{name}"
        self.problem = f"{path}: {problem}"
        super().__init__(f"{self.option} {self.problem}")


class ServerTls:
    """What the ports of a broker encrypt with.

    Args:
        config: with certificates, if any port has TLS.

    Raises:
        TlsFilesUnusable: a file cannot be read, or does not belong to the others.
    """

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self.reload_ok = True
        """Whether the files could be read when they last changed."""
        self.end_times_s: dict[str, float] = {}
        """By option: the Unix time at which the certificates of that file end."""
        self._stamps: tuple[_Stamp, ...] = ()
        self._context: ssl.SSLContext | None = None
        self._http_context: ssl.SSLContext | None = None
        self._load()

    @classmethod
    def of(cls, config: TlsConfig) -> ServerTls | None:
        """Return what the configuration has; None without any file. Raises TlsFilesUnusable."""
        return cls(config) if config.cert or config.ca else None

    @property
    def context(self) -> ssl.SSLContext:
        """For connections of the broker's protocol; a new one after each reload."""
        assert self._context is not None, "some port has TLS"
        return self._context

    @property
    def http_context(self) -> ssl.SSLContext:
        """For HTTP, where no client is asked for a certificate; likewise."""
        assert self._http_context is not None, "some port has TLS"
        return self._http_context

    def reload(self) -> None:
        """Read the files again. If they cannot be used, the certificates in use stay.

        Raises:
            TlsFilesUnusable: already logged.
        """
        try:
            self._load()
        except TlsFilesUnusable as error:
            self.reload_ok = False
            log.error(
                "tls_reload_failed",
                detail=str(error),
                hint="the certificates in use stay; correct the files, which are read again when they change",
            )
            raise
        self.reload_ok = True
        if self._stamps:
            log.info("tls_reloaded", ends={key: round(end_s) for key, end_s in self.end_times_s.items()})

    async def watch(self) -> None:
        """Reload when a file has changed, until cancelled."""
        while True:
            await trio.sleep(_LOOK_S)
            await trio.to_thread.run_sync(self.look)

    def look(self) -> None:
        """Reload if a file has changed; a failure is logged, and the files are read again when they change."""
        stamps = self._stamps_now()
        if stamps == self._stamps:
            return
        try:
            self.reload()
        except TlsFilesUnusable:
            self._stamps = stamps

    @property
    def _files(self) -> dict[str, str]:
        config = self.config
        files = {"cert": config.cert, "key": config.key, "ca": config.ca}
        return {key: path for key, path in files.items() if path}

    def _stamps_now(self) -> tuple[_Stamp, ...]:
        """Return what changes with the files; a missing one has none."""
        found = []
        for path in self._files.values():
            try:
                found.append(_stamp(path))
            except OSError:
                continue
        return tuple(found)

    def _load(self) -> None:
        config, stamps = self.config, self._stamps_now()
        ends = {}
        if config.cert:
            ends["cert"] = min(_ends("cert", config.cert))
        if config.ca:
            ends["ca"] = max(_ends("ca", config.ca))
        if config.is_on:
            context, http_context = _server_context(config), _server_context(config)
            if config.client_cert != "none":
                _load_ca(context, config.ca)
                is_required = config.client_cert == "required"
                context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
            self._context, self._http_context = context, http_context
        self.end_times_s, self._stamps = ends, stamps


def file_problems(config: TlsConfig, now_s: float) -> list[TlsFilesUnusable]:
    """Return all that is wrong with the files, also certificates that have ended, with which a broker still starts.

    Args:
        now_s: the Unix time.
    """
    problems: list[TlsFilesUnusable] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def check(work: Callable[[], object]) -> None:
        try:
            work()
        except TlsFilesUnusable as error:
            if str(error) not in map(str, problems):
                problems.append(error)

    def check_end(name: str, path: str, pick: Callable[[list[float]], float]) -> None:
        end_s = pick(_ends(name, path))
        if end_s <= now_s:
            ended = datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%d %H:%M")
            raise TlsFilesUnusable(name, path, f"the certificate ended at {ended} UTC; renew it")

    if config.key:
        check(partial(_text, "key", config.key))
    if config.cert:
        check(partial(check_end, "cert", config.cert, min))
        check(partial(_load_cert, context, config.cert, config.key))
    if config.ca:
        # One of several authorities may have ended, as long as another one has taken over.
        check(partial(check_end, "ca", config.ca, max))
        check(partial(_load_ca, context, config.ca))
    return problems


def outgoing_context(config: TlsConfig) -> ssl.SSLContext | None:
    """Return what connections to other brokers and name servers are made with; None without TLS.

    The files are read again if they have changed.

    Raises:
        TlsFilesUnusable: a file cannot be used.
    """
    if not config.connect:
        return None
    stamps: list[_Stamp | None] = []
    for name, path in (("ca", config.ca), ("cert", config.cert), ("key", config.key)):
        try:
            stamps.append(_stamp(path) if path else None)
        except OSError as error:
            raise TlsFilesUnusable(name, path, f"it cannot be read: {error.strerror}; check it") from error
    return _outgoing_context(*stamps)


@lru_cache(maxsize=4)
def _outgoing_context(ca: _Stamp | None, cert: _Stamp | None, key: _Stamp | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, ca[0])
    if cert is not None:
        _load_cert(context, cert[0], "" if key is None else key[0])
    return context


def _server_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_cert(context, config.cert, config.key)
    return context


def _load_cert(context: ssl.SSLContext, cert: str, key: str) -> None:
    for name, path in (("cert", cert), ("key", key)):
        if path:
            _text(name, path)

    def refuse() -> str:
        raise _of_key(cert, key, "is encrypted; give one without a passphrase, which only the broker's user may read")

    try:
        context.load_cert_chain(cert, key or None, password=refuse)
    except ssl.SSLError as error:
        _ends("cert", cert)
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _of_key(cert, key, f"is not that of the certificate in {cert}; give its own") from error
        raise _of_key(cert, key, "is not there, or not in PEM; both certificate and key are needed") from error


def _of_key(cert: str, key: str, problem: str) -> TlsFilesUnusable:
    return TlsFilesUnusable("key" if key else "cert", key or cert, f"the key {problem}")


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    _ends("ca", ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise TlsFilesUnusable("ca", ca, "a certificate in it is not valid; get the file again") from error


def _ends(name: str, path: str) -> list[float]:
    text = _text(name, path)
    try:
        ends = ends_of_validity(text)
    except ValueError as error:
        raise TlsFilesUnusable(name, path, f"{error}; get the file again") from error
    if not ends:
        raise TlsFilesUnusable(name, path, "there is no certificate in PEM; give a file with one")
    return ends


def _text(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError as error:
        raise TlsFilesUnusable(name, path, "there is no such file; correct the path") from error
    except PermissionError as error:
        problem = "this user may not read it; give the file, or its group, to the broker's user"
        raise TlsFilesUnusable(name, path, problem) from error
    except OSError as error:
        raise TlsFilesUnusable(name, path, f"it cannot be read: {error.strerror}; check it") from error


def _stamp(path: str) -> _Stamp:
    status = os.stat(path)
    return path, status.st_ino, status.st_size, status.st_mtime_ns


_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


def ends_of_validity(pem: str) -> list[float]:
    """Return the Unix time at which each certificate of a PEM file ends, in the order of the file.

    Raises:
        ValueError: one cannot be read.
    """
    ends = []
    for part in pem.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        if not end:
            raise ValueError("a certificate in it is not complete")
        ends.append(_end_of_validity(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{body}{_END}\n")))
    return ends


def _end_of_validity(der: bytes) -> float:
    """Return `notAfter` of a certificate (RFC 5280, 4.1)."""
    certificate = _Fields(der).take(_SEQUENCE)
    signed = _Fields(_Fields(certificate).take(_SEQUENCE))
    if signed.tag == _VERSION:
        signed.take()
    for _ in ("serial number", "algorithm", "issuer"):
        signed.take()
    validity = _Fields(signed.take(_SEQUENCE))
    validity.take()  # its begin
    kind = validity.tag
    text = validity.take().decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year: 50 to 99 are 1950 to 1999
        text = ("19" if text[:2] >= "50" else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("a certificate in it has no end")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


@dataclass(eq=False, repr=False)
class _Fields:
    """The fields of a sequence in DER, one after the other."""

    _data: bytes

    @property
    def tag(self) -> int:
        """The kind of the next field; -1 after the last."""
        return self._data[0] if self._data else -1

    def take(self, expected: int | None = None) -> bytes:
        """Return the content of the next field. Raises ValueError if it is of another kind, or not complete."""
        data = self._data
        if len(data) < 2 or (expected is not None and data[0] != expected):
            raise ValueError("a certificate in it is not valid")
        size, start = data[1], 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(data[2:start])
        if start + size > len(data):
            raise ValueError("a certificate in it is not complete")
        self._data = data[start + size :]
        return data[start : start + size]
