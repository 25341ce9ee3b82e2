"""Captured requests of clients with one thing or another changed, from a bit to the meaning of a field."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Final

from msgspec.structs import replace

from fuzz.captured import Captured, captured_as
from fuzz.mutations import mutated
from reput_protocol.codes import RequestCode
from reput_protocol.errors import ProtocolError
from reput_protocol.wire.frames import decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType, Value, value_text
from reput_protocol.wire.signature import REPUT_SIGNATURE, SIGNATURE, Credentials, RequestSigner, signed_by

_AGAIN_SHARE: Final = 0.05
_HEAD: Final = struct.Struct(">II")
_CODES: Final = tuple(map(int, RequestCode))
_FLAGS: Final = (0, 0, 1, 2, 3, -1)
_VERSIONS: Final = (0, 1, 2, 100, 399, 400, 479, 501, 30_000)
_VALUES: Final = (
    "", "0", "1", "-1", "3", "4096", "2147483647", "2147483648", "-9223372036854775808", "9" * 25, "1.5", "1e400",
    "nan", "true", "TRUE", "null", "*", "a || b", "SQL92", "a > 1", "(" * 60, "orders", "%RETRY%g", "%DLQ%g", "TBW102",
    "SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG_DefaultCluster", "../../etc/passwd", "a/b", "\0", "\x01\x02", "\u202e",
    "\U0001f41f", "x" * 256, "x" * 3000,
)  # fmt: skip


class Form(StrEnum):
    """How requests are signed."""

    NONE = "not signed"
    ROCKETMQ = "signed"
    REPUT = "signed in Reput's form"


class SignedRequests:
    """The requests of one connection that are signed in Reput's form, each of which counts once."""

    def __init__(self, signer: RequestSigner) -> None:
        self._signer = signer
        self._contents: dict[Value, object] = {}
        self.frames: list[Captured] = []

    def sign(self, frame: Captured, header_type: HeaderType) -> Captured:
        """Return a request with a signature of its own."""
        ext = {name: value for name, value in frame.header.ext.items() if name != SIGNATURE}
        header = replace(frame.header, ext=ext)
        self._signer.sign(header, frame.body)
        encoded = encode_frame(header, header_type)[8:]
        self._contents[header.ext[REPUT_SIGNATURE]] = _content(decode_header(header_type, encoded), frame.body)
        self.frames.append(frame._replace(header=header, encoded=encoded))
        return self.frames[-1]

    def takes(self, header: Header, body: bytes) -> bool:
        """Whether a request is as it was signed, and comes for the first time."""
        signature, content = header.ext[REPUT_SIGNATURE], _content(header, body)
        if type(signature) is not str or content is None or self._contents.get(signature) != content:
            return False
        del self._contents[signature]
        return True


def _content(header: Header, body: bytes) -> object:
    """Return what a signature in Reput's form covers; None of what cannot be signed."""
    try:
        fields = {
            name: value_text(value)
            for name, value in header.ext.items()
            if value is not None and name != REPUT_SIGNATURE
        }
    except ValueError:
        return None
    return header.code, header.flag, header.version, fields, body


class Requests:
    """Requests of one type of header, changed by a generator of random numbers.

    Args:
        user: signs each request before it is changed, but for those that their client has signed.
    """

    def __init__(self, header_type: HeaderType, rng: Random, user: Credentials | None = None) -> None:
        self._header_type = header_type
        self._rng = rng
        frames = captured_as(header_type)
        self.originals: Sequence[Captured] = (
            frames if user is None else [_signed(frame, user, header_type) for frame in frames]
        )
        self._by_client = [
            [frame for frame in self.originals if frame.client == client]
            for client in sorted({frame.client for frame in self.originals})
        ]
        self._names = sorted({name for frame in self.originals for name in frame.header.ext})

    def next(self, opaque: int, signed: SignedRequests | None = None) -> tuple[bytes, bool]:
        """Return a changed frame, and whether the broker can read it, and so those that follow it.

        Args:
            signed: the requests before it; this one is signed before it is changed, or is one of them, as signed.
        """
        rng = self._rng
        frame = rng.choice(rng.choice(self._by_client))
        if signed is not None and signed.frames and rng.random() < _AGAIN_SHARE:
            frame = rng.choice(signed.frames)
            return self._encoded(replace(frame.header, opaque=opaque), frame.body), True
        if signed is not None:
            frame = signed.sign(frame, self._header_type)
        how = rng.random()
        if how < 0.02:
            return mutated(rng, _frame(self._header_type, frame.encoded, frame.body)), False
        if how < 0.07:
            encoded = mutated(rng, frame.encoded)
            return _frame(self._header_type, encoded, frame.body), _is_header(encoded, self._header_type)
        header = replace(frame.header, opaque=opaque, ext=dict(frame.header.ext))
        body = frame.body
        if how < 0.85:
            self._change_header(header)
        if body and how > 0.7:
            body = mutated(rng, body)
        return self._encoded(header, body), True

    def _change_header(self, header: Header) -> None:
        rng, ext = self._rng, header.ext
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            match rng.randrange(12):
                case 0:
                    header.code = rng.choice(_CODES)
                case 1 if rng.random() < 0.3:
                    header.flag = rng.choice(_FLAGS)
                case 2 if rng.random() < 0.5:
                    header.version = rng.choice(_VERSIONS)
                    header.language = rng.choice((0, 1, 3, 9, 12))
                case 3 if ext:
                    del ext[rng.choice([*ext])]
                case 4:
                    ext[rng.choice(self._names)] = rng.choice(_VALUES)
                case 5 if ext:
                    other = rng.choice(self.originals).header.ext
                    ext |= {name: other[name] for name in ext.keys() & other.keys() if rng.random() < 0.5}
                case 6 | 7 if ext:
                    ext[rng.choice([*ext])] = rng.choice(_VALUES)
                case 8 if self._header_type is not HeaderType.BINARY and ext:
                    ext[rng.choice([*ext])] = rng.choice((0, -1, 1 << 40, True, None, 1.5))
                case _ if ext:
                    name = rng.choice([*ext])
                    text = mutated(rng, str(ext[name]).encode())
                    ext[name] = text.decode("utf-8", "replace")

    def _encoded(self, header: Header, body: bytes) -> bytes:
        if self._header_type is HeaderType.BINARY and not -0x8000 <= header.code <= 0x7FFF:
            header.code &= 0x7FFF
        return encode_frame(header, self._header_type, body)


def _is_header(encoded: bytes, header_type: HeaderType) -> bool:
    try:
        decode_header(header_type, encoded)
    except ProtocolError:
        return False
    return True


def _frame(header_type: HeaderType, encoded: bytes, body: bytes) -> bytes:
    return b"".join((_HEAD.pack(4 + len(encoded) + len(body), int(header_type) << 24 | len(encoded)), encoded, body))


def _signed(frame: Captured, user: Credentials, header_type: HeaderType) -> Captured:
    header = frame.header
    if header.ext.get("AccessKey") != user.user:
        ext: dict[str, Value] = signed_by(user, header.ext, frame.body, version=header.version)
        header = replace(header, ext=ext)
        frame = frame._replace(header=header, encoded=encode_frame(header, header_type)[8:])
    return frame
