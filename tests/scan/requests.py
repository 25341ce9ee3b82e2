"""Every request code at a port: without a signature, with a wrong one, and in ways that want no answer."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from typing import Final

from reput_client import Credentials
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import ProtocolError
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, RESPONSE_FLAG, Header, HeaderType, Value, value_text
from reput_protocol.wire.signature import signed_by
from scan.findings import Finding
from support.typed_requests import request_of

KNOWN_CODES: Final = tuple(sorted({*map(int, RequestCode)}))
ALL_CODES: Final = tuple(sorted({*KNOWN_CODES, *range(-1, 4001), *range(200_000, 200_201)}))
_AT_ONCE: Final = 6
"""Requests of a connection, which ends at the eighth without a valid signature."""
_TIMEOUT_S: Final = 20.0
_SIGNERS: Final = {
    "no signature": None,
    "a wrong signature of `admin`": Credentials("admin", "not-its-secret"),
    "a signature of an unknown user": Credentials("nobody-here", "some-secret-or-other"),
}

_CONNECTIONS: Final = 48
_NO_ROUTE: Final = "; RocketMQ's clients report this as 'No route info of this topic', and log this text"

Connect = Callable[[], socket.socket]


class Names:
    """A topic and a group that exist, and those that do not."""

    def __init__(self, existing: tuple[str, str], missing: tuple[str, str]) -> None:
        self.pairs = (existing, missing)


def plain(address: tuple[str, int], sources: Iterator[str] | None = None) -> Connect:
    """Return what connects without TLS, each time from the next of `sources`, if there are any."""

    def connect() -> socket.socket:
        source = None if sources is None else (next(sources), 0)
        return socket.create_connection(address, timeout=_TIMEOUT_S, source_address=source)

    return connect


def with_tls(address: tuple[str, int], sources: Iterator[str] | None = None) -> Connect:
    """Return what connects with TLS and trusts any certificate; see `plain`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return lambda: context.wrap_socket(plain(address, sources)())


def scan_requests(port: int, connect: Connect, names: Names, codes: Sequence[int], how: str = "") -> Iterator[Finding]:
    """Send each code in each type of header. Each must get one refusal, the same for every code, name and type."""
    types = f"{len(HeaderType)} types of headers"
    for signer, credentials in _SIGNERS.items():
        finding, answers = Finding(port, ""), set[object]()
        for header_type in HeaderType:
            answers |= _ask(connect, _frames(header_type, codes, names, credentials), finding)
        finding.tried = f"requests{how}, {len(codes):,} codes, {types}, {signer}"
        if len(answers) != 1:
            finding.wrong.append(f"{len(answers)} answers, which tell codes or names apart: {answers}")
        yield finding
    for flag, kind in ((ONEWAY_FLAG, "one-way requests"), (RESPONSE_FLAG, "answers to no request")):
        finding = Finding(port, f"{kind}{how}, {len(codes):,} codes, {types}")
        for header_type in HeaderType:
            _tell(connect, _frames(header_type, codes, names, None, flag), finding)
        yield finding


def speaks_frames(connect: Connect) -> bool:
    """Tell whether a port answers a request with a frame."""
    try:
        with connect() as end:
            end.sendall(encode_frame(Header(int(RequestCode.HEART_BEAT), 1), HeaderType.JSON, b"{}"))
            return bool(FrameReader().receive_data(end.recv(1 << 16)))
    except (OSError, ProtocolError):
        return False


def scan_other_port(port: int, connect: Connect, names: Names, codes: Sequence[int]) -> Finding:
    """Send requests to a port that does not speak frames, each on a connection of its own."""
    finding = Finding(port, f"requests, {len(codes):,} codes, 2 types of headers")
    for header_type in (HeaderType.JSON, HeaderType.BINARY):
        for code in codes:
            for frame in _frames(header_type, (code,), names, None)[:1]:
                finding.note(first_line(connect, frame))
    for answer in finding.answers:
        is_refused = answer in ("closed", "reset") or answer == "HTTP/1.1 400"
        if not is_refused:
            finding.wrong.append(answer)
    return finding


