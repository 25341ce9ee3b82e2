"""`python tests/scan/run.py`: what can a client without a user do to a broker that runs as the image starts it?

The broker is in a network namespace of its own, and the scan comes from the many addresses of another one. It looks for
all open TCP ports and tries on each: every request code in every type of header, unsigned and with wrong signatures;
TLS; every page and method of HTTP; connections that are not finished; PROXY headers. Then the same over TLS, with a
broker whose ports take it. Prints a table; fails if anything answers but the health page, the files of the console
with its login, and refusals, which must not tell which topics exist, or if the administrator finds that anything has
changed.

Needs root, and Linux with network namespaces.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from cluster_faults.network import Network, Unavailable, address_of, enter, inside
from reput_broker.ha.admission import old_proof_frame
from reput_client import Credentials
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.base import read_json
from reput_protocol.wire.header import HeaderType
from scan.findings import HEAD, UNAVAILABLE, Finding, row
from scan.half_open import BEGINNINGS, ENDS_S, scan_half_open, scan_proxy_headers
from scan.image import ImageBroker
from scan.pages import scan_pages
from scan.requests import (
    ALL_CODES,
    KNOWN_CODES,
    Connect,
    Names,
    first_line,
    plain,
    scan_other_port,
    scan_requests,
    speaks_frames,
    with_tls,
)
from support.raw_client import RawClient, in_letters
from support.tls_files import make_tls_files

_MACHINE: Final = "b0"
_TOPIC: Final = "orders"
_GROUP: Final = "billing"
_NAMES: Final = Names((_TOPIC, _GROUP), ("no-such-topic", "no-such-group"))
_PORT: Final = 10911
_MESSAGE_PORTS: Final = (9876, 10909, _PORT)
_LOG: Final = 10912
_HTTP: Final = 10913
_PORTS: Final = 65_535
# Only so that the scan need not wait: the defaults are 10 s and 30 s.
_SHORT: Final = {"REPUT_TLS__HANDSHAKE_TIMEOUT": f"{ENDS_S:g}s", "REPUT_LIMITS__SLOW_SENDER_TIMEOUT": f"{ENDS_S:g}s"}
_STATE: Final = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_LIST_ACL,
)


def main() -> int:
    """Parse the arguments, enter the namespaces, scan, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the ports and request codes that are known")
    arguments = parser.parse_args()
    try:
        enter()
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return UNAVAILABLE
    network = Network([_MACHINE])
    with tempfile.TemporaryDirectory(prefix="reput-scan-") as directory:
        findings = []
        print(HEAD)
        # One address would wait longer for each answer, since its requests have no valid signature.
        sources = cycle(network.more_clients())
        for finding in _scan(Path(directory), sources, quick=arguments.quick):
            findings.append(finding)
            print(row(finding), flush=True)
    network.close()
    wrong = [(finding, text) for finding in findings for text in finding.wrong]
    for finding, text in wrong[:50]:
        print(f"WRONG: {finding.port}: {finding.tried}: {text[:2000]}")
    count = sum(finding.answers.total() for finding in findings)
    print(f"{count:,} attempts, {len(wrong)} wrong answers")
    return 1 if wrong else 0


def _scan(directory: Path, sources: Iterator[str], *, quick: bool) -> Iterator[Finding]:
    yield from _scan_image(directory, sources, quick=quick)
    if not quick:
        yield from _scan_with_tls(directory, sources)


def _scan_image(directory: Path, sources: Iterator[str], *, quick: bool) -> Iterator[Finding]:
    with ImageBroker(directory / "image", inside(_MACHINE), _SHORT) as broker:
        broker.wait_ready()
        control = _Control(broker.administrator)
        ports = (*range(9870, 9890), *range(10900, 10920)) if quick else range(1, _PORTS + 1)
        opened = _open_ports(ports)
        finding = Finding("all", f"connections to {len(ports):,} TCP ports")
        finding.note("accepted: " + ", ".join(map(str, opened)), count=len(opened))
        finding.note("refused", count=len(ports) - len(opened))
        yield finding
        codes = KNOWN_CODES if quick else ALL_CODES
        for port in opened:
            yield from _scan_port(port, codes, sources, quick=quick)
        yield control.finding()
        yield _defects(broker)


def _scan_with_tls(directory: Path, sources: Iterator[str]) -> Iterator[Finding]:
    files = make_tls_files(directory)
    settings = {f"REPUT_TLS__{name.upper()}": str(value) for name, value in files.server_options().items()}
    settings["REPUT_TLS__MODE"] = "permissive"
    with ImageBroker(directory / "with-tls", inside(_MACHINE), {**_SHORT, **settings}) as broker:
        broker.wait_ready()
        control = _Control(broker.administrator)
        for port in _MESSAGE_PORTS:
            yield _handshake(port, is_offered=True)
            yield from scan_requests(port, with_tls(_at(port), sources), _NAMES, KNOWN_CODES, " over TLS")
        for port in (*_MESSAGE_PORTS, _LOG):
            yield from scan_half_open(port, plain(_at(port), sources), BEGINNINGS)
        yield _slave(with_tls(_at(_LOG), sources), " over TLS")
        yield _handshake(_HTTP, is_offered=True)
        yield from scan_pages(_HTTP, with_tls(_at(_HTTP), sources), address_of(_MACHINE), " over TLS", quick=True)
        yield control.finding()
        yield _defects(broker)


