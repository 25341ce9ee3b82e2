"""Reading the time until which certificates are valid; the module `ssl` shows it of trusted authorities only."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import Final

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


class _Fields:
    """The fields of a sequence in DER, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data

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