def first_line(connect: Connect, data: bytes, *, ends: bool = True) -> str:
    """Send bytes, by default as the last ones; return the first line of the answer, or how the connection ends."""
    try:
        with connect() as end:
            end.sendall(data)
            if ends:
                end.shutdown(socket.SHUT_WR)
            answer = end.recv(4096)
    except TimeoutError:
        return "nothing, and the connection stays open"
    except OSError:
        return "reset"
    return answer.partition(b"\r\n")[0].decode("ascii", "backslashreplace").strip() if answer else "closed"


def _frames(
    header_type: HeaderType, codes: Sequence[int], names: Names, credentials: Credentials | None, flag: int = 0
) -> list[bytes]:
    frames, opaques = [], count(1)
    for code in codes:
        if code == RequestCode.SIGNATURE_CHALLENGE:
            continue  # the only request that needs no user
        sent_code = code
        if header_type is HeaderType.BINARY:
            sent_code = (code & 0xFFFF) - (code << 1 & 0x10000)  # as RocketMQ's clients cut it
        for topic, group in names.pairs:
            ext, body = _request(code, topic, group)
            if credentials is not None:
                ext = signed_by(credentials, ext, body, version=479)
            frames.append(encode_frame(Header(sent_code, next(opaques), flag, None, ext, 0, 479), header_type, body))
    return frames


def _request(code: int, topic: str, group: str) -> tuple[dict[str, Value], bytes]:
    """Return fields and body of a request, as its row in the table says; of one without a row, some."""
    if code not in REQUESTS:
        return {"topic": topic, "group": group}, b""
    ext, body = request_of(REQUESTS[code], lambda _, names: topic if "TOPIC" in names.name else group)
    return {name: value_text(value) for name, value in ext.items() if value is not None}, body


def _ask(connect: Connect, frames: Sequence[bytes], finding: Finding) -> set[object]:
    """Note the answers; return those that differ. A connection takes few requests, and an address with many waits."""
    seen = set[object]()
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        for headers in pool.map(lambda some: _answers(connect, some), _parts(frames)):
            if headers is None:
                finding.note("the connection is closed", wrong=True)
                continue
            for header, body in headers:
                remark = (header.remark or "").replace(_NO_ROUTE, "")
                seen.add((header.code, remark, tuple(header.ext.items()), body))
                finding.expect(
                    header.code == ResponseCode.NO_PERMISSION and remark.startswith("UNAUTHENTICATED: ") and not body,
                    f"{header.code} {remark}",
                )
    return seen


def _answers(connect: Connect, frames: Sequence[bytes]) -> list[tuple[Header, bytes]] | None:
    """Return the answers to frames on a connection of their own; None if it ends before."""
    reader, found = FrameReader(), list[tuple[Header, bytes]]()
    with connect() as end:
        end.sendall(b"".join(frames))
        while len(found) < len(frames):
            data = end.recv(1 << 16)
            if not data:
                return None
            found += [
                (decode_header(frame.header_type, frame.header), bytes(frame.body))
                for frame in reader.receive_data(data)
            ]
    return found


def _tell(connect: Connect, frames: Sequence[bytes], finding: Finding) -> None:
    """Send what gets no answer; a request at the end of each connection gets the only one."""
    last = encode_frame(Header(int(RequestCode.HEART_BEAT), 1_000_000), HeaderType.JSON, b"{}")
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        for some, headers in zip(
            _parts(frames), pool.map(lambda some: _answers_until(connect, some, last), _parts(frames)), strict=True
        ):
            if not headers or headers[-1].opaque != 1_000_000:
                finding.note("the connection is closed", wrong=True)
            for header in headers[:-1]:
                finding.note(f"{header.code} {header.remark}", wrong=True)
            finding.note("nothing", count=len(some))


def _answers_until(connect: Connect, frames: Sequence[bytes], last: bytes) -> list[Header]:
    """Return the answers to frames and to one more, up to that of the last."""
    reader, found = FrameReader(), list[Header]()
    with connect() as end:
        end.sendall(b"".join((*frames, last)))
        while not found or found[-1].opaque != 1_000_000:
            data = end.recv(1 << 16)
            if not data:
                break
            found += [decode_header(frame.header_type, frame.header) for frame in reader.receive_data(data)]
    return found


def _parts(frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    rest = iter(frames)
    while some := [*islice(rest, _AT_ONCE)]:
        yield some
