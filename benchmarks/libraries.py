"""Libraries against each other where the choice costs something: headers in msgpack, the text of the metrics page.

Each figure is the least of many short runs in this process, by its processor time, so that other processes do not
count. `docs/decisions` has what follows from them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_broker.observe.exposition import ANY, TEXT, MetricSpec, write_family
from reput_broker.observe.health import Health
from reput_broker.observe.metrics import MetricsSources, Scrape
from reput_cli.bench_clients import host_facts
from reput_protocol.codes import RequestCode
from reput_protocol.wire.frames import decode_msgpack_header, encode_msgpack_header
from reput_protocol.wire.header import Header
from tables import aligned, figure

_RUNS = 300
_REPEATED = 200
_SERIES = 500

_PUT = Header(RequestCode.PUT_MESSAGE, 4711, 0, None, {"topic": "orders", "queueId": 3, "count": 16, "ack": "flushed"})
_ANSWER = Header(
    0,
    4711,
    1,
    None,
    {
        "queueOffset": 123_456,
        "physicalOffset": 1_234_567_890,
        "storeTimestamp": 1_700_000_000_000,
        "storeHost": bytes(8),
        "ack": "flushed",
    },
)


class _Elements(Struct, array_like=True):
    code: int
    language: int
    version: int
    opaque: int
    flag: int
    remark: str | None
    ext: dict[str, Any]


_decoded = Decoder(_Elements).decode
_encoded = Encoder().encode


def _msgspec_encode(header: Header) -> bytes:
    h = header
    return _encoded((h.code, h.language, h.version, h.opaque, h.flag, h.remark, h.ext))


def _msgspec_decode(data: bytes) -> Header:
    found = _decoded(data)
    return Header(found.code, found.opaque, found.flag, found.remark, found.ext, found.language, found.version)


def _least_us(call: Callable[[], object], repeated: int = _REPEATED) -> float:
    least = float("inf")
    for _ in range(_RUNS):
        began_ns = time.process_time_ns()
        for _ in range(repeated):
            call()
        least = min(least, (time.process_time_ns() - began_ns) / 1000 / repeated)
    return least


def headers() -> list[list[str]]:
    """Return a table: microseconds to encode and decode a request and its answer."""
    rows = [["Header", "bytes", "msgpack, µs", "msgspec, µs"]]
    for name, header in (("PutMessage", _PUT), ("its answer", _ANSWER)):
        data = encode_msgpack_header(header)
        assert data == _msgspec_encode(header)
        for verb, ours, other in (
            ("encoded", lambda h=header: encode_msgpack_header(h), lambda h=header: _msgspec_encode(h)),
            ("decoded", lambda d=data: decode_msgpack_header(d), lambda d=data: _msgspec_decode(d)),
        ):
            rows.append([f"{name}, {verb}", f"{len(data)}", figure(_least_us(ours)), figure(_least_us(other))])
    return rows


class _Depths(Collector):
    """A gauge of queues, as prometheus_client's collectors give it."""

    def __init__(self, spec: MetricSpec, values: Iterable[tuple[tuple[str, ...], int]]) -> None:
        self._spec, self._values = spec, [*values]

    def collect(self) -> Iterator[Metric]:
        """Return the family."""
        metric = Metric(self._spec.name, self._spec.help, "gauge")
        for labels, value in self._values:
            metric.add_sample(self._spec.name, dict(zip(self._spec.labels, labels, strict=True)), value)
        yield metric


def exposition() -> list[list[str]]:
    """Return a table: microseconds a series of the metrics page."""
    spec = MetricSpec(
        "", "reput_depth", "gauge", {"topic": ANY, "queue": ANY}, "Messages of a queue.", lambda _: values
    )
    values = [((f"topic-{number // 8}", f"{number % 8}"), number) for number in range(_SERIES)]
    scrape = Scrape(MetricsSources(BrokerConfig(), Counters(), Health()))
    registry = CollectorRegistry()
    registry.register(_Depths(spec, values))
    own = b"".join(write_family(spec, scrape, TEXT))
    assert len(own.splitlines()) == len(generate_latest(registry).splitlines())
    return [
        ["Text of the metrics page", "a series, µs"],
        ["observe/exposition.py", figure(_least_us(lambda: b"".join(write_family(spec, scrape, TEXT)), 1) / _SERIES)],
        ["prometheus_client", figure(_least_us(lambda: generate_latest(registry), 1) / _SERIES)],
    ]


def main() -> None:
    """Print the tables."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    facts = host_facts()
    print(f"Python {facts['python']}, {facts['cores']} cores\n")
    for table in (headers(), exposition()):
        print("\n".join(aligned(table)), "\n")


if __name__ == "__main__":
    main()
