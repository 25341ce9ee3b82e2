"""The captured frames of clients, which `capture.py` writes into tests/golden/frames/."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from reput_protocol.wire.frames import decode_header, encode_header
from reput_protocol.wire.header import Header, HeaderType, text_ext
from reput_protocol.wire.signature import Credentials

DIRECTORY: Final = Path(__file__).parents[1] / "golden" / "frames"
USER: Final = Credentials("client", "secret-of-the-client")
"""Who has signed the frames."""


class Captured(NamedTuple):
    """A request of a client."""

    client: str
    header: Header
    header_type: int
    encoded: bytes
    """The header as the client has written it."""
    body: bytes


def write(client: str, frames: Iterable[tuple[int, bytes, bytes]]) -> int:
    """Write the frames of a client; return how many these are."""
    lines = [[header_type, header.hex(), body.hex()] for header_type, header, body in frames]
    DIRECTORY.mkdir(exist_ok=True)
    text = "[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n"
    (DIRECTORY / f"{client}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return len(lines)


@functools.cache
def captured() -> tuple[Captured, ...]:
    """Return the frames of all clients."""
    found = []
    for path in sorted(DIRECTORY.glob("*.json.gz")):
        for header_type, header, body in json.loads(gzip.decompress(path.read_bytes())):
            encoded = bytes.fromhex(header)
            found.append(
                Captured(
                    path.name.partition(".")[0],
                    decode_header(header_type, encoded),
                    header_type,
                    encoded,
                    bytes.fromhex(body),
                )
            )
    return tuple(found)


@functools.cache
def captured_as(header_type: HeaderType) -> tuple[Captured, ...]:
    """Return the frames in one type of header: as the clients have written them, or, where they have written another
    type, with the same content."""
    found = []
    for frame in captured():
        if frame.header_type == header_type:
            found.append(frame)
        elif not (header_type is HeaderType.BINARY and frame.header.code > 0x7FFF):
            header = replace(frame.header, ext=dict(text_ext(frame.header.ext)))
            found.append(
                frame._replace(header=header, header_type=int(header_type), encoded=encode_header(header, header_type))
            )
    return tuple(found)
