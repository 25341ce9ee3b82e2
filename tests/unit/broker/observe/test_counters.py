"""Counters and histograms: what each call adds, and which series end or never begin."""

from math import inf

import pytest

from reput_broker.observe.counters import PULL_WAIT_CODE, UNKNOWN_CODE, Counters, Histogram, topic_kind
from reput_protocol.codes import RequestCode


def test_a_bucket_counts_values_up_to_and_including_its_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    histogram.observe(9.0, count=2)
    assert histogram.buckets == [2, 2, 3]
    assert histogram.total == 8.0 + 18.0
    assert histogram.count == 7
    assert list(histogram.cumulated((2.0,))) == [(2.0, 4), (inf, 7)]


def test_a_block_counts_its_messages_with_their_mean_size() -> None:
    counters = Counters()
    counters.topics["orders"].count_in(64, 64 * 1100)
    counters.topics["orders"].count_in(1, 100, "delayed")
    traffic = counters.topics["orders"]
    assert traffic.messages_in == {"normal": 64, "delayed": 1}
    assert traffic.bytes_in == 64 * 1100 + 100
    assert traffic.sizes["delayed"].buckets[:3] == [1, 0, 0]
    assert traffic.sizes["normal"].buckets[:3] == [0, 0, 64]


def test_retry_and_dead_letter_topics_tell_their_kind() -> None:
    assert [topic_kind(name) for name in ("%RETRY%g", "%DLQ%g", "t")] == ["retry", "dlq", "normal"]
    counters = Counters()
    counters.topics["%RETRY%g"].count_in(2, 10)
    assert counters.topics["%RETRY%g"].messages_in == {"retry": 2}


def test_made_up_request_codes_do_not_make_series() -> None:
    counters = Counters()
    for code in range(1_000_000, 1_000_100):
        traffic = counters.requests[0, code]
        traffic.begin()
        traffic.done(3, 0.001)
    counters.requests[0, RequestCode.PULL_MESSAGE].begin()
    counters.requests[0, PULL_WAIT_CODE].begin()
    assert set(counters.requests) == {(0, UNKNOWN_CODE), (0, 11), (0, PULL_WAIT_CODE)}
    assert {code: times.count for code, times in counters.requests[0, UNKNOWN_CODE].answers.items()} == {0: 0, 3: 100}
    assert counters.requests[0, UNKNOWN_CODE].inflight == 0


def test_a_request_ends_once() -> None:
    traffic = Counters().requests[0x4D, RequestCode.PUT_MESSAGE]
    traffic.begin()
    traffic.begin()
    traffic.done(0, 0.0002)
    traffic.abandoned()
    assert traffic.inflight == 0
    assert {code: times.count for code, times in traffic.answers.items()} == {0: 1}


def test_connections_are_counted_by_role() -> None:
    listener = Counters().listeners["main"]
    listener.connection_opened()
    listener.connection_opened()
    listener.role_known("producer")
    assert listener.open_by_role == {"producer": 1, "consumer": 0, "admin": 0, "broker": 0, "unknown": 1}
    listener.connection_closed("idle", "producer")
    assert listener.open == 1
    assert listener.closed["idle"] == 1


def test_a_deleted_topic_takes_its_counters_along() -> None:
    counters = Counters()
    counters.topics["a"].count_in(1, 1)
    counters.groups["a", "g"].count_out(1, 1)
    counters.groups["b", "g"].count_out(1, 1)
    counters.forget_topic("a")
    assert set(counters.topics) == set()
    assert set(counters.groups) == {("b", "g")}


@pytest.mark.parametrize(
    ("header_type", "protocol"), [(0, "json"), (0x4D, "msgpack"), (9, "unknown"), (None, "unknown")]
)
def test_protocol_errors(header_type: int | None, protocol: str) -> None:
    counters = Counters()
    counters.protocol_error(header_type, "too_large")
    assert counters.protocol_errors[protocol, "too_large"] == 1
