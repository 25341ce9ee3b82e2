"""The bodies of RocketMQ's trace topic."""

from __future__ import annotations

from reput_protocol.record.client_trace import ClientTrace, decode_client_traces


def entry(*fields: object) -> str:
    return "\x01".join(map(str, fields)) + "\x02"


PUB = ("Pub", 1700000000123, "DefaultRegion", "makers", "orders", "ID1", "paid", "o-1 ", "10.0.0.1:10911", 12, 3, 0)
BEFORE = ("SubBefore", 1700000001000, "null", "readers", "REQ", "ID1", 2, "o-1")


def test_a_send_and_a_consumption() -> None:
    body = entry(*PUB, "OFFSETID", "true", "10.0.0.9") + entry(*BEFORE)
    body += entry("SubAfter", "REQ", "ID1", 41, "false", "o-1", 2, 1700000001041, "readers")
    assert decode_client_traces(body.encode()) == [
        ClientTrace("Pub", "ID1", "makers", 1700000000123, 3, True, client_host="10.0.0.9"),
        ClientTrace("SubBefore", "ID1", "readers", 1700000001000, request_id="REQ", retry_times=2),
        ClientTrace("SubAfter", "ID1", "readers", 1700000001041, 41, False, "REQ", detail="raised an exception"),
    ]


def test_forms_of_older_clients() -> None:
    old_pub, old_after = entry(*PUB, "false"), entry("SubAfter", "REQ", "ID1", 41, "true", "o-1")
    sent, done = decode_client_traces((old_pub + old_after).encode())
    assert (sent.is_success, sent.client_host) == (False, "")
    assert (done.at_ms, done.group, done.is_success, done.detail) == (None, "", True, "")


def test_a_transaction_and_a_recall() -> None:
    end = ("EndTransaction", 5, "r", "makers", "orders", "ID1", "t", "k", "h", 2, "TX", "COMMIT_MESSAGE", "false")
    body = entry(*end) + entry("Recall", 6, "r", "makers", "orders", "ID1", "true")
    ended, recalled = decode_client_traces(body.encode())
    assert (ended.kind, ended.detail, ended.at_ms) == ("EndTransaction", "commit message", 5)
    assert (recalled.kind, recalled.is_success) == ("Recall", True)


def test_what_is_not_understood_is_left_out() -> None:
    junk = entry("Pub", "soon") + entry("Other", 1) + "\xff" + entry("SubAfter") + entry(*BEFORE)
    assert [trace.kind for trace in decode_client_traces(junk.encode())] == ["SubBefore"]
    assert decode_client_traces(b"") == decode_client_traces(b"\xff\x02\x01") == []
