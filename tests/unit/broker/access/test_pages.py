"""The pages of the HTTP port under access control."""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from pathlib import Path

import pytest
import trio

from reput_broker.access import pages
from reput_broker.access.model import User
from reput_broker.access.user_file import UserFile
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.console import app
from reput_broker.console.app import needs_admin
from reput_protocol.rights import rule_of
from support.console_client import ConsoleClient

SECRET = "a-secret-of-all"
SEE = ("/metrics", "/metrics/rocketmq", "/status", "/console/", "/console/dialogs.js", "/console/api/topics")
ADMINISTER = (
    "/console/api/find?topic=t&key=k",
    "/console/api/browse?topic=t",
    "/console/api/body?topic=t",
    "/console/api/delayed",
)


@pytest.mark.trio
async def test_pages_need_a_user_and_messages_an_administrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_WRONG_PASSWORD_S", 0.0)
    metrics = User("metrics", SECRET, rules=(rule_of("cluster", ["describe"]),))
    UserFile(tmp_path / "access" / "users.json").change(
        lambda users: users.with_user(metrics).with_user(User("eve", SECRET))
    )
    access = {"enabled": True, "admin_secret": SECRET}
    config = BrokerConfig(data_dir=tmp_path, port=0, http_port=0, ha_port="off", access=access)
    async with Broker(config) as broker:
        assert broker.http_address is not None
        client = ConsoleClient(broker.http_address)

        def status(path: str, user: str | None, secret: str = SECRET, method: str = "GET") -> int:
            coded = b64encode(f"{user}:{secret}".encode()).decode()
            return client.ask(
                method, path, headers={} if user is None else {"Authorization": f"Basic {coded}"}
            ).status

        def look() -> None:
            for path in ("/livez", "/readyz", "/readyz?verbose"):
                assert (path, status(path, None)) == (path, 200)
            described = client.ask("GET", "/readyz?verbose").body
            assert b'"writable"' in described
            assert b"detail" not in described
            assert status("/readyz", "admin", "wrong-secret") == 200
            for path in (*SEE, *ADMINISTER, "/", "/nothing", "/livez/", "//livez", "/console/../metrics"):
                assert (path, status(path, None)) == (path, 401)
                assert (path, status(path, "admin", "wrong-secret")) == (path, 401)
                assert (path, status(path, "eve")) == (path, 403)
            for path in SEE:
                assert (path, status(path, "metrics")) == (path, 200)
            for path in ADMINISTER:
                assert (path, status(path, "metrics")) == (path, 403)
                assert status(path, "admin") not in (401, 403)
            assert status("/console/api/replay", "metrics", method="POST") == 403
            assert status("/console/api/login", None, method="POST") == 401
            assert client.ask("GET", "/status", headers={"Authorization": "Basic %%%"}).status == 401

        await trio.to_thread.run_sync(look)


@pytest.mark.trio
async def test_a_change_in_the_console_is_logged_with_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, object]] = []

    class Log:
        def info(self, event: str, **facts: object) -> None:
            logged.append({"event": event, **facts})

    monkeypatch.setattr(app, "log", Log())
    access = {"enabled": True, "admin_secret": SECRET}
    config = BrokerConfig(data_dir=tmp_path, port=0, http_port=0, ha_port="off", access=access)
    async with Broker(config) as broker:
        assert broker.http_address is not None
        client = ConsoleClient(broker.http_address)
        basic = f"Basic {b64encode(f'admin:{SECRET}'.encode()).decode()}"
        post = partial(client.post, "replay", {"group": "billing"}, Authorization=basic)
        assert (await trio.to_thread.run_sync(post)).status == 200
    assert logged == [
        {
            "event": "console_change",
            "user": "admin",
            "path": "/console/api/replay",
            "group": "billing",
            "peer": "127.0.0.1",
        }
    ]


@pytest.mark.parametrize("path", ["/console/api/find", "/console/api/new", "/console/api/topics/"])
def test_what_is_not_known_to_be_harmless_needs_an_administrator(path: str) -> None:
    assert needs_admin(path)
