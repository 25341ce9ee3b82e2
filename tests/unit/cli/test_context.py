"""Named connection profiles: their file and its rights, and which server a command connects to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reput_cli.connection import chosen_server, load_contexts, tls_of
from reput_cli.failures import CommandFailed
from reput_cli.root import root
from reput_client import TLS
from reput_protocol.exit_codes import ExitCode


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the contexts are."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("REPUT_SERVER", "REPUT_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "reput" / "contexts.toml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["context", *arguments], catch_exceptions=False)


def test_contexts_are_added_used_shown_and_removed(file: Path) -> None:
    assert json.loads(run("list", "-O", "json").output) == []
    assert "in use" in run("add", "prod", "--server", "a:1,b:2", "--timeout", "10s").stderr
    assert "in use" not in run("add", "a b\n'", "--server", "c").stderr
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(run("list", "-O", "json").output) == [
        {"context": "a b\n'", "in_use": False, "server": "c", "timeout": None, "user": None},
        {"context": "prod", "in_use": True, "server": "a:1,b:2", "timeout": "10s", "user": None},
    ]
    run("use", "a b\n'")
    assert json.loads(run("show", "-O", "json").output) == {"context": "a b\n'", "in_use": True, "server": "c"}
    run("remove", "a b\n'")
    assert run("remove", "a b\n'").exit_code == 0
    with pytest.raises(CommandFailed, match="no context is in use"):
        run("show")
    with pytest.raises(CommandFailed, match="did you mean 'prod'"):
        run("use", "prd")
    assert not list(file.parent.glob("contexts.toml.*"))


@pytest.mark.parametrize(
    ("arguments", "says"), [(["add", "x", "--server", "http://a"], "is a URL"), (["add", "x"], "--server")]
)
def test_a_context_that_cannot_work_is_not_added(file: Path, arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    with pytest.raises(CommandFailed, match="the unit is missing"):
        run("add", "x", "--server", "a", "--timeout", "10")
    assert not file.exists()


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o602, 0o640])
def test_a_file_that_others_may_read_or_write_is_refused(file: Path, mode: int) -> None:
    run("add", "prod", "--server", "a")
    file.chmod(mode)
    with pytest.raises(CommandFailed) as refused:
        run("list")
    assert refused.value.code == ExitCode.NOT_AUTHORISED
    assert refused.value.reason is not None
    assert f"its rights are {mode:04o}" in refused.value.reason
    assert refused.value.remedy == f"chmod 600 {file}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[contexts.a]\nsevrer = 'a'", "did you mean 'server'"),
        ("[contexts.a]\nserver = 1", "is a text in quotes"),
        ("contexts = 1", "table of tables"),
        ("[context.a]", "unknown key 'context'"),
        ("current = 1", "name of a context"),
        ("a = [", "nvalid value"),
        ("\xff", "utf-8"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_the_reason(file: Path, text: str, says: str) -> None:
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    file.chmod(0o600)
    with pytest.raises(CommandFailed, match="is not valid") as refused:
        load_contexts()
    assert says in (refused.value.reason or "")


def test_a_flag_precedes_the_environment_and_that_the_context_in_use() -> None:
    assert chosen_server((), None, {}) == ("127.0.0.1:10911", {})
    run("add", "one", "--server", "one:1", "--timeout", "1s")
    run("add", "two", "--server", "two:2")
    one, two = {"server": "one:1", "timeout": "1s"}, {"server": "two:2"}
    assert chosen_server((), None, {}) == ("one:1", one)
    assert chosen_server((), None, {"REPUT_CONTEXT": "two"}) == ("two:2", two)
    assert chosen_server((), None, {"REPUT_CONTEXT": "two", "REPUT_SERVER": "env:3"}) == ("env:3", {})
    assert chosen_server((), "one", {"REPUT_CONTEXT": "two", "REPUT_SERVER": "env:3"}) == ("one:1", one)
    assert chosen_server(("a:4", "b:5"), None, {"REPUT_SERVER": "env:3"}) == ("a:4,b:5", {})
    assert chosen_server(("a:4",), "one", {}) == ("a:4", one)
    with pytest.raises(CommandFailed, match="there is no context 'three'"):
        chosen_server((), None, {"REPUT_CONTEXT": "three"})


def test_a_context_says_how_to_encrypt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run("add", "secure", "--server", "one:1", "--tls-ca", "ca.pem", "--tls-server-name", "broker")
    shown = json.loads(run("show", "-O", "json").output)
    assert (shown["tls_ca"], shown["tls_server_name"]) == (str(tmp_path / "ca.pem"), "broker")
    _, values = chosen_server((), None, {})
    assert tls_of({}, values) == TLS(ca=str(tmp_path / "ca.pem"), server_name="broker")
    assert tls_of({"tls_ca": "other.pem"}, values) == TLS(ca="other.pem", server_name="broker")
    assert tls_of({"tls": True}, {}) == TLS()
    assert tls_of({}, {}) is None
    assert run("add", "x", "--server", "a", "--tls-key", "k").exit_code == 2


def test_a_server_of_the_environment_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPUT_SERVER", "http://a")
    result = CliRunner().invoke(root, ["topic", "list"])
    assert result.exit_code == 2
    assert "REPUT_SERVER is not valid" in result.stderr
