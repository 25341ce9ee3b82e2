"""What the console's pages show, over HTTP, of a broker with messages, groups, dead letters and delayed messages."""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest
import trio

from reput_broker.background import BackgroundBroker
from reput_broker.config.model import BrokerConfig
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_protocol.codes import MessageSysFlag
from support.console_client import ConsoleClient
from support.console_scene import HOSTILE_BODY, HOSTILE_KEY, HOSTILE_PROPERTIES, ORDERS, fill
from support.dead_letters import send_and_give_up

TOKEN = "a-token-of-a-test-0123456789"
STORE = {"commit_log_file_size": "16MiB", "index_slots": 1000, "index_entries": 4000, "flush": "async"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    config = BrokerConfig(
        data_dir=tmp_path_factory.mktemp("console") / "data",
        port=0,
        http_port=0,
        store={**STORE, "disk_warning_ratio": 1.0, "disk_clean_forcibly_ratio": 1.0},
        console={"token": TOKEN},
    )
    with BackgroundBroker(config) as broker:
        trio.run(fill, broker.address)
        yield broker


@pytest.fixture
def console(broker: BackgroundBroker) -> ConsoleClient:
    assert broker.http_address is not None
    return ConsoleClient(broker.http_address)


@pytest.fixture
def logged_in(console: ConsoleClient) -> ConsoleClient:
    assert console.post("login", {"secret": TOKEN}).status == 200
    return console


def replay(client: ConsoleClient, group: str, offsets: str = "") -> str:
    """Replay dead letters of a group, and return what is said of it."""
    answer = client.post("actions/replay-dead-letters", {"values": {"group": group, "offsets": offsets}})
    assert answer.status == 200, answer
    return str(answer.members["text"])


def test_topics_with_their_messages(console: ConsoleClient) -> None:
    found = console.get("topics")
    rows = {row["topic"]: row for row in found["topics"]}
    assert (rows["orders"]["messages"], rows["orders"]["kind"]) == (ORDERS + 1, "normal")
    assert rows["orders"]["write_queue_nums"] == 8
    assert {row["kind"] for row in rows.values()} == {"normal"}
    searched = console.get("topics", search="PAY")
    assert [row["topic"] for row in searched["topics"]] == ["payments"]
    kinds = {row["topic"]: row["kind"] for row in console.get("topics", system="1")["topics"]}
    assert (kinds["%DLQ%billing"], kinds["SCHEDULE_TOPIC_XXXX"]) == ("dlq", "system")


def test_one_topic_with_its_queues_and_groups(console: ConsoleClient) -> None:
    found = console.get("topic", topic="orders")
    assert sum(row["messages"] for row in found["queues"]) == ORDERS + 1
    assert all(row["last_ms"] for row in found["queues"] if row["messages"])
    assert [row["group"] for row in found["groups"]] == ["billing"]
    assert found["groups"][0]["lag"] == console.get("group", group="billing")["lag"]
    assert console.get("topic", topic="orders", **{"from": "6"})["queues"][0]["queue"] == 6


def test_groups_have_the_lag_that_the_command_line_shows(broker: BackgroundBroker, console: ConsoleClient) -> None:
    (row,) = console.get("groups", search="bill")["groups"]
    found = console.get("group", group="billing")
    with Admin(broker.address) as admin:
        described = admin.describe_group("billing")
    assert row["lag"] == found["lag"] == described.summary.lag == ORDERS // 2 + 1
    shown = {(queue["topic"], queue["queue_id"]): queue["lag"] for queue in found["queues"]}
    assert shown == {(queue.topic, queue.queue_id): queue.lag for queue in described.queues}
    assert {queue["committed_offset"] is None for queue in found["queues"]} <= {True, False}


def test_messages_are_found_by_key_and_shown_whole(console: ConsoleClient) -> None:
    (row,) = console.get("find", topic="orders", key="o-7")["messages"]
    message = console.get("message", id=row["id"])
    assert message["keys"] == ["o-7"]
    assert message["properties"]["region"] == "eu"
    assert base64.b64decode(message["body_base64"]).startswith(b'{"order": 7,')
    assert message["is_whole"] is True
    assert (message["form"], json.loads(message["value"])["customer"]) == ("json", "c-0")
    by_unique_id = console.get("find", topic="orders", key=row["unique_id"])["messages"]
    assert [found["id"] for found in by_unique_id] == [row["id"]]
    assert console.get("find", topic="orders", key="o-7", to_ms="1")["messages"] == []
    body = console.ask("GET", console.path("body", id=row["id"]))
    assert body.body == base64.b64decode(message["body_base64"])
    assert body.headers["content-type"] == "application/octet-stream"
    assert body.headers["content-disposition"].startswith("attachment")


def test_downloads_that_are_read_slowly_delay_no_other(broker: BackgroundBroker, console: ConsoleClient) -> None:
    with Producer(broker.address, group="g") as producer:
        large = producer.send(Message("large", os.urandom(1 << 20), keys=["k"])).offset_message_id
    (order,) = console.get("find", topic="orders", key="o-7")["messages"]
    slow = [HTTPConnection(console.address, timeout=30) for _ in range(8)]
    try:
        for connection in slow:
            connection.request("GET", console.path("export", ids=",".join([large] * 64)))
            assert connection.getresponse().status == 200  # its head is read, and none of its 64 messages
        began_at = time.monotonic()
        assert console.ask("GET", console.path("export", ids=order["id"])).body.count(b"\n") == 1
        assert len(console.ask("GET", console.path("body", id=large)).body) == 1 << 20
        # The broker waits 10 s for a browser that does not read: two at a time, these eight would take 40 s.
        assert time.monotonic() - began_at < 20.0
    finally:
        for connection in slow:
            connection.close()


def test_messages_are_exported_as_json_lines(broker: BackgroundBroker, console: ConsoleClient) -> None:
    packed = msgspec.msgpack.encode({"n": 1})
    with Producer(broker.address, group="g") as producer:
        receipt = producer.send(Message("packed", packed, keys=["k"]))
    (order,) = console.get("find", topic="orders", key="o-7")["messages"]
    gone = receipt.offset_message_id[:-8] + "7FFFFFFF"
    answer = console.ask("GET", console.path("export", ids=f"{order['id']},{receipt.offset_message_id},{gone}"))
    assert answer.headers["content-type"] == "application/x-ndjson"
    first, second, third = map(json.loads, answer.body.splitlines())
    assert (first["keys"], json.loads(first["body"])["order"]) == (["o-7"], 7)
    assert (second["value"], base64.b64decode(second["body_base64"])) == ({"n": 1}, packed)
    assert third["offset_message_id"] == gone
    assert third["error"]


def test_what_became_of_a_message(broker: BackgroundBroker, console: ConsoleClient) -> None:
    (row,) = console.get("find", topic="orders", key="o-1")["messages"]
    (letter,) = (letter for letter in console.get("letters", group="billing")["letters"] if letter["keys"] == ["o-1"])
    found = console.get("message-history", id=row["id"])
    steps = [step["kind"] for step in found["steps"] if step["kind"] != "replay"]
    assert steps[:3] == ["sent", "stored", "dead_letter"]
    (dead,) = (step for step in found["steps"] if step["kind"] == "dead_letter")
    assert (dead["group"], dead["offset_message_id"]) == ("billing", letter["id"])
    assert dead["text"] == "dead letter: max reconsume times: card declined <b>today</b>"
    (track,) = found["tracks"]
    assert track["group"] == "billing"
    of_letter = console.get("message-history", id=letter["id"])
    assert of_letter["origin"] == row["id"]
    assert of_letter["steps"] == found["steps"]


def test_a_filter_and_a_pattern(console: ConsoleClient) -> None:
    def keys(**values: str) -> set[str]:
        found = console.get("browse", start="oldest", count="100", **values)["messages"]
        return {key for row in found for key in row["keys"]}

    assert keys(topic="orders", path="order >= 57") == {"o-57", "o-58", "o-59"}
    assert keys(topic="orders", sql="region = 'eu' AND TAGS = 'paid'", text='"order": 3,') == {"o-3"}
    assert keys(topic="ord*,payments", key="p-3") == {"p-3"}
    assert keys(topic="%DLQ%bill*", path="order = 1") == {"o-1"}
    assert console.get("browse", topic="no-such-*")["messages"] == []


def test_hostile_content_arrives_as_it_is_in_json_and_escaped_in_previews(console: ConsoleClient) -> None:
    (row,) = console.get("find", topic="orders", key=HOSTILE_KEY)["messages"]
    assert "\x1b" not in row["preview"]
    assert "\u202e" not in row["preview"]
    message = console.get("message", id=row["id"])
    assert base64.b64decode(message["body_base64"]) == HOSTILE_BODY
    assert HOSTILE_PROPERTIES.items() <= message["properties"].items()


def test_browsing_in_the_order_of_storing(console: ConsoleClient) -> None:
    seen: list[str] = []
    values = {"topic": "orders", "start": "oldest", "count": "20"}
    while True:
        page = console.get("browse", **values)
        stored = [row["stored_ms"] for row in page["messages"]]
        assert stored == sorted(stored)
        seen += [row["id"] for row in page["messages"]]
        if not page["has_more"]:
            break
        values = {"topic": "orders", "start": "next", "place": page["next"], "count": "20"}
    assert len(seen) == len(set(seen)) == ORDERS + 1
    newest = console.get("browse", topic="orders", count="10")["messages"]
    assert {row["id"] for row in newest} <= set(seen)
    last = console.get("browse", topic="orders", queue="0", start="offset", offset="2")["messages"]
    assert [row["offset"] for row in last][:1] == [2]
    at = newest[-1]["stored_ms"]
    from_there = console.get("browse", topic="orders", start="time", at_ms=at, count="100")["messages"]
    assert from_there
    assert all(row["stored_ms"] >= at for row in from_there)


def test_many_queues_are_browsed_together(broker: BackgroundBroker, console: ConsoleClient) -> None:
    with Admin(broker.address) as admin, Producer(broker.address, group="g") as producer:
        admin.create_topic("broad", queues=64)
        admin.create_topic("too-broad", queues=257)
        sent = {producer.send(Message("broad", b"x"), queue_id=n % 64).offset_message_id for n in range(128)}
    first = console.get("browse", topic="broad", start="oldest", count="64")
    rest = console.get("browse", topic="broad", start="next", place=first["next"], count="64")
    assert {row["id"] for page in (first, rest) for row in page["messages"]} == sent
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert "choose a queue" in console.refused("browse", topic="too-broad").members["error"]


def test_large_and_compressed_bodies_are_bounded(broker: BackgroundBroker, console: ConsoleClient) -> None:
    text = b"0123456789abcdef" * 32768
    with Producer(broker.address, group="g") as producer:
        large = producer.send(Message("large", text))
    message = console.get("message", id=large.offset_message_id)
    assert len(base64.b64decode(message["body_base64"])) == 64 * 1024
    assert message["is_whole"] is False
    assert console.ask("GET", console.path("body", id=large.offset_message_id)).body == text


def test_dead_letters_say_why_and_where_from(console: ConsoleClient) -> None:
    (row,) = console.get("dead-letters")["groups"]
    assert (row["group"], row["messages"]) == ("billing", 4)
    letters = console.get("letters", group="billing")["letters"]
    assert [letter["origin_topic"] for letter in letters] == ["orders", "orders", "orders", None]
    assert [letter["reason"] for letter in letters] == ["max_reconsume_times"] * 3 + ["unknown"]
    assert [letter["cause"] for letter in letters] == ["card declined <b>today</b>"] * 3 + [None]
    assert console.get("letters", group="nothing")["letters"] == []
    of_group = console.get("group", group="billing")["dead_letters"]
    assert (of_group["messages"], of_group["left"]) == (4, row["left"])


def test_replayed_dead_letters_arrive_in_their_topic(broker: BackgroundBroker, logged_in: ConsoleClient) -> None:
    before = logged_in.get("letters", group="billing")
    offsets = [letter["offset"] for letter in before["letters"]]
    assert replay(logged_in, "billing", f"{offsets[0]}") == "1 dead letter was sent: 1 to orders"
    shown = logged_in.get("letters", group="billing")
    assert shown["left"] == before["left"] - 1
    assert [letter["replayed"] is None for letter in shown["letters"]] == [False, True, True, True]
    assert shown["letters"][0]["replayed"]["topic"] == "orders"
    again = {"values": {"group": "billing", "offsets": f"{offsets[0]}"}}
    answer = logged_in.post("actions/replay-dead-letters", again).members
    assert answer == {"done": False, "text": "no dead letter of billing is sent"}
    done = replay(logged_in, "billing")
    assert done.startswith("2 dead letters were sent: 2 to orders; 1 was replayed before; offset ")
    assert f"offset {offsets[3]} stays" in done
    assert "--to TOPIC" in done
    # Another question than before: an answer is shared for a moment.
    (row,) = logged_in.get("dead-letters", search="bill")["groups"]
    assert (row["replayed"], row["left"]) == (3, 1)
    copies = logged_in.get("find", topic="orders", key="o-0")["messages"]
    properties = [logged_in.get("message", id=copy["id"])["properties"] for copy in copies]
    origins = [found.get("DLQ_ORIGIN_MESSAGE_ID") for found in properties]
    assert origins.count(before["letters"][0]["origin_id"]) == 1
    assert not any("DLQ_REASON" in found or "RETRY_TOPIC" in found for found in properties)


def test_replay_leaves_those_whose_topic_is_gone(broker: BackgroundBroker, logged_in: ConsoleClient) -> None:
    send_and_give_up(broker.address, "audit", "gone", [b"x"])
    with Admin(broker.address) as admin:
        admin.delete_topic("gone")
    values = {"values": {"group": "audit"}, "dry_run": True}
    preview = logged_in.post("actions/replay-dead-letters", values).members["preview"]
    assert (preview["text"], preview["is_change"]) == ("no dead letter of audit is sent", False)
    assert preview["notes"] == [
        "offset 0 stays: topic gone does not exist any more; reput topic create gone, "
        "or send them elsewhere with --to TOPIC"
    ]


def test_two_replays_at_once_send_each_dead_letter_once(broker: BackgroundBroker, logged_in: ConsoleClient) -> None:
    send_and_give_up(broker.address, "twice", "twice", [b"%d" % number for number in range(30)])
    with ThreadPoolExecutor() as threads:
        assert any(threads.map(lambda _: replay(logged_in, "twice"), range(2)))
    with Admin(broker.address) as admin:
        assert sum(each.max_offset for each in admin.topic_stats("twice").offset_table.values()) == 60


def test_delayed_messages_are_listed_and_cancelled(broker: BackgroundBroker, logged_in: ConsoleClient) -> None:
    with Producer(broker.address, group="g") as producer:
        producer.send(Message("reminders", b"later", keys=["r-1"], delay_s=3600.0))
    (row,) = logged_in.get("delayed", topic="reminders")["messages"]
    assert row["deliver_timestamp"] - row["store_timestamp"] == pytest.approx(3_600_000, abs=5000)
    cancel = {"values": {"topic": "reminders", "key": row["unique_id"]}, "typed": "reminders"}
    assert logged_in.post("actions/cancel-delayed", cancel).members == {"done": True, "text": "1 cancelled"}
    assert logged_in.post("actions/cancel-delayed", cancel).members["done"] is False
    page = logged_in.get("delayed", count="1")
    rest = logged_in.get("delayed", cursor=page["cursor"])["messages"]
    assert page["messages"][0]["offset_message_id"] not in [found["offset_message_id"] for found in rest]


def test_clients_store_and_cluster(broker: BackgroundBroker, console: ConsoleClient) -> None:
    with PullConsumer(broker.address, group="reader") as consumer:
        consumer.pull("orders", 0, 0, wait_s=0.0)
        found = console.get("clients", search="CONSUMER")
        assert [row["role"] for row in found["clients"]] == ["consumer"] * found["total"]
        assert found["roles"]["consumer"] == found["total"] >= 1
        assert console.get("clients", search="no such client")["clients"] == []
    store = console.get("store")
    assert store["status"]["store"]["end_offset"] > 0
    options = {row["key"]: row for row in store["options"]}
    assert options["console.token"]["text"] == '"***"'
    assert TOKEN not in str(store)
    cluster = console.get("cluster")
    (row,) = console.get("brokers", begin=-10)["brokers"]
    assert (row["cluster"], row["broker"], row["broker_id"]) == ("DefaultCluster", "broker-a", 0)
    assert (row["address"], row["is_own"], row["away_ms"]) == (broker.address, True, None)
    assert console.get("cluster", member=broker.address)["status"]["address"] == broker.address
    assert (cluster["status"]["role"], cluster["status"]["copies_in_sync"]) == ("ASYNC_MASTER", 1)


def test_the_history_of_a_range(console: ConsoleClient) -> None:
    found = console.get("history", begin=-60)
    assert (found["step_s"], found["rows"]) == (1, 60)
    assert max(value or 0 for value in found["columns"]["messages_in_per_s"]) > 0
    assert [event["what"] for event in found["events"]][:2] == ["started", "became_master"]
    assert (found["facts"]["state"], found["groups"]) == ("running", [])
    with_names = console.get("history", begin=-60, names="1")
    assert (with_names["step_s"], with_names["rows"]) in ((10, 6), (10, 7))
    longest = console.get("history", begin=-14 * 86400, rows="100")
    assert longest["step_s"] * longest["rows"] >= 14 * 86400
    assert longest["rows"] <= 101
    past = console.get("history", begin="1000000000", end="1000000300")
    assert past["columns"] == {}


@pytest.mark.parametrize(
    ("name", "values", "status", "error"),
    [
        ("topic", {"topic": "nothing"}, 404, "topic 'nothing' does not exist; create it first"),
        ("topic", {}, 400, "topic is missing"),
        ("group", {"group": "nothing"}, 404, "group 'nothing'"),
        ("message", {"id": "42"}, 400, "'42' is not an offset message id"),
        ("message", {"id": "7F00000100002A9F00000000FFFFFFFF"}, 404, "no message at physical offset"),
        ("find", {"topic": "orders"}, 400, "key is missing"),
        ("find", {"topic": "orders", "key": "k" * 1025}, 400, "key has 1025 characters"),
        ("browse", {"topic": "orders", "queue": "99"}, 400, "queue is 99, and must be within -1 and 7"),
        ("browse", {"topic": "orders", "count": "1e3"}, 400, "count is '1e3', and a whole number is needed"),
        ("browse", {"topic": "orders", "start": "sideways"}, 400, "start is 'sideways'"),
        ("browse", {"topic": "orders", "start": "next", "place": "orders*0.x"}, 400, "place is not what a response"),
        ("browse", {"topic": "orders", "start": "next", "place": "orders*0.-1"}, 400, "place is not what"),
        ("browse", {"topic": "orders", "sql": "a >"}, 400, "the expression ends too early"),
        ("browse", {"topic": "orders", "tag": "||"}, 400, "names no tag"),
        ("browse", {"topic": "orders", "path": "a[0] is b"}, 400, "'is b' at character 4 is not understood"),
        ("browse", {"topic": "orders", "path": "= 3"}, 400, "is not a path"),
        ("message-history", {"id": "42"}, 400, "'42' is not an offset message id"),
        ("export", {}, 400, "ids are 1 to 64 offset message ids"),
        ("letters", {"group": "<script>"}, 400, "illegal character"),
        ("delayed", {"cursor": "nonsense"}, 400, "cursor"),
        ("history", {"begin": "yesterday"}, 400, "begin is 'yesterday', and a whole number is needed"),
        ("history", {"rows": "2017"}, 400, "rows is 2017"),
        ("topics", {"member": "127.0.0.1:9"}, 404, "no broker of this cluster has the address"),
        ("nowhere", {}, 404, "there is no page"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused_with_the_reason(
    console: ConsoleClient, name: str, values: dict[str, str], status: int, error: str
) -> None:
    answer = console.refused(name, **values)
    assert answer.status == status
    assert error in answer.members["error"]


def test_a_damaged_message_is_listed_as_damaged_and_not_shown(
    tmp_path: Path, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    broker = new_reput_broker(data_dir=tmp_path / "data", http_port=0)
    with Producer(broker.address, group="g") as producer:
        receipt = producer.send(Message("orders", b"precious", keys=["k"]))
    (log_file,) = (tmp_path / "data" / "commitlog").iterdir()
    with log_file.open("r+b") as file:
        place = file.read(4096).index(b"precious")
        file.seek(place)
        file.write(b"Precious")
    assert broker.http_address is not None
    console = ConsoleClient(broker.http_address)
    (row,) = console.get("browse", topic="orders", start="oldest")["messages"]
    assert "CRC" in row["fault"]
    assert console.refused("message", id=receipt.offset_message_id).status == 404


def test_a_body_marked_as_compressed_is_decompressed_or_said_not_to_be() -> None:
    from reput_broker.console.messages import _shown_body
    from reput_client.received import ReceivedMessage
    from reput_protocol.record.record import Record, encode_record

    def shown(body: bytes, sys_flag: int) -> tuple[bytes, bool, str | None]:
        return _shown_body(ReceivedMessage.of_record(bytes(encode_record(Record("t", body, sys_flag=sys_flag)))))

    flag = int(MessageSysFlag.COMPRESSED)
    assert shown(zlib.compress(b"text"), flag) == (b"text", True, None)
    bomb = shown(zlib.compress(b"\0" * (4 << 20)), flag)
    assert (len(bomb[0]), bomb[1], bomb[2]) == (64 * 1024, False, None)
    body, _, trouble = shown(b"not zlib", flag)
    assert body == b"not zlib"
    assert "cannot be decompressed" in str(trouble)
    assert "LZ4" in str(shown(b"x", flag | MessageSysFlag.COMPRESSION_LZ4)[2])


def test_a_directory_whose_name_is_not_utf_8_is_shown(
    tmp_path: Path, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    broker = new_reput_broker(data_dir=tmp_path / os.fsdecode(b"data\xff"), http_port=0)
    assert broker.http_address is not None
    console = ConsoleClient(broker.http_address)
    store = console.get("store")
    assert store["status"]["data_dir"].endswith("data\N{REPLACEMENT CHARACTER}")
    assert {row["key"]: row for row in store["options"]}["data_dir"]["text"].endswith('data\N{REPLACEMENT CHARACTER}"')
    assert console.ask("GET", "/status").status == 200


def test_schedules_and_those_that_do_not_send(console: ConsoleClient) -> None:
    found = console.get("schedules")
    (row,) = found["schedules"]
    assert (row["definition"]["name"], row["state"], row["reason"]) == ("nightly", "active", "")
    assert "body" not in row["definition"]
    assert found["faults"] == []
