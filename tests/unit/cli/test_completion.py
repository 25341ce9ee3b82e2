"""Completion of commands, options, topics and groups; in bash itself where there is one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from reput_broker.background import BackgroundBroker
from reput_cli import completion
from reput_cli.root import root
from reput_client.blocking import Admin
from reput_protocol.commands.group import SubscriptionGroupConfig


def complete(*words: str) -> list[str]:
    *before, incomplete = words
    found = ShellComplete(root, {}, "reput", "_REPUT_COMPLETE").get_completions(before, incomplete)
    return [item.value for item in found]


@pytest.fixture
def server(reput_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.delenv("REPUT_SERVER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(completion, "WAIT_S", 30.0)  # a busy machine
    with Admin(reput_broker.address) as admin:
        for topic in ("orders", "orders-eu", "payments", "a|b"):
            admin.create_topic(topic)
        admin.put_group(SubscriptionGroupConfig("billing"))
    return reput_broker.address


def test_commands_are_completed_without_importing_them() -> None:
    assert complete("con") == ["consume", "config", "context"]
    assert complete("broker", "dr") == ["drain"]
    assert complete("produce", "--ac") == ["--ack"]
    assert complete("generate", "completion", "") == ["bash", "zsh", "fish"]


def test_names_come_from_the_broker(server: str) -> None:
    assert complete("topic", "describe", "--server", server, "ord") == ["orders", "orders-eu"]
    # A name with a character that the shell interprets is left out.
    assert complete("consume", "--server", server, "") == ["orders", "orders-eu", "payments"]
    assert complete("group", "describe", "--server", server, "b") == ["billing"]
    assert "%RETRY%billing" not in complete("topic", "describe", "--server", server, "")


def test_contexts_are_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert complete("context", "use", "") == []
    file = tmp_path / "reput" / "contexts.toml"
    file.parent.mkdir()
    file.write_text("[contexts.prod]\nserver = 'a'\n")
    file.chmod(0o600)
    assert complete("context", "use", "p") == ["prod"]
    assert complete("topic", "list", "--context", "p") == ["prod"]
    file.chmod(0o644)
    assert complete("context", "use", "p") == []


def test_without_an_answer_nothing_is_offered_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert complete("topic", "describe", "--server", address, "") == []
    assert complete("topic", "describe", "--server", address, "") == []  # refuses the connection
    assert complete("topic", "describe", "--context", "nowhere", "") == []
    assert capfd.readouterr() == ("", "")


def test_the_wait_for_names_is_bounded() -> None:
    never = threading.Event()
    try:
        assert completion._within(0.01, lambda: [str(never.wait())]) == []
    finally:
        never.set()
    assert completion.WAIT_S == 0.5


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_topics(server: str, tmp_path: Path) -> None:
    program = tmp_path / "reput"
    program.write_text(
        f"#!{sys.executable}\nimport reput_cli.completion as c\nc.WAIT_S = 30.0\n"
        "from reput_cli.main import main\nmain()\n"
    )
    program.chmod(0o755)
    script = (
        'eval "$(reput generate completion bash)"\n'
        'COMP_WORDS=(reput topic describe ord); COMP_CWORD=3; _reput_completion reput; echo "${COMPREPLY[@]}"\n'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "REPUT_SERVER": server}
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == "orders orders-eu\n", done.stderr
    assert done.stderr == ""
