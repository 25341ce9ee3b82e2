"""The same things done with a Reput broker and its client."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from conformance.apache import SMALL
from conformance.reput_side import REPUT_WRITES_INDEX
from conformance.workload import Sent
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_client.received import ReceivedMessage
from reput_protocol.commands.base import read_json
from support.broker_process import BrokerProcess
from support.waiting import wait_until

GROUP = "conformance"
SAVE_INTERVAL_MS = 100
QueueKey = tuple[str, int]
Described = dict[str, Any]


def broker_process(data_dir: Path, port: int, **options: str) -> BrokerProcess:
    """A broker with the sizes that RocketMQ is given, not started yet.

    Args:
        options: more environment variables.
    """
    sizes = {
        **options,
        "REPUT_STORE__COMMIT_LOG_FILE_SIZE": f"{SMALL.commit_log_file_size}B",
        "REPUT_STORE__CONSUME_QUEUE_ENTRIES": str(SMALL.consume_queue_entries),
        "REPUT_OFFSETS__FLUSH_INTERVAL": f"{SAVE_INTERVAL_MS}ms",
    }
    if REPUT_WRITES_INDEX:
        sizes["REPUT_STORE__INDEX_SLOTS"] = str(SMALL.index_slots)
        sizes["REPUT_STORE__INDEX_ENTRIES"] = str(SMALL.index_entries)
    return BrokerProcess(data_dir, port=port, environment=sizes)


def send_lists(address: str, lists: Iterable[list[Sent]]) -> None:
    """Send messages, lists of more than one as batches."""
    with Producer(address) as producer:
        for batch in lists:
            queue_id = batch[0].queue_id
            if len(batch) == 1:
                producer.send(_message(batch[0]), queue_id=queue_id)
            else:
                producer.send_batch([_message(sent) for sent in batch], queue_id=queue_id)


def _message(sent: Sent) -> Message:
    named = ("TAGS", "KEYS", "UNIQ_KEY")
    return Message(
        sent.topic,
        sent.body,
        tag=sent.properties.get("TAGS"),
        keys=sent.properties.get("KEYS", "").split(),
        properties={name: value for name, value in sent.properties.items() if name not in named},
        flag=sent.flag,
        unique_id=sent.properties.get("UNIQ_KEY"),
    )


def read_queues(address: str, queues: Iterable[QueueKey]) -> dict[QueueKey, list[Described]]:
    """Every message of the queues, as RocketMQ's client describes it (Messages.java)."""
    view: dict[QueueKey, list[Described]] = {}
    with PullConsumer(address, group=GROUP) as consumer:
        for topic, queue_id in queues:
            messages = view[topic, queue_id] = []
            offset, end = consumer.min_offset(topic, queue_id), consumer.max_offset(topic, queue_id)
            while offset < end:
                result = consumer.pull(topic, queue_id, offset, wait_s=0)
                assert result.status.name == "FOUND", result
                messages += map(described, result.messages)
                offset = result.next_begin_offset
    return view


def described(message: ReceivedMessage) -> Described:
    """One message as RocketMQ's client describes it."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "body": base64.b64encode(message.body).decode(),
        "properties": message.properties,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": f"/{message.born_host}",
        "storeHost": f"/{message.store_host}",
        "reconsumeTimes": message.reconsume_times,
    }


def commit(broker: BrokerProcess, offsets: Mapping[QueueKey, int]) -> None:
    """Commit progress of the group, and wait until RocketMQ's file holds it: it knows nothing of Reput's journal."""
    with PullConsumer(broker.address, group=GROUP) as consumer:
        for (topic, queue_id), offset in offsets.items():
            consumer.commit(topic, queue_id, offset)
    expected: dict[str, dict[int, int]] = {f"{topic}@{GROUP}": {} for topic, _ in offsets}
    for (topic, queue_id), offset in offsets.items():
        expected[f"{topic}@{GROUP}"][queue_id] = offset
    wait_until(
        lambda: saved_offsets(broker.data_dir) == expected,
        10,
        what=lambda: f"consumerOffset.json does not come to hold {expected}",
    )


def saved_offsets(data_dir: Path) -> dict[str, dict[int, int]]:
    """What `consumerOffset.json` says of the group."""
    path = data_dir / "config" / "consumerOffset.json"
    table = read_json(path.read_bytes())["offsetTable"] if path.exists() else {}
    return {
        name: {int(queue_id): offset for queue_id, offset in queues.items()}
        for name, queues in table.items()
        if name.endswith(f"@{GROUP}")
    }


def committed(address: str, queues: Iterable[QueueKey]) -> dict[QueueKey, int | None]:
    """The group's offsets, as Reput's client hears them."""
    with PullConsumer(address, group=GROUP) as consumer:
        return {queue: consumer.committed(*queue) for queue in queues}


def offsets_by_time(address: str, queue: QueueKey, times: Iterable[int]) -> list[int]:
    """The queue offset that each of the times leads to."""
    with Admin(address) as admin:
        return [admin.offset_by_time(*queue, time) for time in times]


def viewed(address: str, ids: Iterable[str]) -> list[Described]:
    """The message of each offset message id."""
    with Admin(address) as admin:
        return [described(admin.view_message(text)) for text in ids]
