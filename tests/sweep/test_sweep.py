"""The quick form of `make soak KIND=sweep`, and that it notices a request that nothing checks."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_broker.access import requests
from reput_broker.access.user_file import UserFile
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import HeaderType
from sweep.course import sweep
from sweep.stranger import Stranger
from sweep.world import ADMIN, World, with_stranger


@pytest.mark.process
def test_a_stranger_changes_and_learns_nothing_of_others(tmp_path: Path) -> None:
    """All fields in all types of header, and each property alone."""
    assert [*sweep(tmp_path, tuple(HeaderType), (HeaderType.MSGPACK,), quick=True)] == []


@pytest.mark.trio
async def test_a_request_that_nothing_checks_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = requests.Requirement("any user", lambda _: ())
    required = {**requests._REQUIREMENTS, RequestCode.GET_CONSUME_STATS: open_to_all}
    monkeypatch.setattr(requests, "_REQUIREMENTS", required)
    UserFile(tmp_path / "access" / "users.json").change(with_stranger)
    config = BrokerConfig(
        data_dir=tmp_path, port=0, ha_port="off", access={"enabled": True, "admin_secret": ADMIN.secret}
    )

    def try_fields(address: str) -> list[str]:
        world = World(address)
        with Stranger(address, HeaderType.JSON) as stranger:
            stranger.try_fields()
        world.close()
        return stranger.wrong

    async with Broker(config) as broker:
        wrong = await trio.to_thread.run_sync(try_fields, broker.address)
    assert wrong
    assert all(text.startswith("GET_CONSUME_STATS ") for text in wrong)
    assert any("topicList: not refused" in text for text in wrong)
