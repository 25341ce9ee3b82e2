"""`reput health`: its exit code, and which port it asks."""

from __future__ import annotations

import io
import urllib.error
from email.message import Message
from typing import Any

import pytest
from click.testing import CliRunner

from reput_cli.failures import CommandFailed
from reput_cli.health import command

NOT_READY = urllib.error.HTTPError("http://x/readyz", 503, "", Message(), io.BytesIO(b"{}"))


@pytest.mark.parametrize(("error", "code"), [(ConnectionRefusedError("no"), 3), (NOT_READY, 1)])
def test_quiet_means_only_the_exit_code(monkeypatch: pytest.MonkeyPatch, error: OSError, code: int) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    quiet = CliRunner().invoke(command, ["-q"], standalone_mode=False)
    assert (quiet.return_value, quiet.output, quiet.exception) == (code, "", None)
    said = CliRunner().invoke(command, [], standalone_mode=False).exception
    assert isinstance(said, CommandFailed)
    assert said.code == code


@pytest.mark.parametrize(
    ("mode", "http_mode", "scheme"),
    [
        ("", "", "http"),
        ("off", "auto", "http"),
        ("required", "", "https"),
        ("permissive", "auto", "https"),
        ("required", "off", "http"),
        ("off", "required", "https"),
    ],
)
def test_a_port_with_tls_is_asked_with_tls_at_once(
    monkeypatch: pytest.MonkeyPatch, mode: str, http_mode: str, scheme: str
) -> None:
    monkeypatch.setenv("REPUT_TLS__MODE", mode)
    monkeypatch.setenv("REPUT_TLS__HTTP_MODE", http_mode)
    monkeypatch.setenv("REPUT_HTTP_PORT", "20913")
    asked = []

    def refuse(url: str, **_options: Any) -> None:
        asked.append(url)
        raise ConnectionRefusedError

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    CliRunner().invoke(command, ["-q"], standalone_mode=False)
    assert asked == [f"{scheme}://127.0.0.1:20913/readyz"]


@pytest.mark.parametrize(
    ("variables", "port"),
    [({}, 10913), ({"REPUT_PORT": "20911"}, 20913), ({"REPUT_PORT": "20911", "REPUT_HTTP_PORT": "30000"}, 30000)],
)
def test_the_port_asked_is_that_of_the_broker_with_these_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], port: int
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked = []

    def refuse(url: str, **_options: Any) -> None:
        asked.append(url)
        raise ConnectionRefusedError

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    CliRunner().invoke(command, ["-q"], standalone_mode=False)
    assert asked == [f"http://127.0.0.1:{port}/readyz"]
