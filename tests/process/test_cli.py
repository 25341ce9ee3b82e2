"""The command line against a real broker process: piped, as JSON, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reput_protocol.codes import RequestCode
from support.broker_process import BrokerProcess, free_port
from support.command import reput
from support.fakes import HANG_UP, Answer, FakeBroker

pytestmark = pytest.mark.process


def test_lines_without_an_answer_are_sent_again_and_stored_once() -> None:
    with FakeBroker() as fake:
        marks: list[str] = []

        def put(header: Any, body: memoryview) -> Answer:
            marks.append(header.ext["dedup"])
            return HANG_UP if len(marks) == 1 else fake.put(header, body)

        fake.behave(RequestCode.PUT_MESSAGE, put)
        sent = reput("produce", "t", server=fake.address, text="one\ntwo\n")
        assert (sent.returncode, marks) == (0, ["mark", "check"])


def test_lines_of_standard_input_come_back_as_json_lines(broker: BrokerProcess) -> None:
    lines = [f"line {n}" for n in range(500)]
    sent = reput("produce", "piped", "-t", "t1", "-k", "k1", "-p", "a=b", server=broker.address, text="\n".join(lines))
    assert (sent.returncode, sent.stdout) == (0, "")
    assert "500 messages sent to piped (flushed)" in sent.stderr
    read = reput("consume", "piped", "-e", server=broker.address)
    messages = [json.loads(line) for line in read.stdout.splitlines()]
    assert read.returncode == 0
    assert sorted(m["body"] for m in messages) == sorted(lines)
    assert {(m["tag"], tuple(m["keys"]), m["properties"]["a"]) for m in messages} == {("t1", ("k1",), "b")}
    by_queue: dict[int, list[int]] = {}
    for message in messages:
        by_queue.setdefault(message["queue_id"], []).append(message["queue_offset"])
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())


def test_one_message_answers_with_its_receipt(broker: BrokerProcess) -> None:
    sent = reput("produce", "single", "hello", "-O", "json", server=broker.address)
    receipt = json.loads(sent.stdout)
    assert sent.returncode == 0
    assert receipt["topic"] == "single"
    assert receipt["ack"] == "flushed"
    got = reput("message", "get", receipt["offset_message_id"], "-O", "json", server=broker.address)
    assert json.loads(got.stdout)["body"] == "hello"
    assert json.loads(got.stdout)["message_id"] == receipt["message_id"]


def test_messages_are_found_by_key(broker: BrokerProcess) -> None:
    for number in range(3):
        reput("produce", "found", f"m{number}", "-k", "k", "-k", f"k{number}", server=broker.address)

    def find(*arguments: str) -> list[dict[str, str]]:
        done = reput("message", "find", "-t", "found", *arguments, "-O", "json", server=broker.address)
        assert done.returncode in (0, 5), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert [message["body"] for message in find("-k", "k")] == ["m2", "m1", "m0"]
    (one,) = find("-k", "k1")
    assert one["body"] == "m1"
    assert find("-k", one["message_id"]) == [one]
    missing = reput("message", "find", "fuond", "k1", server=broker.address)
    assert "topic 'fuond' does not exist" in missing.stderr
    assert len(find("-k", "k", "-n", "2")) == 2
    assert len(find("-k", "k", "--between", "-15m", "2100-01-01T00:00:00Z")) == 3
    assert find("-k", "k", "--between", "2001-01-01T00:00:00Z", "-15m") == []
    assert len(find("--between", "-15m", "2100-01-01T00:00:00Z")) == 3
    for arguments in (("found", "k1"), ("k1", "-t", "found"), ("found", "-k", "k1")):
        positional = reput("message", "find", *arguments, "-O", "json", server=broker.address)
        assert json.loads(positional.stdout) == one
    for incomplete in ((), ("found",), ("found", "k1", "k2")):
        lacking = reput("message", "find", *incomplete, server=broker.address)
        assert lacking.returncode == 2
        assert "reput message find TOPIC KEY" in lacking.stderr
    plain = reput("message", "find", "-t", "found", "-k", "k1", "-O", "plain", server=broker.address)
    assert plain.stdout.endswith("\t-\tm1\n"), "queue, offset, tag, body"
    missing = reput("message", "find", "-t", "found", "-k", "none", server=broker.address)
    assert missing.returncode == 5
    assert "no message of found has the key 'none'" in missing.stderr
    wrong = reput("message", "find", "-t", "found", "-k", "k", "--between", "soon", "later", server=broker.address)
    assert wrong.returncode == 2
    assert "is not a time" in wrong.stderr


def test_json_input_is_json_output(broker: BrokerProcess) -> None:
    first = [{"body": f"b{n}", "tag": "x", "keys": [f"k{n}"], "properties": {"n": str(n)}} for n in range(3)]
    first.append({"body_base64": "AP8="})
    sent = reput(
        "produce", "json-in", "--json", server=broker.address, text="".join(json.dumps(m) + "\n" for m in first)
    )
    assert sent.returncode == 0, sent.stderr
    assert reput("produce", "json-in", "expires", "--ttl", "1h", server=broker.address).returncode == 0
    dumped = reput("consume", "json-in", "-e", "-O", "jsonl", server=broker.address).stdout
    again = reput("produce", "json-again", "--json", server=broker.address, text=dumped)
    assert again.returncode == 0, again.stderr
    read = reput("consume", "json-again", "-e", server=broker.address).stdout
    fields = [json.loads(line) for line in read.splitlines()]
    bodies = sorted(m.get("body", m.get("body_base64")) for m in fields)
    assert bodies == ["AP8=", "b0", "b1", "b2", "expires"]
    assert {m["properties"].get("n") for m in fields} == {"0", "1", "2", None}
    assert [m["properties"].get("EXPIRES_AFTER_MS") for m in fields if m.get("body") == "expires"] == ["3600000"]


def test_positions_and_formats(broker: BrokerProcess) -> None:
    reput("topic", "create", "positions", "--queues", "1", server=broker.address)
    reput("produce", "positions", server=broker.address, text="\n".join(map(str, range(10))))

    def read(*arguments: str) -> list[str]:
        return reput("consume", "positions", "-e", "-f", "%v", *arguments, server=broker.address).stdout.splitlines()

    assert read() == [str(n) for n in range(10)]
    assert read("-o", "-3") == ["7", "8", "9"]
    assert read("-o", "4:6") == ["4", "5"]
    assert read("-o", "@-15m") == [str(n) for n in range(10)]
    assert read("-n", "2") == ["0", "1"]
    formatted = reput("consume", "positions", "-n", "1", "-f", r"%t/%q/%o\t%v{hex}%%", server=broker.address).stdout
    assert formatted == "positions/0/0\t30%\n"


def test_stopping_in_the_middle_is_not_a_failure(broker: BrokerProcess) -> None:
    reput("topic", "create", "stopped", "--queues", "8", server=broker.address)
    reput("produce", "stopped", server=broker.address, text="\n".join(map(str, range(3000))))
    for number in range(12):
        arguments = ["-g", f"g{number}"] if number % 2 else ["-e"]
        read = reput("consume", "stopped", "-n", "3", "-f", "%v", *arguments, server=broker.address)
        assert (read.returncode, read.stderr) == (0, "")
        assert len(read.stdout.splitlines()) == 3


def test_an_invalid_line_is_named_and_those_before_it_are_sent(broker: BrokerProcess) -> None:
    reput("topic", "create", "lines", "--queues", "1", server=broker.address)
    for bad, reason in (
        ('{"body":"x","tga":"y"}', "did you mean 'tag'?"),
        ('{"body":"x","keys":"abc"}', "keys must be a list"),
        ('{"body":null}', "neither body nor body_base64"),
        ("7", "it is not a JSON object"),
        ("nonsense", "JSONDecodeError"),
    ):
        text = '{"body":"1"}\n{"body":"2","keys":null}\n' + bad + '\n{"body":"4"}\n'
        sent = reput("produce", "lines", "--json", server=broker.address, text=text)
        assert sent.returncode == 2
        assert "line 3: " in sent.stderr
        assert reason in sent.stderr
        assert "; 2 messages are stored" in sent.stderr
    read = reput("consume", "lines", "-e", "-f", "%v", server=broker.address)
    assert read.stdout.split() == ["1", "2"] * 5


def test_wrong_arguments_are_refused_by_name(broker: BrokerProcess) -> None:
    for arguments, text in (
        (("topic", "list", "--server", ""), "no broker address given"),
        (("topic", "list", "--server", "127.0.0.1:abc"), "a port is a number"),
        (("produce", "t", "--file", "/no/such/file"), "No such file"),
        (("bench", "produce", "--rate", "-5"), "--rate"),
        (("bench", "produce", "--warmup", "-3"), "--warmup"),
    ):
        refused = reput(*arguments)
        assert refused.returncode == 2, refused.stderr
        assert text in refused.stderr
        assert "Error" not in refused.stderr.replace("Error: ", "")
    refused = reput("message", "get", "C0000202085C941071C468A2C53D0000", server=broker.address)
    assert refused.returncode == 5
    assert "message find TOPIC C0000202085C941071C468A2C53D0000" in refused.stderr
    assert "physical offset" not in refused.stderr, "it is a unique id and stands for no place"
    for misspelt in (("tpoic", "list"), ("topic", "lst")):
        refused = reput(*misspelt)
        assert refused.returncode == 2
        assert "Did you mean" in refused.stderr


def test_a_wrong_address_says_what_to_write_instead(broker: BrokerProcess) -> None:
    refused = reput("topic", "list", server=f"http://{broker.address}")
    assert refused.returncode == 2
    assert f"is a URL; write only its host and port: {broker.address}" in refused.stderr
    refused = reput("topic", "list", server=f"127.0.0.1:{broker.http_port}")
    assert refused.returncode == 3
    assert "an HTTP server responds there" in refused.stderr


def test_a_broker_that_goes_away_ends_what_sends_and_is_waited_for_by_what_follows(tmp_path: Path) -> None:
    port, http_port = free_port(), free_port()
    with BrokerProcess(tmp_path / "store", port=port, http_port=http_port) as process:
        reput("topic", "create", "t", "--queues", "1", server=process.address)
        command = [sys.executable, "-m", "reput_cli"]
        follower, reader = (
            subprocess.Popen(
                [*command, "consume", "t", "-f", "%v", "--server", process.address, *group],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            for group in (("-g", "g"), ())
        )
        sender = subprocess.Popen(
            [*command, "produce", "t", "--ack", "page_cache", "--server", process.address],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert sender.stdin is not None
        assert sender.stderr is not None
        assert follower.stdout is not None
        assert follower.stderr is not None
        for number in range(5000):
            sender.stdin.write(f"{number}\n")
        sender.stdin.flush()
        for following in (follower, reader):
            assert following.stdout is not None
            assert following.stdout.readline() == "0\n"
        process.kill()
        with suppress(BrokenPipeError):  # it may have ended in the middle
            sender.stdin.write("x\n" * 100_000)
        with suppress(BrokenPipeError):
            sender.stdin.close()
        said = sender.stderr.read()
        assert sender.wait(30) in (3, 6)
        stored = int(re.search(r"(\d+) messages? (?:is|are) stored", said)[1])  # type: ignore[index]
        assert "waiting until it is back" in follower.stderr.readline()
        process.start()
        process.wait_ready()
        described = json.loads(reput("topic", "describe", "t", "-O", "json", server=process.address).stdout)
        end = sum(queue["end"] for queue in described)
        assert stored <= end <= 105_000
        reput("produce", "t", "last", server=process.address)
        for following in (follower, reader):
            assert following.stdout is not None
            assert any(line == "last\n" for line in iter(following.stdout.readline, ""))
        assert process.terminate() == 0
        process.start()
        process.wait_ready()
        reput("produce", "t", "after a clean stop", server=process.address)
        for following in (follower, reader):
            assert following.stdout is not None
            assert following.stderr is not None
            assert following.stdout.readline() == "after a clean stop\n"
            following.send_signal(2)
            assert following.wait(30) == 130
            following.stdout.close()
            following.stderr.close()
        sender.stderr.close()


def test_a_group_continues_where_it_stopped(broker: BrokerProcess) -> None:
    reput("topic", "create", "grouped", "--queues", "1", server=broker.address)
    reput("produce", "grouped", server=broker.address, text="\n".join(map(str, range(6))))

    def read(count: int) -> list[str]:
        arguments = ["consume", "grouped", "-g", "readers", "-e", "-f", "%v", "-n", str(count)]
        return reput(*arguments, server=broker.address).stdout.splitlines()

    assert read(2) == ["0", "1"]
    assert read(3) == ["2", "3", "4"]
    assert read(10) == ["5"]


def test_one_queue_is_read(broker: BrokerProcess) -> None:
    reput("topic", "create", "queues", "--queues", "3", server=broker.address)
    for queue in range(3):
        reput("produce", "queues", f"of {queue}", "--queue", str(queue), server=broker.address)
    read = reput("consume", "queues", "-e", "--queue", "1", "-f", "%v", server=broker.address)
    assert read.stdout == "of 1\n"


def test_tags_are_filtered(broker: BrokerProcess) -> None:
    for tag in ("Aa", "BB", "C"):  # the first two have the same hash
        reput("produce", "tagged", f"body {tag}", "-t", tag, server=broker.address)
    read = reput("consume", "tagged", "-e", "--tag", "Aa || C", "-f", "%v", server=broker.address)
    assert sorted(read.stdout.splitlines()) == ["body Aa", "body C"]


def test_topic_commands(broker: BrokerProcess) -> None:
    assert reput("topic", "create", "life", "--queues", "2", server=broker.address).returncode == 0
    assert reput("topic", "create", "life", "--queues", "2", server=broker.address).returncode == 0
    other = reput("topic", "create", "life", "--queues", "3", server=broker.address)
    assert other.returncode == 1
    assert "reput topic alter life" in other.stderr
    assert reput("topic", "alter", "life", "--queues", "3", server=broker.address).returncode == 0
    listed = json.loads(reput("topic", "list", "-O", "json", server=broker.address).stdout)
    (life,) = (row for row in listed if row["topic"] == "life")
    assert (life["read_queues"], life["write_queues"], life["permission"]) == (3, 3, "rw")
    described = reput("topic", "describe", "life", server=broker.address).stdout.splitlines()
    assert described[0].split("\t") == ["topic", "queue", "start", "end", "messages"]
    assert len(described) == 4
    route = json.loads(reput("topic", "route", "life", "-O", "json", server=broker.address).stdout)
    assert route[0]["address"] == broker.address
    assert reput("topic", "delete", "life", "--dry-run", "--yes", server=broker.address).returncode == 0
    assert reput("topic", "delete", "life", "--yes", server=broker.address).returncode == 0
    assert reput("topic", "describe", "life", server=broker.address).returncode == 5


def test_broker_status_and_health(broker: BrokerProcess) -> None:
    status = json.loads(reput("broker", "status", "-O", "json", server=broker.address).stdout)
    assert status["store"]["end_offset"] >= 0
    url = f"http://127.0.0.1:{broker.http_port}/readyz"
    assert reput("health", "--url", url).returncode == 0
    for path in ("", "/"):
        ready = reput("health", "--url", f"http://127.0.0.1:{broker.http_port}{path}")
        assert (ready.returncode, ready.stdout) == (0, f"ready ({url})\n")
    silent = reput("health", "--url", f"http://127.0.0.1:{free_port()}/readyz")
    assert silent.returncode == 3
    assert "http_port" in silent.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["consume", "no-such-topic", "-e"], 5, "no-such-topic"),
        (["consume", "no-such-topic", "--no-wait"], 5, "no-such-topic"),
        (["topic", "describe", "no-such-topic"], 5, "no-such-topic"),
        (["message", "get", "0A00000200002A9F0000000000FF1000"], 5, "message"),
        (["message", "get", "xyz"], 2, "xyz"),
        (["produce", "bad name", "x"], 2, "bad name"),
        (["produce", "ok", "x", "-k", "two words"], 2, "two words"),
        (["produce", "ok", "x", "-p", "novalue"], 2, "novalue"),
        (["produce", "ok", "x", "-t", ""], 2, "tag"),
        (["produce", "ok", "--json"], 2, "not a message"),
        (["consume", "ok", "-o", "yesterday"], 2, "yesterday"),
        (["consume", "ok", "-f", "%z"], 2, "%z"),
        (["consume", "ok", "--queue", "64"], 2, "topic ok has the queues 0 to 3"),
        (["consume", "ok", "--queue", "0", "-g", "g"], 2, "--queue and --group exclude each other"),
        (["produce", "ok", "x", "--ack", "replicated"], 1, "replica"),
        (["produce"], 2, "TOPIC"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_refusals_have_their_exit_code(broker: BrokerProcess, arguments: list[str], code: int, says: str) -> None:
    server = None if arguments == ["frobnicate"] else broker.address
    reput("produce", "ok", "exists", server=broker.address)
    result = reput(*arguments, server=server, text="{}\n")
    assert result.returncode == code, result.stderr
    assert says.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_wrong_address_and_a_stopped_broker(tmp_path: Path) -> None:
    nobody = reput("produce", "t", "x", server=f"127.0.0.1:{free_port()}")
    assert nobody.returncode == 3
    assert nobody.stderr.startswith("error: ")
    assert len(nobody.stderr.splitlines()) <= 3
    process = BrokerProcess(tmp_path / "store")
    with process:
        assert reput("produce", "t", "x", server=process.address).returncode == 0
    assert reput("produce", "t", "x", server=process.address).returncode == 3
    assert reput("consume", "t", "-e", server=process.address).returncode == 3
    assert reput("topic", "list", server="no-such-host.invalid:1").returncode == 3


def test_on_a_terminal_messages_are_readable_blocks(broker: BrokerProcess) -> None:
    reput("topic", "create", "screen", "--queues", "1", server=broker.address)
    reput("produce", "screen", "two\nlines \x1b[31m", "-t", "red", server=broker.address)
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "reput_cli", "consume", "screen", "-n", "1", "--server", broker.address], stdout=terminal
    )
    assert process.wait(30) == 0
    os.close(terminal)
    shown = os.read(controller, 65_536).decode()
    os.close(controller)
    assert re.match(r"screen-0#0  \d{4}-.*Z  tag=red\r\n    two\r\n    lines \\x1b\[31m\r\n$", shown), shown
    assert "\x1b[31m" not in shown


@pytest.mark.parametrize("group", [[], ["-g", "early"]], ids=["alone", "group"])
def test_a_topic_that_does_not_exist_yet_is_waited_for(broker: BrokerProcess, group: list[str]) -> None:
    topic = "early" + "-group" * len(group)
    arguments = ["consume", topic, *group, "-o", "latest", "-n", "2", "-f", "%v"]
    process = subprocess.Popen(
        [sys.executable, "-m", "reput_cli", *arguments, "--server", broker.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith(f"topic '{topic}' does not exist yet; waiting for it")
    reput("produce", topic, server=broker.address, text="a\nb")
    shown, complaints = process.communicate(timeout=30)
    assert (sorted(shown.split()), complaints, process.returncode) == (["a", "b"], "", 0)


def test_interrupting_a_follower_keeps_what_it_printed(broker: BrokerProcess) -> None:
    import signal

    reput("topic", "create", "followed", "--queues", "1", server=broker.address)
    reput("produce", "followed", server=broker.address, text="a\nb\nc")
    command = [sys.executable, "-m", "reput_cli", "consume", "followed", "-g", "tail", "-f", "%v"]
    process = subprocess.Popen(
        [*command, "--server", broker.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline().strip() for _ in range(3)] == ["a", "b", "c"]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    reput("produce", "followed", "d", server=broker.address)
    again = reput("consume", "followed", "-g", "tail", "-e", "-f", "%v", server=broker.address)
    assert again.stdout.splitlines() == ["d"]


def test_a_reader_that_stops_reading_is_not_an_error(broker: BrokerProcess) -> None:
    reput("produce", "piped-away", server=broker.address, text="\n".join(map(str, range(2_000))))
    for more in ([], ["-g", "head"]):
        command = [sys.executable, "-m", "reput_cli", "consume", "piped-away", "--server", broker.address, *more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(30) == 0
        process.stderr.close()


def test_only_created_topics_are_listed(broker: BrokerProcess) -> None:
    reput("topic", "create", "listed", server=broker.address)
    names = {row["topic"] for row in json.loads(reput("topic", "list", "-O", "json", server=broker.address).stdout)}
    assert "listed" in names
    assert names.isdisjoint({"DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "TBW102"})


def test_bench_measures_and_verifies(broker: BrokerProcess, tmp_path: Path) -> None:
    csv = tmp_path / "figures.csv"
    common = ["--topic", "bench-t", "--msgs", "2000", "--size", "128", "-O", "json"]
    made = reput(
        "bench", "produce", *common, "--batch", "50", "--warmup", "0", "--csv", str(csv), server=broker.address
    )
    row = json.loads(made.stdout)
    assert row["messages"] == 2000
    assert row["errors"] == 0
    assert row["ack"] == "flushed"
    assert row["p99_us"] >= row["p50_us"] > 0
    assert {"cores", "python", "reput"} <= row.keys()
    read = json.loads(reput("bench", "consume", *common, "--verify", server=broker.address).stdout)
    assert (read["messages"], read["errors"]) == (2000, 0)
    assert len(csv.read_text().splitlines()) == 2
    bulk = ("--many", "--batch", "64", "--inflight", "4", "--warmup", "0")
    made = reput("bench", "produce", *common, *bulk, "--topic", "bench-many", server=broker.address)
    assert json.loads(made.stdout)["messages"] == 2000
    many = [*common, "--topic", "bench-many", "--verify"]
    assert json.loads(reput("bench", "consume", *many, server=broker.address).stdout)["messages"] == 2000
    assert reput("bench", "produce", *common, "--size", "4", server=broker.address).returncode == 2
