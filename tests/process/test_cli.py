"""The command line against a real broker process: piped, as JSON, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cli") / "store") as process:
        yield process


def reput(
    *arguments: str, server: str | None = None, text: str | None = None, timeout: float = 30.0
) -> subprocess.CompletedProcess[str]:
    where = ["--server", server] if server else []
    return subprocess.run(
        [sys.executable, "-m", "reput_cli", *arguments, *where],
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_lines_of_standard_input_come_back_as_json_lines(broker: BrokerProcess) -> None:
    lines = [f"line {n}" for n in range(500)]
    sent = reput(
        "produce", "piped", "-t", "t1", "-k", "k1", "-p", "a=b", server=broker.address, text="\n".join(lines)
    )
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


def test_json_input_is_json_output(broker: BrokerProcess) -> None:
    first = [{"body": f"b{n}", "tag": "x", "keys": [f"k{n}"], "properties": {"n": str(n)}} for n in range(3)]
    first.append({"body_base64": "AP8="})
    sent = reput(
        "produce",
        "json-in",
        "--json",
        server=broker.address,
        text="".join(json.dumps(m) + "\n" for m in first),
    )
    assert sent.returncode == 0, sent.stderr
    dumped = reput("consume", "json-in", "-e", "-O", "jsonl", server=broker.address).stdout
    again = reput("produce", "json-again", "--json", server=broker.address, text=dumped)
    assert again.returncode == 0, again.stderr
    read = reput("consume", "json-again", "-e", server=broker.address).stdout
    fields = [json.loads(line) for line in read.splitlines()]
    assert sorted(m.get("body", m.get("body_base64")) for m in fields) == ["AP8=", "b0", "b1", "b2"]
    assert {m["properties"].get("n") for m in fields} == {"0", "1", "2", None}


def test_positions_and_formats(broker: BrokerProcess) -> None:
    reput("topic", "create", "positions", "--queues", "1", server=broker.address)
    reput("produce", "positions", server=broker.address, text="\n".join(map(str, range(10))))

    def read(*arguments: str) -> list[str]:
        return reput(
            "consume", "positions", "-e", "-f", "%v", *arguments, server=broker.address
        ).stdout.splitlines()

    assert read() == [str(n) for n in range(10)]
    assert read("-o", "-3") == ["7", "8", "9"]
    assert read("-o", "4:6") == ["4", "5"]
    assert read("-o", "@-15m") == [str(n) for n in range(10)]
    assert read("-n", "2") == ["0", "1"]
    formatted = reput(
        "consume", "positions", "-n", "1", "-f", r"%t/%q/%o\t%v{hex}%%", server=broker.address
    ).stdout
    assert formatted == "positions/0/0\t30%\n"


def test_a_group_goes_on_where_it_stopped(broker: BrokerProcess) -> None:
    reput("topic", "create", "grouped", "--queues", "1", server=broker.address)
    reput("produce", "grouped", server=broker.address, text="\n".join(map(str, range(6))))

    def read(count: int) -> list[str]:
        arguments = ["consume", "grouped", "-g", "readers", "-e", "-f", "%v", "-n", str(count)]
        return reput(*arguments, server=broker.address).stdout.splitlines()

    assert read(2) == ["0", "1"]
    assert read(3) == ["2", "3", "4"]
    assert read(10) == ["5"]


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
    assert {"topic": "life", "read_queues": 3, "write_queues": 3, "permission": "rw"} in listed
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
    assert int(status["commitLogMaxOffset"]) >= 0
    url = f"http://127.0.0.1:{broker.http_port}/readyz"
    assert reput("health", "--url", url).returncode == 0
    assert reput("health", "--url", f"http://127.0.0.1:{free_port()}/readyz").returncode == 3


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["consume", "no-such-topic", "-e"], 5, "no-such-topic"),
        (["topic", "describe", "no-such-topic"], 5, "no-such-topic"),
        (["message", "get", "0A00000200002A9F0000000000FF1000"], 5, "message"),
        (["message", "get", "xyz"], 2, "xyz"),
        (["produce", "bad name", "x"], 2, "bad name"),
        (["produce", "ok", "x", "-k", "two words"], 2, "two words"),
        (["produce", "ok", "x", "-p", "novalue"], 2, "novalue"),
        (["produce", "ok", "x", "-t", ""], 2, "tag"),
        (["produce", "ok", "--json"], 2, "no message"),
        (["consume", "ok", "-o", "yesterday"], 2, "yesterday"),
        (["consume", "ok", "-f", "%z"], 2, "%z"),
        (["produce", "ok", "x", "--ack", "replicated"], 1, "replica"),
        (["produce"], 2, "TOPIC"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_refusals_have_their_exit_code(
    broker: BrokerProcess, arguments: list[str], code: int, says: str
) -> None:
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
        [sys.executable, "-m", "reput_cli", "consume", "screen", "-n", "1", "--server", broker.address],
        stdout=terminal,
    )
    assert process.wait(30) == 0
    os.close(terminal)
    shown = os.read(controller, 65_536).decode()
    os.close(controller)
    assert re.match(r"screen-0#0  \d{4}-.*Z  tag=red\r\n    two\r\n    lines \\x1b\[31m\r\n$", shown), shown
    assert "\x1b[31m" not in shown


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


def test_a_reader_that_stops_reading_is_no_error(broker: BrokerProcess) -> None:
    reput("produce", "piped-away", server=broker.address, text="\n".join(map(str, range(2_000))))
    for more in ([], ["-g", "head"]):
        command = [
            sys.executable,
            "-m",
            "reput_cli",
            "consume",
            "piped-away",
            "--server",
            broker.address,
            *more,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(30) == 0
        process.stderr.close()


def test_only_topics_that_somebody_made_are_listed(broker: BrokerProcess) -> None:
    reput("topic", "create", "listed", server=broker.address)
    names = {
        row["topic"] for row in json.loads(reput("topic", "list", "-O", "json", server=broker.address).stdout)
    }
    assert "listed" in names
    assert names.isdisjoint({"DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "TBW102"})


def test_bench_measures_and_verifies(broker: BrokerProcess, tmp_path: Path) -> None:
    csv = tmp_path / "figures.csv"
    common = ["--topic", "bench-t", "--msgs", "2000", "--size", "128", "-O", "json"]
    made = reput(
        "bench",
        "produce",
        *common,
        "--batch",
        "50",
        "--warmup",
        "0",
        "--csv",
        str(csv),
        server=broker.address,
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
    assert reput("bench", "produce", *common, "--size", "4", server=broker.address).returncode == 2
