"""Brokers on one machine: other ports follow from that of clients, and keep no other broker from starting."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import structlog

from reput_broker import Broker, BrokerConfig
from reput_broker.server.listener import ListenFailed
from support.broker_process import free_port
from support.inside import status_of

STORE = {"commit_log_file_size": "1MiB", "index": False}


def broker(path: Path, port: int, **options: Any) -> Broker:
    return Broker(BrokerConfig(data_dir=path, port=port, store=STORE, **options), embedded=False)


def listening(broker: Broker) -> dict[str, str | int | None]:
    assert broker.http_address is not None
    return {
        **status_of(broker, "listeners"),
        "ha": broker.ha_address,
        "http": int(broker.http_address.rpartition(":")[2]),
    }


@pytest.mark.trio
async def test_brokers_whose_ports_are_side_by_side_run_at_once(tmp_path: Path) -> None:
    port = free_port()
    async with broker(tmp_path / "one", port) as one:
        assert listening(one) == {
            "main": port,
            "name": port - 1035,
            "fast": port - 2,
            "ha": f"127.0.0.1:{port + 1}",
            "http": port + 2,
        }
        with structlog.testing.capture_logs() as logs:
            async with broker(tmp_path / "two", port + 3) as two:  # its fast_port is the first one's ha_port
                assert set(listening(two)) == {"main", "name", "ha", "http"}
            async with broker(tmp_path / "three", port + 4, http_port=0) as three:
                assert "fast" not in listening(three)
        assert [(log["option"], log["port"], log["instead"]) for log in logs if log["event"] == "port_taken"] == [
            ("fast_port", port + 1, "off"),
            ("fast_port", port + 2, "off"),
        ]


@pytest.mark.trio
async def test_http_takes_a_free_port_if_its_own_is_taken(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as other, structlog.testing.capture_logs() as logs:
        other.bind(("127.0.0.1", port + 2))
        async with broker(tmp_path / "store", port) as one:
            assert listening(one)["http"] not in (None, port + 2)
    [taken] = [log for log in logs if log["event"] == "port_taken"]
    assert taken["option"] == "http_port"
    assert taken["instead"] == one.http_address


@pytest.mark.trio
@pytest.mark.parametrize("named", [True, False])
async def test_a_port_that_is_named_or_needed_ends_the_start(tmp_path: Path, named: bool) -> None:
    port = free_port()
    options: dict[str, Any] = {"ha_port": port + 1} if named else {"ha": {"role": "SYNC_MASTER"}}
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 1))
        with pytest.raises(ListenFailed, match=f"{port + 1}"):
            async with broker(tmp_path / "store", port, **options):
                pass
