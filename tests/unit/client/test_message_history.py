"""What became of a message: its groups, redeliveries, dead letters, replays and traces; also on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client import CopyKind, MessageHistory, SendReceipt, TrackType
from reput_client.blocking import Admin, Consumer, Message, Producer, PullConsumer
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import TRACE_TOPIC, dlq_topic
from support.command import reput
from support.dead_letters import give_up


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    config = BrokerConfig.model_validate({"data_dir": tmp_path_factory.mktemp("history"), "port": 0, "http_port": None})
    with BackgroundBroker(config) as broker:
        yield broker


def send(broker: BackgroundBroker, topic: str, **fields: str) -> SendReceipt:
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.ensure_topic(topic, queues=1)
        receipt = producer.send(Message(topic, b"x", **fields))  # type: ignore[arg-type]
        admin.flush_log()
        return receipt


def history(broker: BackgroundBroker, receipt: SendReceipt) -> MessageHistory:
    with Admin(broker.address) as admin:
        return admin.message_history(receipt.offset_message_id)


def test_groups_before_and_after_they_consume(broker: BackgroundBroker) -> None:
    receipt = send(broker, "orders", tag="paid")
    assert [step.kind for step in history(broker, receipt).steps] == ["sent", "stored"]
    with PullConsumer(broker.address, group="waiting") as consumer:
        consumer.commit("orders", 0, receipt.queue_offset)
    with PullConsumer(broker.address, group="done") as consumer:
        consumer.commit("orders", 0, receipt.queue_offset + 1)
    found = history(broker, receipt)
    assert {track.group: track.state for track in found.tracks} == {
        "done": TrackType.CONSUMED,
        "waiting": TrackType.NOT_ONLINE,
    }
    (committed,) = (step for step in found.steps if step.kind == "consumed")
    assert committed.at_ms is not None, "it is the message of the last commit"
    assert committed.at_ms >= found.message.store_timestamp_ms
    with Consumer(broker.address, group="done", topic="orders", tags="refunded"):
        states = {track.group: track.state for track in history(broker, receipt).tracks}
    assert states["done"] is TrackType.CONSUMED_BUT_FILTERED


def test_a_message_in_the_hands_of_a_member_and_one_that_it_gives_back(broker: BackgroundBroker) -> None:
    receipt = send(broker, "tasks")
    with Consumer(broker.address, group="workers", topic="tasks", start="earliest") as member:
        message = next(iter(member))
        (track,) = history(broker, receipt).tracks
        assert (track.state, bool(track.client_id)) == (TrackType.IN_FLIGHT, True)
        message.nack(delay_s=300.0, reason="the shop is closed")
    found = history(broker, receipt)
    (copy,) = found.tracks[0].copies
    assert copy.kind is CopyKind.WAITING_RETRY
    assert copy.at_ms - found.message.store_timestamp_ms >= 300_000
    assert [step.kind for step in found.steps if step.group == "workers"] == ["consumed", "retry"]


def test_a_dead_letter_its_replay_and_its_traces(broker: BackgroundBroker) -> None:
    receipt = send(broker, "payments")
    give_up(broker.address, "billing", "payments", reason="declined")
    with PullConsumer(broker.address, group="billing") as consumer:
        consumer.commit("payments", 0, 1)
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        (letter,) = admin.fetch_messages(dlq_topic("billing"), 0, 0, 1).messages
        admin.replay_dead_letters("billing", [letter.queue_offset])
        fields = ("SubAfter", "REQ", receipt.message_id, 12, "false", "k", 2, 1_700_000_000_000, "billing")
        trace = "\x01".join(map(str, fields)) + "\x02"
        producer.send(Message(TRACE_TOPIC, trace.encode(), keys=[receipt.message_id]))
        admin.flush_log()
    found = history(broker, receipt)
    assert [copy.kind for copy in found.tracks[0].copies] == [CopyKind.DEAD_LETTER, CopyKind.REPLAY]
    assert found.tracks[0].copies[0].reason == "max reconsume times: declined"
    assert found.steps[0].text == "consumer: done in 12 ms and failed: it raised an exception"
    assert found.missing == []
    # The same of the dead letter: it is a copy.
    with Admin(broker.address) as admin:
        of_letter = admin.message_history(letter.offset_message_id)
    assert of_letter.message.offset_message_id == receipt.offset_message_id
    assert of_letter.steps == found.steps

    done = reput("message", "history", receipt.offset_message_id, "-O", "json", server=broker.address)
    assert [step["what"] for step in json.loads(done.stdout)] == [step.kind for step in found.steps]
    shown = reput("message", "history", receipt.offset_message_id, "-O", "table", server=broker.address)
    assert "dead letter: max reconsume times: declined" in " ".join(shown.stdout.split())


def test_a_message_that_is_gone(broker: BackgroundBroker) -> None:
    done = reput("message", "history", "7F00000100002A9F000000007FFFFFFF", server=broker.address)
    assert done.returncode == ExitCode.NOT_FOUND
    assert "reput message find TOPIC" in done.stderr
