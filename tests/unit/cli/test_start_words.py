"""What `reput serve` and `reput dev` print when they are ready: the console, and the commands to try next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reput_broker.config.model import BrokerConfig
from reput_broker.observe import log
from reput_cli.serve import say_what_next


@pytest.mark.parametrize(
    ("address", "http", "options", "lines"),
    [
        (
            "127.0.0.1:10911", "127.0.0.1:10913", {},
            ["console: http://127.0.0.1:10913/console/", "produce hello 'first message'", "consume hello"],
        ),
        (
            "127.0.0.1:20911", "0.0.0.0:20913", {"tls.http_mode": "required"},
            [
                "console: https://127.0.0.1:20913/console/",
                "produce hello 'first message' --server 127.0.0.1:20911",
                "consume hello --server 127.0.0.1:20911",
            ],
        ),
        ("127.0.0.1:10911", None, {}, ["produce hello 'first message'", "consume hello"]),
        (
            "127.0.0.1:10911", "127.0.0.1:1", {"console.enabled": False, "access.enabled": True},
            ["produce hello 'first message' --user NAME", "consume hello --user NAME"],
        ),
    ],
)  # fmt: skip
def test_the_console_and_the_next_commands(
    monkeypatch: pytest.MonkeyPatch, address: str, http: str | None, options: dict[str, Any], lines: list[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "write_line", said.append)
    config = BrokerConfig()
    for option, value in options.items():
        section, _, name = option.partition(".")
        part = getattr(config, section).model_copy(update={name: value})
        config = config.model_copy(update={section: part})
    broker: Any = SimpleNamespace(config=config, address=address, http_address=http)
    say_what_next(broker)
    assert [line.strip().removeprefix("try:").strip().removeprefix("reput ") for line in said] == lines
