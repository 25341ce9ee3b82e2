"""What a proxy process tells its broker, in short lines that no call waits for, and the TLS of connections to it."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from reput_protocol.proxy_process import LINE_BYTES_MAX, ProxyReport, ProxySpan, ProxySpans, ProxyTask
from reput_proxy import __main__ as process
from reput_proxy import messaging_pb2 as pb
from reput_proxy.__main__ import EndedSpans, _tls, tell_log
from reput_proxy.rejections import Code
from reput_proxy.spans import Spans
from support.tls_files import TlsFiles, make_tls_files, server_context

PIPE_BUF = 4_096


class Broker:
    """The other end of the pipe, which reads once it is started."""

    def __init__(self, fd: int) -> None:
        self.lines: list[bytes] = []
        self._fd = fd
        self._reading = threading.Thread(target=self._read)

    def start(self) -> None:
        self._reading.start()

    def _read(self) -> None:
        with open(self._fd, "rb") as file:
            self.lines = [*file]

    def join(self) -> None:
        self._reading.join(60)

    @property
    def spans(self) -> list[ProxySpan]:
        found = []
        for line in self.lines:
            report = msgspec.json.decode(line, type=ProxyReport)
            assert isinstance(report, ProxySpans)
            found += report.spans
        return found


@contextmanager
def told_to_broker() -> Iterator[Broker]:
    """Have stdout be a pipe to a broker, which has read all after the block."""
    reads, writes = os.pipe()
    broker = Broker(reads)
    with pytest.MonkeyPatch.context() as patch, open(writes, "w") as stdout:
        patch.setattr("sys.stdout", stdout)
        yield broker
    broker.join()


@pytest.mark.parametrize("character", ["x", "\U0001f600", "\x01", '"'])
def test_names_of_any_length_and_characters_make_short_lines(character: str) -> None:
    ended = EndedSpans()
    spans = Spans(ended.add, 1.0)
    name = pb.Resource(name=1_000 * character)
    request = pb.AckMessageRequest(topic=name, group=name)
    for _ in range(2_000):
        span = spans.begin("apache.rocketmq.v2.MessagingService/AckMessage", request, {})
        assert span is not None
        span.end(request, Code.ILLEGAL_TOPIC)
    with told_to_broker() as broker:
        broker.start()
        asyncio.run(ended.tell())
    assert len(broker.spans) == 2_000
    assert max(map(len, broker.lines)) <= PIPE_BUF
    cut = broker.spans[0].attributes["messaging.destination.name"]
    assert isinstance(cut, str)
    assert cut
    assert name.name.startswith(cut)


def test_a_name_that_is_valid_is_not_cut() -> None:
    found: list[ProxySpan] = []
    spans = Spans(found.append, 1.0)
    request = pb.AckMessageRequest(topic=pb.Resource(name=127 * "t"), group=pb.Resource(name=255 * "g"))
    span = spans.begin("S/AckMessage", request, {})
    assert span is not None
    span.end(request, Code.OK)
    assert found[0].attributes["messaging.destination.name"] == 127 * "t"
    assert found[0].attributes["messaging.consumer.group.name"] == 255 * "g"


def test_a_long_text_in_the_log_makes_no_line_that_ends_the_proxy() -> None:
    with told_to_broker() as broker:
        broker.start()
        tell_log("error", "request_failed", {"detail": 2_000_000 * "\x01", "exception": 2_000_000 * "\x01"})
    assert len(broker.lines) == 1
    assert len(broker.lines[0]) <= LINE_BYTES_MAX


def test_calls_go_on_while_the_broker_does_not_read_and_the_oldest_spans_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_SPANS_MAX", 1_000)
    ended = EndedSpans()

    def add(first: int, count: int) -> None:
        for number in range(first, first + count):
            ended.add(ProxySpan("S/M", f"{number:032x}", 16 * "1", "", 1, 2, {"text": 200 * "x"}))

    async def work(broker: Broker) -> None:
        add(0, 1_000)
        telling = asyncio.ensure_future(ended.tell())
        for _ in range(1_000):
            await asyncio.sleep(0)  # as calls do; the pipe is full soon
        assert not telling.done()
        add(1_000, 2_000)
        broker.start()
        async with asyncio.timeout(60):
            await telling

    with told_to_broker() as broker:
        asyncio.run(work(broker))
    numbers = [int(span.trace_id, 16) for span in broker.spans]
    assert numbers[-1_000:] == [*range(2_000, 3_000)]
    dropped = sum(msgspec.json.decode(line)["dropped"] for line in broker.lines)
    assert 0 < dropped == 3_000 - len(numbers)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return make_tls_files(tmp_path)


def context_of(pin: Path) -> ssl.SSLContext:
    tls = _tls(ProxyTask(server="a:1", host="", port=1, drain_s=0, server_tls=True, server_pin=str(pin)))
    assert tls is not None
    return tls.context()


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Have them make a connection; raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="another-name"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", " \n\n"])
def test_the_end_of_the_file_does_not_matter(files: TlsFiles, tmp_path: Path, end: str) -> None:
    pin = tmp_path / "pin.pem"
    pin.write_text(files.broker.read_text().rstrip() + end)
    shake_hands(context_of(pin), server_context(files.broker))


def test_another_certificate_of_the_same_authority_is_not_trusted(files: TlsFiles, tmp_path: Path) -> None:
    """Also if the file has the authority's certificate after the broker's."""
    pin = tmp_path / "pin.pem"
    pin.write_text(files.broker.read_text() + files.ca.read_text())
    shake_hands(context_of(pin), server_context(files.broker))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context_of(pin), server_context(files.client))


def test_a_file_without_a_certificate_is_reported(tmp_path: Path) -> None:
    pin = tmp_path / "pin.pem"
    pin.write_text("no certificate")
    with pytest.raises(ValueError, match=r"pin\.pem"):
        context_of(pin)
