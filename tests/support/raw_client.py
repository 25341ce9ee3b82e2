"""A plain socket that speaks frames: what any peer, well-behaved or not, can send to a broker."""

from __future__ import annotations

import socket
import ssl
import time
from base64 import b64decode
from collections.abc import Mapping
from itertools import count
from types import TracebackType
from typing import Self

from reput_protocol.codes import RequestCode
from reput_protocol.commands.users import SignatureChallenge
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType, Value
from reput_protocol.wire.signature import Credentials, RequestSigner, signed_by

TIMEOUT_S = 10.0


def in_letters(topic: str, **more: Value) -> dict[str, Value]:
    """Return the fields of RocketMQ's SEND_MESSAGE_V2, whose names are single letters, for a message to a topic."""
    return {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "",
        "j": "0", "k": "false", "m": "false", "n": "broker-a", **more,
    }  # fmt: skip


class RawClient:
    """One connection; `header_type` is what its requests are written in, `credentials` what they are signed with."""

    def __init__(
        self,
        address: str,
        header_type: int = HeaderType.MSGPACK,
        timeout_s: float = TIMEOUT_S,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._reader = FrameReader()
        self._answers: list[tuple[Header, bytes, int]] = []
        self._opaques = count(1)
        self.header_type = header_type
        self.credentials = credentials
        self.signer: RequestSigner | None = None

    def ask_for_challenge(self, credentials: Credentials) -> None:
        """Sign requests in Reput's form from now on."""
        header_type, self.header_type = self.header_type, HeaderType.JSON
        answer = SignatureChallenge.from_ext(self.request(RequestCode.SIGNATURE_CHALLENGE)[0].ext)
        self.header_type = header_type
        assert answer.challenge is not None, "the broker has no access control"
        self.signer = RequestSigner(credentials, b64decode(answer.challenge), lambda: time.time_ns() // 1_000_000)

    def request(
        self, code: int, ext: Mapping[str, Value] | None = None, body: bytes = b"", *, flag: int = 0
    ) -> tuple[Header, bytes]:
        """Send a request and return its answer: header and body."""
        opaque = self.send(code, ext, body, flag=flag)
        header, content, header_type = self.receive()
        assert header.opaque == opaque
        assert header_type == self.header_type, "an answer mirrors the request's header type"
        return header, content

    def send(self, code: int, ext: Mapping[str, Value] | None = None, body: bytes = b"", *, flag: int = 0) -> int:
        """Send a request and return its opaque number."""
        opaque = next(self._opaques)
        self.send_bytes(self.frame(code, ext, body, opaque=opaque, flag=flag))
        return opaque

    def frame(
        self, code: int, ext: Mapping[str, Value] | None = None, body: bytes = b"", *, opaque: int = 1, flag: int = 0
    ) -> bytes:
        """Return the bytes of a request."""
        header = Header(code, opaque, flag, ext=dict(ext or {}))
        if self.signer is not None:
            self.signer.sign(header, body)
        elif self.credentials is not None:
            header.ext = signed_by(self.credentials, header.ext, body, version=0)
        return encode_frame(header, self.header_type, body)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def receive(self) -> tuple[Header, bytes, int]:
        """Return the next answer: header, body, header type."""
        while not self._answers:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError("the broker closed the connection")
            self._answers += [
                (decode_header(frame.header_type, frame.header), bytes(frame.body), frame.header_type)
                for frame in self._reader.receive_data(data)
            ]
        return self._answers.pop(0)

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of the connection; answers that come before are kept."""
        kept: list[tuple[Header, bytes, int]] = []
        try:
            while True:
                kept.append(self.receive())
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False
        finally:
            self._answers += kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
