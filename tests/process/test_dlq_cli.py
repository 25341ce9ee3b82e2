"""`reput dlq ...` against a real broker: what it prints, sends, leaves and deletes, and how it exits."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from itertools import count
from typing import Any

import pytest

from reput_cli.output import rfc3339
from reput_client.blocking import Admin, Message, Producer, PullConsumer, ReceivedMessage
from reput_client.consume.send_back import DEAD_LETTER, send_back
from reput_protocol.record.dead_letter import replayed_id
from reput_protocol.record.message import MessageQueue
from support.broker_process import BrokerProcess
from support.command import reput
from support.waiting import wait_until

pytestmark = pytest.mark.process

_numbers = count()


class Letters:
    """A group with dead letters: six of `orders`, the even ones given up by their consumer, four of `bills`."""

    def __init__(self, broker: BrokerProcess) -> None:
        number = next(_numbers)
        self.broker = broker
        self.group, self.orders, self.bills = f"group{number}", f"orders{number}", f"bills{number}"
        self.sent: dict[str, str] = {}
        with Admin(broker.address, timeout_s=30.0) as admin:
            for topic in (self.orders, self.bills):
                admin.create_topic(topic, queues=1)
        self.give_up(self.orders, 6)
        self.give_up(self.bills, 4)

    def give_up(self, topic: str, number: int) -> None:
        """Send messages that no handler can process."""
        with Producer(self.broker.address, group="p", timeout_s=30.0) as producer:
            for n in range(number):
                body = f"{topic} {n}"
                receipt = producer.send(
                    Message(topic, body.encode(), tag=f"t{n % 2}", keys=[f"k{n}"], properties={"n": str(n)}, flag=n)
                )
                self.sent[body] = receipt.message_id
        for message in self.messages(topic):
            self.give_back(message)

    def give_back(self, message: ReceivedMessage) -> None:
        given_up = int(message.properties["n"]) % 2 == 0
        with PullConsumer(self.broker.address, group=self.group, timeout_s=30.0) as consumer:
            consumer._runtime.run(
                send_back(
                    consumer._client._session,
                    message,
                    group=self.group,
                    queue=MessageQueue(message.topic, message.broker_name, 0),
                    delay_level=DEAD_LETTER if given_up else 0,
                    max_reconsume_times=0,  # at once
                    reason="ValueError: no such bill" if given_up else None,
                )
            )

    def messages(self, topic: str) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        with PullConsumer(self.broker.address, group="reader", timeout_s=30.0) as consumer:
            while True:
                result = consumer.pull(topic, 0, len(found), max_messages=256, wait_s=0.0)
                if not result.messages:
                    return found
                found += result.messages

    def command(self, *arguments: str) -> list[str]:
        return [
            sys.executable, "-m", "reput_cli", "dlq", *arguments,
            "--server", self.broker.address, "--timeout", "30s",
        ]  # fmt: skip

    def cli(self, *arguments: str, text: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        yes = ("--yes",) if arguments[0] == "replay" and not text else ()
        done = reput("dlq", *arguments, *yes, "--timeout", "30s", server=self.broker.address, text=text)
        assert done.returncode == code, done
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self.cli(*arguments, "-O", "json").stdout)


@pytest.fixture
def letters(broker: BrokerProcess) -> Letters:
    return Letters(broker)


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


def test_list_says_how_many_from_where_and_why(letters: Letters) -> None:
    (row,) = letters.json("list", letters.group)
    assert row["group"] == letters.group
    assert (row["messages"], row["replayed"]) == (10, 0)
    assert row["origins"] == {letters.orders: 6, letters.bills: 4}
    assert row["reasons"] == {"consumer": 5, "max_reconsume_times": 5}
    assert row["attempts"] == {"1": 10}
    assert row["oldest"] <= row["newest"]
    shown = letters.cli("list", letters.group, "-O", "table").stdout
    assert re.search(r" \S+s ago +\S+s ago ", shown), shown  # times in full would not fit a terminal of 80 columns
    assert letters.group in [row["group"] for row in letters.json("list")]
    (row,) = letters.json("list", letters.group, "--filter", f"RETRY_TOPIC = '{letters.bills}' AND n > 1")
    assert (row["messages"], row["origins"]) == (2, {letters.bills: 2})
    plain = letters.cli("list", letters.group).stdout.splitlines()
    assert plain[0].split("\t")[:3] == ["group", "messages", "replayed"]
    assert plain[1].split("\t")[5:] == [
        f"{letters.orders} 6, {letters.bills} 4", "consumer 5, max_reconsume_times 5", "1",
    ]  # fmt: skip


def test_peek_shows_them_and_touches_nothing(letters: Letters) -> None:
    lines = [json.loads(line) for line in letters.cli("peek", letters.group, "-n", "3").stdout.splitlines()]
    assert [line["body"] for line in lines] == [f"{letters.orders} {n}" for n in range(3)]
    first = lines[0]
    assert (first["origin_topic"], first["attempts"]) == (letters.orders, 1)
    assert (first["reason"], first["cause"]) == ("consumer", "ValueError: no such bill")
    assert first["origin_message_id"] == letters.sent[first["body"]]
    assert (lines[1]["reason"], lines[1]["cause"]) == ("max_reconsume_times", None)
    chosen = letters.cli("peek", letters.group, "--filter", "DLQ_REASON = 'consumer' AND n >= 2", "-f", "%v")
    assert chosen.stdout.split("\n")[:3] == [
        f"{letters.orders} 2", f"{letters.orders} 4", f"{letters.bills} 2",
    ]  # fmt: skip
    assert len(letters.cli("peek", letters.group, "-o", "-2").stdout.splitlines()) == 2
    assert len(letters.cli("peek", letters.group, "-o", "3:5").stdout.splitlines()) == 2
    block = letters.cli("peek", letters.group, "-n", "1", "-O", "table").stdout
    assert f"from {letters.orders}  attempts 1  reason consumer  cause ValueError: no such bill" in block
    assert len(letters.messages(f"%DLQ%{letters.group}")) == 10


def test_a_dry_run_of_replay_says_what_it_would_do_and_does_nothing(letters: Letters) -> None:
    done = letters.cli("replay", letters.group, "--dry-run", "--filter", "n < 2")
    assert f"2 dead letters of {letters.group} would be sent to {letters.orders}" in done.stderr
    assert f"2 dead letters of {letters.group} would be sent to {letters.bills}" in done.stderr
    assert "6 skipped by the filter" in done.stderr
    assert len(letters.messages(letters.orders)) == 6
    again = letters.cli("replay", letters.group, "--dry-run")
    assert f"6 dead letters of {letters.group} would be sent to {letters.orders}" in again.stderr


def test_replay_sends_each_once_as_a_new_message(letters: Letters) -> None:
    letters.cli("replay", letters.group)
    replayed = letters.messages(letters.orders)[6:]
    assert bodies(replayed) == [f"{letters.orders} {n}" for n in range(6)]
    for n, message in enumerate(replayed):
        found = message.properties
        assert (message.tag, message.keys, message.flag, found["n"]) == (f"t{n % 2}", (f"k{n}",), n, str(n))
        assert message.reconsume_times == 0
        origin = letters.sent[message.body.decode()]
        assert found["DLQ_ORIGIN_MESSAGE_ID"] == origin != message.message_id
        assert not {"RETRY_TOPIC", "DLQ_REASON", "RETRY_REASON", "ORIGIN_MESSAGE_ID", "DELAY"} & set(found)
    again = letters.cli("replay", letters.group)
    assert "10 were replayed before" in again.stderr
    assert len(letters.messages(letters.orders)) == 12
    letters.give_back(replayed[0])
    letters.cli("replay", letters.group)
    assert bodies(letters.messages(letters.orders)[12:]) == [f"{letters.orders} 0"], "the one that came back"
    assert len(letters.messages(f"%DLQ%{letters.group}")) == 11, "they stay where they are"
    letters.cli("replay", letters.group, "-o", "earliest", "-n", "2")
    assert len(letters.messages(letters.orders)) == 13
    letters.cli("replay", letters.group, "--again", "-n", "2")
    assert len(letters.messages(letters.orders)) == 15


def typed(command: list[str], text: str) -> tuple[int, str]:
    """Run a command on a terminal on which a text is typed; return its exit code and what it says."""
    terminal, of_command = pty.openpty()
    try:
        os.write(terminal, text.encode())
        done = subprocess.run(command, stdin=of_command, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(terminal)
        os.close(of_command)
    return done.returncode, done.stderr


def test_replay_asks_first(letters: Letters) -> None:
    for text in ("", "yes\n", f"{letters.group}\n"):
        done = reput("dlq", "replay", letters.group, server=letters.broker.address, text=text)
        assert done.returncode == 2
        assert "there is no terminal to ask for confirmation" in done.stderr
        assert "--yes" in done.stderr
    code, said = typed(letters.command("replay", letters.group), "another\n")
    assert (code, "the name was not typed" in said) == (1, True)
    assert len(letters.messages(letters.orders)) == 6
    code, said = typed(letters.command("replay", letters.group), f"{letters.group}\n")
    assert (code, "up to 10 dead letters of" in said) == (0, True)
    assert len(letters.messages(letters.orders)) == 12


def test_replay_of_a_few_asks_although_many_others_were_replayed(letters: Letters) -> None:
    """It compared the number of those that it was to send with that of all that were replayed."""
    letters.cli("replay", letters.group, "-n", "8")
    few = ("dlq", "replay", letters.group, "-o", "-2")
    done = reput(*few, server=letters.broker.address, text=f"{letters.group}\n")
    assert done.returncode == 2
    assert "there is no terminal to ask for confirmation" in done.stderr
    assert len(letters.messages(letters.bills)) == 4 + 2
    letters.cli("replay", letters.group)
    done = reput(*few, server=letters.broker.address)
    assert done.returncode == 0, "there is nothing to ask"
    assert "2 were replayed before" in done.stderr


def test_list_and_peek_show_what_was_replayed(letters: Letters) -> None:
    letters.cli("replay", letters.group, "--filter", "n = '1'")
    (row,) = letters.json("list", letters.group)
    assert (row["messages"], row["replayed"]) == (10, 2)
    (row,) = letters.json("list", letters.group, "--filter", f"RETRY_TOPIC = '{letters.orders}'")
    assert (row["messages"], row["replayed"]) == (6, 1)
    first, second = (json.loads(line) for line in letters.cli("peek", letters.group, "-n", "2").stdout.splitlines())
    assert (first["replayed_at"], first["replayed_to"], first["replayed_message_id"]) == (None, None, None)
    (copy,) = letters.messages(letters.orders)[6:]
    assert (second["replayed_to"], second["replayed_message_id"]) == (letters.orders, copy.offset_message_id)
    assert second["replayed_at"] == rfc3339(copy.store_timestamp_ms)
    block = letters.cli("peek", letters.group, "-o", "1:2", "-O", "table").stdout
    assert f"  replayed {second['replayed_at']} to {letters.orders}\n" in block
    plain = letters.cli("peek", letters.group, "-o", "1:2", "-O", "plain").stdout
    assert plain.split("\t")[4:6] == [second["replayed_at"], letters.orders]


def test_what_a_selection_has_sent_is_not_sent_again(letters: Letters) -> None:
    letters.cli("replay", letters.group, "--filter", "n IN ('1', '3')")
    assert len(letters.messages(letters.orders)) == 8
    all_of_them = letters.cli("replay", letters.group)
    assert "4 were replayed before" in all_of_them.stderr
    assert sorted(bodies(letters.messages(letters.orders)[6:])) == [f"{letters.orders} {n}" for n in range(6)]


def test_a_message_with_the_id_of_a_replay_hides_no_letter(letters: Letters) -> None:
    """Who may only send to the origin can compute the id."""
    letter = letters.messages(f"%DLQ%{letters.group}")[0]
    other = next(one for one in letters.messages(letters.orders) if one.body != letter.body)
    with Producer(letters.broker.address, timeout_s=30.0) as producer:
        producer.forward(other, letters.orders, unique_id=replayed_id(letter.offset_message_id))
    assert "replayed before" not in letters.cli("replay", letters.group).stderr
    assert letter.body in [message.body for message in letters.messages(letters.orders)[7:]]


def test_a_filter_a_count_and_another_topic(letters: Letters) -> None:
    with Admin(letters.broker.address, timeout_s=30.0) as admin:
        admin.create_topic(f"again{letters.group}", queues=1)
    target = f"again{letters.group}"
    arguments = ("replay", letters.group, "--filter", "n IN ('1', '3')", "--to", target, "-n", "3")
    first = letters.cli(*arguments)
    assert f"3 dead letters of {letters.group} sent to {target}" in first.stderr
    assert "the same command sends them" in first.stderr
    letters.cli(*arguments)
    assert bodies(letters.messages(target)) == [
        f"{letters.orders} 1", f"{letters.orders} 3", f"{letters.bills} 1", f"{letters.bills} 3",
    ]  # fmt: skip
    assert len(letters.messages(letters.orders)) == 6


def test_the_rate_is_kept(letters: Letters) -> None:
    letters.cli("replay", letters.group, "--rate", "10/s", "--filter", f"RETRY_TOPIC = '{letters.orders}'")
    times = [message.store_timestamp_ms for message in letters.messages(letters.orders)[6:]]
    assert len(times) == 6
    assert times[-1] - times[0] >= 400, "five tenths of a second, of which the first one may have lost some"
    refused = letters.cli("replay", letters.group, "--rate", "100", code=2)
    assert "write 100/s" in refused.stderr


@pytest.mark.fault
def test_an_interrupted_replay_continues_where_it_stopped(letters: Letters) -> None:
    work = subprocess.Popen(
        letters.command("replay", letters.group, "--rate", "5/s", "--yes"), stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: len(letters.messages(letters.orders)) >= 8, 60)
    work.send_signal(signal.SIGINT)
    _, errors = work.communicate(timeout=60)
    assert work.returncode == 130
    assert "the same command sends them" in errors
    done = len(letters.messages(letters.orders)) - 6
    assert 2 <= done < 6
    letters.cli("replay", letters.group)
    assert bodies(letters.messages(letters.orders)[6:]) == [f"{letters.orders} {n}" for n in range(6)]


def test_a_topic_that_is_gone_is_not_made_by_a_replay(letters: Letters) -> None:
    with Admin(letters.broker.address, timeout_s=30.0) as admin:
        admin.delete_topic(letters.bills)
    done = letters.cli("replay", letters.group, code=8)
    assert f"4 were left, since topic {letters.bills} does not exist any more" in done.stderr
    assert "--to ANOTHER_TOPIC" in done.stderr
    assert len(letters.messages(letters.orders)) == 12, "the others have been sent"


def test_one_that_does_not_say_where_it_came_from_is_left(letters: Letters) -> None:
    with Producer(letters.broker.address, group="p", timeout_s=30.0) as producer:
        producer.send(Message(f"%DLQ%{letters.group}", b"by hand"))
    done = letters.cli("replay", letters.group, code=8)
    assert "1 was left, not proven to come from the topic" in done.stderr
    remedy = done.stderr.partition("try: reput dlq ")[2].splitlines()[0]
    assert remedy.endswith("--to TOPIC")
    letters.cli(*shlex.split(remedy.removesuffix("TOPIC")), letters.bills)
    assert bodies(letters.messages(letters.bills))[8:] == ["by hand"], "and none of the others once more"
    (row,) = letters.json("list", letters.group)
    assert (row["origins"]["unknown"], row["reasons"]["unknown"]) == (1, 1)


def test_purge_asks_and_says_what_goes(letters: Letters) -> None:
    letters.cli("replay", letters.group, "-n", "4")
    topic = f"%DLQ%{letters.group}"
    dry = letters.cli("purge", letters.group, "--dry-run")
    assert f"topic {topic}: 10 dead letters, 6 not replayed yet" in dry.stderr
    refused = letters.cli("purge", letters.group, text=f"{letters.group}\n", code=2)
    assert "were not deleted" in refused.stderr
    assert len(letters.messages(topic)) == 10
    letters.cli("purge", letters.group, "--yes")
    assert "has no dead letters" in letters.cli("peek", letters.group, code=5).stderr
    letters.give_back(letters.messages(letters.bills)[3])
    assert bodies(letters.messages(topic)) == [f"{letters.bills} 3"], "the next one brings the topic back"
    letters.cli("replay", letters.group)
    assert bodies(letters.messages(letters.bills))[4:] == [f"{letters.bills} 3"]


def test_what_cannot_be_is_refused_with_its_reason(letters: Letters) -> None:
    assert "no topic %DLQ%nobody" in letters.cli("peek", "nobody", code=5).stderr
    bad = letters.cli("list", letters.group, "--filter", "n >", code=2)
    assert "^" in bad.stderr
    assert letters.cli("replay", letters.group, "--to", "SCHEDULE_TOPIC_XXXX", code=2).stderr
