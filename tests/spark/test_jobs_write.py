"""`reput pipeline compact`, `replay` and `dlq`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin
from reput_pipeline.archives.read import read_archive
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record
from support.dead_letters import send_and_give_up
from support.pipeline_jobs import Run, runner
from support.store_samples import MESSAGES, copied, fill, hashes
from support.stores import FakeClock, dispatch_all, opened, small_options


@pytest.fixture
def run(spark: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


@pytest.fixture(scope="module")
def archive(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from reput_pipeline.jobs.run import run_job

    path = tmp_path_factory.mktemp("archive")
    fill(path / "store")
    arguments = ["--path", str(path / "store"), "--to", str(path / "a"), "--batch-messages", "35"]
    assert run_job("archive", arguments, stop_session=False) == 0
    return path / "a"


def bodies(spark: Any, path: Path) -> list[str]:
    return sorted(bytes(row.body).decode() for row in read_archive(spark, path).select("body").collect())


def test_the_latest_of_each_key_and_one_of_each_id(spark: Any, run: Run, archive: Path, tmp_path: Path) -> None:
    before = hashes(archive)
    ran = run("compact", "--archive", archive, "--to", tmp_path / "k")
    assert (ran.code, ran.result["rows"], ran.result["rows_before"]) == (0, 20, MESSAGES), ran.err
    assert bodies(spark, tmp_path / "k") == [f"body-{number:04d}" for number in range(40, 60)]
    ran = run("compact", "--archive", archive, "--to", tmp_path / "i", "--by", "id")
    assert ran.result["rows"] == MESSAGES
    found = run("find", "--archive", tmp_path / "k", "--key", "k3")
    assert [json.loads(line)["body"] for line in found.lines] == ["body-0043"]
    assert run("compact", "--archive", archive, "--to", tmp_path / "k").result["argument"] == "--to"
    assert hashes(archive) == before


def test_a_deleted_key_is_left_out_after_a_time(spark: Any) -> None:
    from reput_pipeline.jobs.compact import chosen

    day = datetime(2026, 1, 1, tzinfo=UTC)
    rows: list[tuple[Any, ...]] = [
        ("T", "b", queue_offset, 0, key, {}, body, day + timedelta(hours=queue_offset))
        for queue_offset, (key, body) in enumerate(
            [("old", b"1"), ("new", b"1"), ("kept", b""), ("old", b""), ("kept", b"2"), ("new", b""), (None, b"")]
        )
    ]
    columns = "topic string, brokerName string, queueOffset bigint, queueId int, keys string, "
    columns += "properties map<string,string>, body binary, storeTimestamp timestamp"
    frame = spark.createDataFrame(rows, columns)

    def left(empty_until: datetime | None) -> list[tuple[str | None, bytes]]:
        found = chosen(frame, "key", empty_until=empty_until, drop_keyless=False).collect()
        return sorted((row["keys"] or "none", bytes(row.body)) for row in found)

    kept = [("kept", b"2"), ("none", b"")]
    assert left(None) == sorted([*kept, ("new", b""), ("old", b"")])
    assert left(day + timedelta(hours=3)) == sorted([*kept, ("new", b"")]), "stored at that time, and later"
    assert left(day + timedelta(hours=9)) == kept


STORE = {"commit_log_file_size": 1 << 20, "consume_queue_entries": 1000, "index_slots": 100, "index_entries": 1000}


def dead_letters(root: Path) -> None:
    """Five dead letters of a group, from two topics."""
    clock = FakeClock()
    store = opened(small_options(root, **STORE), clock)
    for number in range(5):
        clock.now_ms += 1000
        properties = {
            "UNIQ_KEY": f"{number:032X}",
            "TAGS": "t",
            "KEYS": f"k{number}",
            "RETRY_TOPIC": "orders" if number < 3 else "bills",
            "DLQ_REASON": "attempts used up" if number % 2 else "asked for",
            "colour": "red",
        }
        body = b"dead-%d" % number
        store.put_record(Record("%DLQ%shop", body, properties=encode_properties(properties)))
    dispatch_all(store)
    assert store.close()


def test_dead_letters_are_grouped_and_chosen_ones_sent_back(
    run: Run, tmp_path: Path, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    """Those of a copy of the broker's directory: it has them too, and says which it has replayed."""
    dead_letters(tmp_path / "s")
    copied(tmp_path / "s", tmp_path / "broker")
    ran = run("dlq", "--path", tmp_path / "s", "--group", "shop")
    assert ran.code == 0, ran.err
    kinds = [(row["group"], row["origin"], row["reason"], row["messages"]) for row in ran.result["groups"]]
    assert sorted(kinds) == [
        ("shop", "bills", "asked for", 1),
        ("shop", "bills", "attempts used up", 1),
        ("shop", "orders", "asked for", 2),
        ("shop", "orders", "attempts used up", 1),
    ]
    broker = new_reput_broker(data_dir=tmp_path / "broker", store=STORE)
    arguments = ["dlq", "--path", tmp_path / "s", "--origin", "orders", "--reason", "asked", "--replay"]
    assert run(*arguments).result["argument"] == "--to-server"
    assert run(*arguments, "--dry-run").result["would_send"] == 2
    arguments += ["--to-server", broker.address, "--rate", 1000]
    assert run(*arguments).result["argument"] == "--yes"
    with Admin(broker.address) as admin:
        admin.create_topic("orders")
        admin.create_topic("%DLQ%shop", queues=1)
    ran = run(*arguments, "--yes")
    assert (ran.code, ran.result["sent"], ran.result["sent_before"]) == (0, 2, 0), ran.err
    again = run(*arguments, "--yes")
    assert (again.code, again.result["sent"], again.result["sent_before"]) == (0, 0, 2), again.err
    found = run("find", "--server", broker.address, "--topic", "orders", "--text", "dead-")
    rows = [json.loads(line) for line in found.lines]
    assert sorted((row["body"], row["keys"], row["tags"]) for row in rows) == [
        ("dead-0", "k0", "t"),
        ("dead-2", "k2", "t"),
    ]
    properties = {name for row in rows for name in row["properties"]}
    assert {"UNIQ_KEY", "KEYS", "TAGS", "colour", "DLQ_ORIGIN_MESSAGE_ID"} <= properties
    assert not {"RETRY_TOPIC", "DLQ_REASON"} & properties


def test_the_job_and_the_command_line_send_each_letter_once(
    run: Run, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    send_and_give_up(broker.address, "shop", "orders", [b"dead-0", b"dead-1", b"dead-2"])
    job = ("dlq", "--server", broker.address, "--group", "shop", "--replay", "--yes")
    with Admin(broker.address) as admin:
        letters = admin.dead_letters("shop")
        sent = admin.replay_dead_letters("shop", [1])
        ids = [message.message_id for message in admin.fetch_messages(letters.topic, 0, 0, 3).messages]
        ran = run(*job, "--id", ids[0], "--id", ids[1])
        assert (ran.code, ran.result["sent"], ran.result["sent_before"]) == (0, 1, 1), ran.err
        sent += admin.replay_dead_letters("shop", [0, 1, 2])
        assert [letter.outcome for letter in sent] == ["SENT", "SENT_BEFORE", "SENT_BEFORE", "SENT"]
        ran = run(*job)
        assert (ran.code, ran.result["sent"], ran.result["sent_before"]) == (0, 0, 3), ran.err
        assert admin.max_offset("orders", 0) == 6
