"""One directory, served by a whole broker of each kind alternately, each read by its own client.

Both listen on the same port, so that the offset message ids that one wrote lead to the other.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import workload
from conformance.apache import Apache, free_broker_port
from conformance.checks import FOUND_AT_ONCE, LATEST
from conformance.counts import COUNTS
from conformance.reput_broker_side import (
    GROUP,
    Described,
    QueueKey,
    broker_process,
    commit,
    committed,
    offsets_by_time,
    read_queues,
    send_lists,
    viewed,
)
from conformance.reput_side import REPUT_WRITES_INDEX
from conformance.test_store_handover import Lists, apache_puts
from reput_client.blocking import Message, Producer
from reput_client.receipts import SendReceipt
from reput_protocol.commands.base import read_json
from reput_protocol.errors import ReputError
from reput_protocol.record.message_id import Host, offset_message_id
from support.broker_process import BrokerProcess

pytestmark = pytest.mark.process

FIRST, SECOND, THIRD = 500, 150, 80
LONG_TOPIC = workload.LONG_TOPICS[1]
LOAD_TOPIC = "load"
ACKNOWLEDGED_MIN = 200
QUEUES: list[QueueKey] = [
    *((topic, queue_id) for topic in ("orders", "payments") for queue_id in range(workload.TOPICS[topic])),
    (LONG_TOPIC, 0),
]
View = dict[QueueKey, list[Described]]
Times = dict[QueueKey, tuple[list[int], list[int]]]
"""Of each queue, times and the offsets that they lead to."""


def for_reput(seed: int, count: int) -> Lists:
    """Messages that Reput's client sends, some to a retry topic so long that its records are of version 2."""
    lists = [*workload.messages(seed, count, for_clients=True)]
    lists += [[workload.Sent(LONG_TOPIC, 0, b"%d" % n, {"TAGS": "TagA", "KEYS": "r"})] for n in range(5)]
    random.Random(seed).shuffle(lists)
    return lists


def for_apache(seed: int, count: int) -> Lists:
    """Messages that the official client sends, without unique ids in batches.

    RocketMQ stores every message of a batch with the properties of the batch behind its own, and the last of two equal
    names counts: all of them then bear the unique id that the client gave to the batch.
    """
    return [
        [replace(sent, properties=without_unique_id(sent)) for sent in batch] if len(batch) > 1 else batch
        for batch in workload.messages(seed, count, for_clients=True)
    ]


def without_unique_id(sent: workload.Sent) -> dict[str, str]:
    """The properties but for one."""
    return {name: value for name, value in sent.properties.items() if name != "UNIQ_KEY"}


def bodies(count: int) -> list[bytes]:
    """The first bodies that are sent while the broker is killed."""
    return [b"load %d" % number for number in range(count)]


def kill_under_load(broker: BrokerProcess) -> list[SendReceipt]:
    """Kill the broker while messages are sent to it; return what it had acknowledged."""
    receipts: list[SendReceipt] = []

    def send() -> None:
        with Producer(broker.address) as producer:
            for body in bodies(100_000):
                try:
                    receipts.append(producer.send(Message(LOAD_TOPIC, body), queue_id=0))
                except ReputError:
                    return

    sender = threading.Thread(target=send)
    sender.start()
    while len(receipts) < ACKNOWLEDGED_MIN and sender.is_alive():
        time.sleep(0.001)
    broker.kill()
    sender.join()
    assert len(receipts) >= ACKNOWLEDGED_MIN
    COUNTS["messages acknowledged before a kill"] += len(receipts)
    return receipts


def is_what_was_sent(view: View, lists: Lists) -> None:
    """Every queue holds what was sent to it, in order; brokers and clients add properties of their own."""
    queues = workload.queued(lists)
    for queue, described in view.items():
        sent = queues.get(queue, [])
        assert [message["queueOffset"] for message in described] == [*range(len(sent))]
        for message, expected in zip(described, sent, strict=True):
            assert workload.from_base64(message["body"]) == expected.body
            assert expected.properties.items() <= message["properties"].items()
            assert message["flag"] == expected.flag
        COUNTS["messages equal to what was sent"] += len(sent)


def apache_reads(apache: Apache) -> View:
    """Every message of the queues, by the official client."""
    return {(topic, queue_id): apache.ask("read", topic=topic, queueId=queue_id) for topic, queue_id in QUEUES}