def _scan_port(port: int, codes: Sequence[int], sources: Iterator[str], *, quick: bool) -> Iterator[Finding]:
    connect = plain(_at(port), sources)
    yield _handshake(port, is_offered=False)
    if speaks_frames(connect):
        yield from scan_requests(port, connect, _NAMES, codes)
    else:
        yield scan_other_port(port, connect, _NAMES, KNOWN_CODES)
    if port == _HTTP:
        yield from scan_pages(port, connect, address_of(_MACHINE), quick=quick)
    else:
        yield _http_to(port, connect)
    if port == _LOG:
        yield _slave(connect)
    yield scan_proxy_headers(port, connect)
    if not quick and port != _HTTP:
        yield from scan_half_open(port, connect, BEGINNINGS)


def _at(port: int) -> tuple[str, int]:
    return address_of(_MACHINE), port


def _open_ports(ports: Sequence[int]) -> list[int]:
    found = []
    for port in ports:
        with suppress(OSError):
            socket.create_connection(_at(port), timeout=2.0).close()
            found.append(port)
    return found


def _handshake(port: int, *, is_offered: bool) -> Finding:
    finding = Finding(port, "a TLS handshake")
    try:
        with with_tls(_at(port))() as end:
            version = getattr(end, "version", lambda: None)()
            finding.expect(is_offered, f"{version}; requests over it below" if is_offered else str(version))
    except OSError as error:
        finding.expect(not is_offered, "refused" if not is_offered else repr(error))
    return finding


def _slave(connect: Connect, how: str = "") -> Finding:
    """Begin as RocketMQ's slaves do, and as Reput's do with a number that the master has not given."""
    finding = Finding(_LOG, f"the beginning of a slave{how}, RocketMQ's and Reput's")
    for data in (bytes(8), (1 << 20).to_bytes(8, "big"), old_proof_frame("00" * 16, "some-secret-or-other")):
        answer = first_line(connect, data, ends=False)
        finding.expect(answer in ("closed", "reset"), answer)
    return finding


def _http_to(port: int, connect: Connect) -> Finding:
    """Send HTTP to a port that is not HTTP's."""
    finding, got = Finding(port, "HTTP: GET /metrics"), b""
    with suppress(OSError), connect() as end:
        end.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        while part := end.recv(1 << 16):
            got += part
    finding.expect(not got or b"TOO_LARGE" in got or b"MALFORMED" in got, "refused and closed")
    return finding


class _Control:
    """The administrator, who makes a topic and a group with a message, and looks later what has changed."""

    def __init__(self, administrator: Credentials) -> None:
        self._address = f"{address_of(_MACHINE)}:{_PORT}"
        self._administrator = administrator
        topic = {"topic": _TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        place = {"topic": _TOPIC, "consumerGroup": _GROUP, "queueId": "0", "commitOffset": "1"}
        with self._client() as client:
            for code, ext, body in (
                (RequestCode.UPDATE_AND_CREATE_TOPIC, topic, b""),
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"%s"}' % _GROUP.encode()),
                (RequestCode.SEND_MESSAGE_V2, in_letters(_TOPIC), b"the only message"),
                (RequestCode.UPDATE_CONSUMER_OFFSET, place, b""),
            ):
                answer, _ = client.request(code, ext, body)
                assert answer.code == ResponseCode.SUCCESS, answer
        self._before = self._state()

    def finding(self) -> Finding:
        """Compare what the broker has with what it had."""
        after = self._state()
        finding = Finding(_PORT, "the administrator: topics, groups, offsets, options, users, messages")
        for name, state in after.items():
            before = self._before[name]
            finding.expect(state == before, "as before" if state == before else f"{name}: {before!r}, now {state!r}")
        return finding

    def _state(self) -> Mapping[str, object]:
        with self._client() as client:
            found: dict[str, object] = {}
            for code in _STATE:
                answer, body = client.request(code)
                assert answer.code == ResponseCode.SUCCESS, answer
                found[code.name] = _lasting(body)
            for queue in ("0", "1"):
                answer, _ = client.request(
                    RequestCode.GET_MAX_OFFSET, {"topic": _TOPIC, "queueId": queue, "committed": "true"}
                )
                found[f"messages in queue {queue}"] = (answer.code, answer.ext.get("offset"))
        return found

    def _client(self) -> RawClient:
        return RawClient(self._address, HeaderType.JSON, credentials=self._administrator)


def _lasting(body: bytes) -> object:
    """Return what of a table only clients change: without its version, and without the offsets of the broker's own."""
    if not body.startswith(b"{"):
        return body
    members = {**read_json(body), "dataVersion": None}
    offsets = members.get("offsetTable", {})
    members["offsetTable"] = {key: of for key, of in offsets.items() if not key.startswith("RMQ_SYS_")}
    return members


def _defects(broker: ImageBroker) -> Finding:
    finding = Finding(_PORT, "the broker's log: defects")
    for line in broker.defects() or ["none"]:
        finding.expect(line == "none", line)
    return finding


if __name__ == "__main__":
    sys.exit(main())
