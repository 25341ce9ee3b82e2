"""`reput broker`, `config` and `client` against a broker in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reput_broker.background import BackgroundBroker
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer, duration_text
from reput_cli.root import root
from reput_client.blocking import Message, Producer
from reput_protocol.errors import BrokerError
from reput_protocol.quantities import size_text


@pytest.fixture
def server(reput_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("REPUT_SERVER", reput_broker.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return reput_broker.address


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, arguments, catch_exceptions=False)


def read(*arguments: str) -> Any:
    return json.loads(run(*arguments, "-O", "json").stdout)


def test_state_intake_and_flush(server: str) -> None:
    status = read("broker", "status")
    assert status["store"]["end_offset"] == 0
    assert status["ready"] is True
    plain = dict(line.split("\t") for line in run("broker", "status").stdout.splitlines())
    assert (plain["state"], plain["ready"], plain["store.topics"]) == ("running", "yes", "0")
    table = run("broker", "status", "-O", "table").stdout
    assert "  log        0 B, all on disk, flush " in table
    with Producer(server) as producer:
        producer.send(Message("t", b"x"))
        assert run("broker", "readonly").stderr == "the broker is read-only\n"
        assert run("broker", "readonly").stderr == "the broker already is read-only\n"
        with pytest.raises(BrokerError, match="READ_ONLY"):
            producer.send(Message("t", b"x"))
        assert "is drained" in run("broker", "drain").stderr
        assert "check intake fails: draining" in run("broker", "status").stderr
        assert run("broker", "drain", "--off").stderr == "the broker takes messages\n"
        producer.send(Message("t", b"x"))
    assert read("broker", "flush")["flushed_offset"] == read("broker", "status")["store"]["end_offset"] > 0


def test_options_are_shown_set_and_refused(server: str) -> None:
    (option,) = read("config", "show", "store.commit_log_file_size")
    assert (option["value"], option["unit"], option["live"]) == (16 << 20, "B", False)
    assert {row["key"].split(".")[0] for row in read("config", "show", "store.*", "topics.*")} == {"store", "topics"}
    assert "topics.auto_create" not in {row["key"] for row in read("config", "show", "--changed")}
    assert read("config", "set", 'topics.default_queues="7"', "shutdown_grace=3s") == [
        {"key": "shutdown_grace", "before": '"20s"', "after": '"3s"', "applied": True},
        {"key": "topics.default_queues", "before": "4", "after": "7", "applied": True},
    ]
    assert read("config", "show", "topics.default_queues")[0]["source"] == "config set"
    assert "nothing changed" in run("config", "set", "shutdown_grace=3s").stderr
    with pytest.raises(BrokerError, match="data_dir: needs a restart"):
        run("config", "set", "data_dir=x")
    with pytest.raises(CommandFailed, match="has no value"):
        run("config", "set", "shutdown_grace")
    with pytest.raises(CommandFailed, match="did you mean 'shutdown_grace'"):
        run("config", "show", "shutdown_grce")
    with pytest.raises(BrokerError, match="no file to read again"):
        run("config", "reload")


def test_a_file_is_checked_with_all_its_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('prot = 1\nshutdown_grace = "3s"\n')
    with pytest.raises(CommandFailed, match="prot: unknown key; did you mean"):
        run("config", "check", "-c", str(file))
    file.write_text('shutdown_grace = "3s"\n')
    shown = read("config", "check", "-c", str(file), "--show")
    assert [(row["key"], row["value"], row["source"]) for row in shown] == [("shutdown_grace", 3.0, str(file))]


def test_clients_are_rows(server: str) -> None:
    with Producer(server, group="p") as producer:
        producer.send(Message("t", b"x"))
        (row,) = read("client", "list", "--role", "producer")
        assert row["address"].startswith("127.0.0.1:")
        assert row["connected_s"] >= row["idle_s"] >= 0
        header, *rows = run("client", "list").stdout.splitlines()
        assert header.split("\t")[:3] == ["role", "client_id", "groups"]
        assert {line.split("\t")[0] for line in rows} >= {"admin", "producer"}


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 1 << 30, 5 << 50)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 GiB", "5.0 PiB"
    ]  # fmt: skip
    assert duration_text(192) == "3m12s"


def test_rates_are_no_durations(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(Settings("", 1.0, "table", False, False, True)).fields(
        {"messages_per_s": 125_000, "client_min_per_s": 90, "duration_s": 192.0}
    )
    shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert {key: value.strip() for key, value in shown.items()} == {
        "messages_per_s": "125,000 msg/s",
        "client_min_per_s": "90 msg/s",
        "duration_s": "3m12s",
    }