def ids_of(view: View) -> dict[str, list[tuple[str, Described]]]:
    """Offset message ids by topic, with the message that each must lead to; some of each queue."""
    ids: dict[str, list[tuple[str, Described]]] = {}
    for (topic, _), described in view.items():
        for message in described[:: max(1, len(described) // 20)]:
            host = Host.parse(message["storeHost"].removeprefix("/"))
            ids.setdefault(topic, []).append((offset_message_id(host, message["physicalOffset"]), message))
    return ids


def apache_agrees(apache: Apache, ours: View, progress: dict[QueueKey, int], times_found: Times) -> None:
    """The official client finds the same as Reput's did, by queue offset, id and time; and the same progress."""
    theirs = apache_reads(apache)
    assert theirs == ours
    COUNTS["messages equal by queue offset"] += sum(map(len, ours.values()))
    for topic, pairs in ids_of(ours).items():
        assert apache.ask("by_id", topic=topic, ids=[text for text, _ in pairs]) == [found for _, found in pairs]
        COUNTS["messages equal by id"] += len(pairs)
    for (topic, queue_id), (times, offsets) in times_found.items():
        assert apache.by_time(topic, queue_id, times) == offsets, f"queue {queue_id} of {topic}"
        COUNTS["offsets equal by time"] += len(times)
    assert {queue: apache_committed(apache, queue) for queue in progress} == progress
    COUNTS["committed offsets equal"] += len(progress)


def apache_committed(apache: Apache, queue: QueueKey) -> int:
    """The group's offset, as the official client hears it."""
    (line,) = apache.ask("committed", topic=queue[0], queueId=queue[1])
    offset: int = line["offset"]
    return offset


def times_in(address: str, view: View) -> Times:
    """Times around those at which messages were stored, and what Reput makes of them."""
    found: Times = {}
    for queue, described in view.items():
        stored = sorted({message["storeTimestamp"] for message in described})
        times = sorted({time + step for time in stored[:: max(1, len(stored) // 8)] for step in (-1, 0, 1)})
        found[queue] = (times, offsets_by_time(address, queue, times))
    return found


def admin_tool_agrees(apache: Apache, ours: View, progress: dict[QueueKey, int]) -> None:
    """`mqadmin` shows the same bounds of every queue, and the same progress."""
    for topic in {topic for (topic, _), described in ours.items() if described}:
        rows = printed_rows(apache, "topicStatus", "-t", topic)
        bounds = {(topic, int(row[1])): (int(row[2]), int(row[3])) for row in rows}
        assert {queue: (0, len(ours[queue])) for queue in ours if queue[0] == topic}.items() <= bounds.items()
    rows = printed_rows(apache, "consumerProgress", "-g", GROUP)
    shown = {(row[0], int(row[2])): (int(row[3]), int(row[4])) for row in rows}
    assert {queue: (len(ours[queue]), progress[queue]) for queue in progress if queue[0] != LONG_TOPIC}.items() <= (
        shown.items()
    )
    COUNTS["rows of mqadmin equal"] += len(shown)


def printed_rows(apache: Apache, *arguments: str) -> list[list[str]]:
    """The rows about queues that a command of `mqadmin` prints, as columns."""
    (line,) = apache.ask("admin", arguments=arguments)
    return [text.split() for text in line["printed"].splitlines() if " broker-a " in f" {text}"]


def share(view: View, part: float) -> dict[QueueKey, int]:
    """Progress in every queue that holds something, by some part of its messages."""
    return {queue: int(len(described) * part) for queue, described in view.items() if described}


def apache_finds_by_key(apache: Apache, view: View, indexed_from: int) -> None:
    """The official client finds what is in the log from `indexed_from` on by its keys."""
    by_key: dict[tuple[str, str], list[Described]] = {}
    for (topic, _), described in view.items():
        for message in described:
            for key in message["properties"].get("KEYS", "").split():
                by_key.setdefault((topic, key), []).append(message)
    needed = {
        name: [message["physicalOffset"] for message in found if message["physicalOffset"] >= indexed_from]
        for name, found in by_key.items()
        if len(found) < FOUND_AT_ONCE // 2
    }
    names = sorted(name for name, offsets in needed.items() if offsets)
    for topic, key in names[:: max(1, len(names) // 20)]:
        found = apache.ask("by_key", topic=topic, key=key, max=FOUND_AT_ONCE, begin=0, end=LATEST)
        assert {*needed[topic, key]} <= {message["physicalOffset"] for message in found}, (topic, key)
        assert all(message in by_key[topic, key] for message in found), (topic, key)
        COUNTS["messages found by key"] += len(needed[topic, key])


def log_end(view: View) -> int:
    """Beyond the start of the last message."""
    offsets: list[int] = [message["physicalOffset"] for described in view.values() for message in described]
    return max(offsets) + 1


@pytest.mark.long
@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_apache_serves_what_reput_served_and_hands_back(tmp_path: Path, stop: str) -> None:
    data_dir, port = tmp_path / "store", free_broker_port()
    sent = for_reput(21, FIRST)
    with broker_process(data_dir, port) as reput:
        send_lists(reput.address, sent)
        ours = read_queues(reput.address, QUEUES)
        is_what_was_sent(ours, sent)
        times = times_in(reput.address, ours)
        progress = share(ours, 0.6)
        commit(reput, progress)
        certain = kill_under_load(reput) if stop == "killed" else []

    with Apache("broker", data_dir, port=port, group=GROUP) as apache:
        apache_agrees(apache, ours, progress, times)
        ids = [receipt.offset_message_id for receipt in certain]
        found = apache.ask("by_id", topic=LOAD_TOPIC, ids=ids)
        assert [message["queueOffset"] for message in found] == [receipt.queue_offset for receipt in certain]
        assert [workload.from_base64(message["body"]) for message in found] == bodies(len(certain))
        admin_tool_agrees(apache, ours, progress)
        more = for_apache(22, SECOND)
        apache_puts(apache, more, done="SEND_OK")
        theirs = apache_reads(apache)
        is_what_was_sent(theirs, sent + more)
        apache_finds_by_key(apache, theirs, 0 if REPUT_WRITES_INDEX else log_end(ours))
        if stop == "clean":
            progress = share(theirs, 0.9)
            for (topic, queue_id), offset in progress.items():
                apache.ask("commit", topic=topic, queueId=queue_id, offset=offset)
            apache.stop()
        else:
            apache.kill()

    with broker_process(data_dir, port) as reput:
        reput_agrees(reput.address, theirs, progress)
        last = for_reput(23, THIRD)
        send_lists(reput.address, last)
        is_what_was_sent(read_queues(reput.address, QUEUES), sent + more + last)


def reput_agrees(address: str, theirs: View, progress: dict[QueueKey, int]) -> None:
    """Reput's client finds the same as the official one did."""
    filled = {queue: described for queue, described in theirs.items() if described}
    assert read_queues(address, filled) == filled
    COUNTS["messages equal by queue offset"] += sum(map(len, theirs.values()))
    for pairs in ids_of(theirs).values():
        assert viewed(address, [text for text, _ in pairs]) == [message for _, message in pairs]
        COUNTS["messages equal by id"] += len(pairs)
    assert committed(address, progress) == progress
    COUNTS["committed offsets equal"] += len(progress)


@pytest.mark.parametrize("stop", [pytest.param("clean", marks=pytest.mark.long), "killed"])
def test_reput_serves_what_apache_served_and_hands_back(tmp_path: Path, stop: str) -> None:
    data_dir, port = tmp_path / "store", free_broker_port()
    sent = for_apache(24, FIRST)
    with Apache("broker", data_dir, port=port, group=GROUP) as apache:
        apache_puts(apache, sent, done="SEND_OK")
        theirs = apache_reads(apache)
        is_what_was_sent(theirs, sent)
        apache_finds_by_key(apache, theirs, 0)
        progress = share(theirs, 0.5)
        for (topic, queue_id), offset in progress.items():
            apache.ask("commit", topic=topic, queueId=queue_id, offset=offset)
        if stop == "clean":
            apache.stop()
        else:
            apache.kill()
    tables = config_files(data_dir)

    with broker_process(data_dir, port) as reput:
        if stop == "killed":  # RocketMQ had not saved them: it does so every few seconds
            commit(reput, progress)
        reput_agrees(reput.address, theirs, progress)
        more = for_reput(25, SECOND)
        send_lists(reput.address, more)
        ours = read_queues(reput.address, QUEUES)
        is_what_was_sent(ours, sent + more)
        times = times_in(reput.address, ours)
        progress = share(ours, 0.7)
        commit(reput, progress)
        if stop == "killed":
            reput.kill()

    tables_are_kept(tables, config_files(data_dir))

    with Apache("broker", data_dir, port=port, group=GROUP) as apache:
        apache_agrees(apache, ours, progress, times)


def config_files(data_dir: Path) -> dict[str, bytes]:
    """RocketMQ's tables, without what they were before."""
    return {path.name: path.read_bytes() for path in (data_dir / "config").iterdir() if path.suffix != ".bak"}


def tables_are_kept(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Topics keep their settings; tables that Reput does not use are left alone."""
    topics = read_json(before["topics.json"])["topicConfigTable"]
    assert topics.items() <= read_json(after["topics.json"])["topicConfigTable"].items()
    assert (
        read_json(before["topics.json"])["dataVersion"]["counter"]
        <= (read_json(after["topics.json"])["dataVersion"]["counter"])
    )
    kept = before.keys() - {"topics.json", "consumerOffset.json"}
    assert {name: before[name] for name in kept} == {name: after[name] for name in kept}
    COUNTS["tables kept"] += len(before)
