"""Signals of a broker in the foreground."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from signal import SIGHUP, SIGINT, SIGTERM
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from reput_broker import serve
from reput_broker.config.model import BrokerConfig
from reput_broker.serve import ServiceManager


class Ended(Exception):
    """Stands for the end of the process."""


def obeyed(monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals, reloads: bool = False) -> tuple[int, int, bool]:
    """Return how often the broker was stopped and its configuration read, and whether it ended at once."""
    stops: list[str] = []
    loads: list[str] = []

    async def signals() -> AsyncIterator[int]:
        for number in numbers:
            yield number

    def load() -> BrokerConfig:
        loads.append("read")
        return BrokerConfig()

    def end(_status: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    sources = SimpleNamespace()
    monkeypatch.setattr(serve, "LiveConfig", lambda _config, load, _sources: SimpleNamespace(reload=load))
    broker: Any = SimpleNamespace(stop=lambda: stops.append("stop"), config=BrokerConfig(), sources=sources)
    try:
        trio.run(serve._obey, signals(), broker, load if reloads else None, ServiceManager({}))
    except Ended:
        return len(stops), len(loads), True
    return len(stops), len(loads), False


def test_a_closed_terminal_ends_a_broker_without_a_configuration_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # The shell and the kernel send one each.
    assert obeyed(monkeypatch, SIGHUP, SIGHUP) == (1, 0, False)
    assert obeyed(monkeypatch, SIGINT, SIGHUP) == (1, 0, False)


def test_a_daemon_reads_its_configuration_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert obeyed(monkeypatch, SIGHUP, SIGHUP, reloads=True) == (0, 2, False)


@pytest.mark.parametrize("reloads", [False, True])
def test_a_second_signal_to_end_ends_at_once(monkeypatch: pytest.MonkeyPatch, reloads: bool) -> None:
    assert obeyed(monkeypatch, SIGTERM, SIGINT, reloads=reloads)[2]
