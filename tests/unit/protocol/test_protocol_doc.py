"""docs/protocol.md lists the codes, and its whole frames are those that the client of the quick start sends."""

from __future__ import annotations

import re
import socket
import time
from io import BytesIO
from pathlib import Path

import pytest

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.record.record import decode_record
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "protocol.md").read_text(encoding="utf-8")


def test_every_response_code_is_listed() -> None:
    listed = re.findall(r"`(\d+)`\s(\w+)", PAGE.split("## Response codes")[1].split("## JSON bodies")[0])
    assert listed == [(str(int(code)), code.name) for code in ResponseCode]


def frames() -> dict[str, tuple[bytes, Header, bytes]]:
    """Each whole frame on the page by its name: the bytes, the header and the body."""
    block = PAGE.split("## Whole frames")[1].split("```")[1]
    found = {}
    for name, lines in re.findall(r"(?m)^(\w+, \w+)\n((?:  .+\n)+)", block):
        data = bytes.fromhex("".join(line[10:] for line in lines.splitlines()))
        [(header_type, header, body)] = FrameReader().receive_data(data)
        assert header_type == HeaderType.MSGPACK
        found[name] = data, decode_header(header_type, header), bytes(body)
    return found


def test_the_whole_frames_are_those_that_are_encoded() -> None:
    codes = {"PutMessage": 700001, "PullMessage": 11, "QueryConsumerOffset": 14}
    assert [*frames()] == [f"{name}, {kind}" for name in codes for kind in ("request", "response")]
    for name, (data, header, body) in frames().items():
        assert encode_frame(header, HeaderType.MSGPACK, body) == data
        command, _, kind = name.partition(", ")
        assert header.code == (codes[command] if kind == "request" else ResponseCode.SUCCESS)
        assert header.opaque == 7
        if body:
            record = decode_record(body)  # which verifies the checksum
            assert (record.topic, record.body) == ("wire", b"hello")
    assert codes["PutMessage"] == RequestCode.PUT_MESSAGE


def test_the_client_without_a_library_sends_these_frames(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {name: data for name, (data, _, _) in frames().items()}
    sent: list[bytes] = []

    class Connection:
        def __init__(self, _address: object) -> None: ...

        def makefile(self, _mode: str) -> BytesIO:
            return BytesIO(b"".join(data for name, data in found.items() if name.endswith("response")))

        def sendall(self, frame: bytes) -> None:
            sent.append(frame)

    born_ms = decode_record(frames()["PutMessage, request"][2]).born_timestamp_ms
    monkeypatch.setattr(socket, "create_connection", Connection)
    monkeypatch.setattr(time, "time_ns", lambda: born_ms * 10**6)
    page = (DOCS / "quick-start.md").read_text(encoding="utf-8")
    program = page.split('title="wire.py"\n')[1].split("```")[0]
    assert len(program.strip().splitlines()) <= 40
    exec(compile(program, "wire.py", "exec"), {})
    assert sent == [data for name, data in found.items() if name.endswith("request")]
    assert "b'hello' True" in capsys.readouterr().out
