"""The pages of the HTTP port under access control."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.access import pages
from reput_broker.access.model import User, Users
from reput_broker.access.user_file import UserFile
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.console import app, members
from reput_broker.console.app import Console
from reput_broker.console.members import Members
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import Health
from reput_broker.observe.history.recorder import History
from reput_broker.observe.metrics import MetricsSources
from reput_client import Message, Producer
from reput_client.security import Credentials
from reput_protocol.rights import rule_of
from support.console_client import Answer, ConsoleClient

SECRET = "a-secret-of-all"
SEE = ("/metrics", "/metrics/rocketmq", "/status", "/console/events", "/nothing")
FRAME = ("/console/", "/console/login.html", "/console/dialogs.js", "/console/api/session")
"""The console's files and its login, which show nothing of the broker."""
CLUSTER = ("topics", "groups", "clients", "store", "dead-letters")
"""Pages about the whole broker."""


def basic(user: str, secret: str = SECRET) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{user}:{secret}'.encode()).decode()}"}


@asynccontextmanager
async def guarded_broker(data_dir: Path, *users: User, **options: Any) -> AsyncIterator[Broker]:
    file = UserFile(data_dir / "access" / "users.json")
    for user in users:
        file.change(partial(Users.with_user, user=user))
    access = {"enabled": True, "admin_secret": SECRET}
    config = BrokerConfig(data_dir=data_dir, port=0, http_port=0, ha_port="off", access=access, **options)
    async with Broker(config) as broker:
        yield broker


@pytest.mark.trio
async def test_pages_need_a_user_and_those_of_the_broker_its_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_WRONG_PASSWORD_S", 0.0)
    metrics = User("metrics", SECRET, rules=(rule_of("cluster", ["describe"]),))
    async with guarded_broker(tmp_path, metrics, User("eve", SECRET)) as broker:
        assert broker.http_address is not None
        client = ConsoleClient(broker.http_address)
        strangers = map("stranger-{}".format, range(50))  # an address may try five secrets of a user

        def status(path: str, user: str | None, secret: str = SECRET, method: str = "GET") -> int:
            method = "HEAD" if path == "/console/events" and method == "GET" else method
            return client.ask(method, path, headers={} if user is None else basic(user, secret)).status

        def look() -> None:
            for path in ("/livez", "/readyz", "/readyz?verbose"):
                assert (path, status(path, None)) == (path, 200)
            described = client.ask("GET", "/readyz?verbose").body
            assert b'"writable"' in described
            assert b"detail" not in described
            assert status("/readyz", "admin", "wrong-secret") == 200
            about_all = [f"/console/api/{name}" for name in CLUSTER]
            for path in (*SEE, *about_all, "/livez/", "//livez"):
                assert (path, status(path, None)) == (path, 401)
                assert (path, status(path, next(strangers), "wrong-secret")) == (path, 401)
            for path in FRAME:
                assert (path, status(path, None)) == (path, 200)
                assert (path, status(path, next(strangers), "wrong-secret")) == (path, 401)
            assert "www-authenticate" in client.ask("GET", "/metrics").headers
            for path in ("/console/events", *about_all):  # the browser's dialog would hide the page of the login
                assert "www-authenticate" not in client.ask("GET", path).headers
            for path in (*SEE, *about_all, "/livez/", "//livez"):
                assert (path, status(path, "eve")) == (path, 403)
            for path in (*SEE[:4], *FRAME, *about_all):
                assert (path, status(path, "metrics")) == (path, 200)
            assert all(status(path, "eve") == 200 for path in FRAME)
            assert status("/console/../metrics", "eve") == 404
            assert status("/console/api/actions/replay-dead-letters", None, method="POST") == 401
            assert client.ask("GET", "/status", headers={"Authorization": "Basic %%%"}).status == 401
            tried = [status("/metrics", "metrics", "wrong-secret") for _ in range(6)]
            assert tried == [401] * 5 + [429]
            assert status("/metrics", "metrics") == 429, "the right one does not count then either"

        await trio.to_thread.run_sync(look)


@pytest.mark.trio
async def test_the_console_shows_and_changes_what_its_user_may(tmp_path: Path) -> None:
    """Also to a user who may administer the cluster: a denial on a topic counts."""
    auditor = User(
        "auditor",
        SECRET,
        rules=(
            rule_of("cluster", ["describe", "admin"]),
            rule_of("topic:*", ["read"]),
            rule_of("topic:secret", ["read"], is_denial=True),
        ),
    )
    clerk = User("clerk", SECRET, rules=(rule_of("topic:orders", ["read"]),))
    async with guarded_broker(tmp_path, auditor, clerk) as broker:
        assert broker.http_address is not None
        client = ConsoleClient(broker.http_address)
        credentials = Credentials("admin", SECRET)
        ids = {}
        async with Producer(broker.address, credentials=credentials) as producer:
            for topic in ("orders", "secret"):
                sent = await producer.send(Message(topic, b"body", keys=["k"]))
                ids[topic] = sent.offset_message_id

        def paths(topic: str) -> list[str]:
            return [
                client.path("browse", topic=topic),
                client.path("find", topic=topic, key="k"),
                client.path("message", id=ids[topic]),
                client.path("body", id=ids[topic]),
            ]

        def look() -> None:
            for user in ("auditor", "clerk"):
                for path in paths("orders"):
                    assert client.ask("GET", path, headers=basic(user)).status == 200, (user, path)
                for path in paths("secret"):
                    refused = client.ask("GET", path, headers=basic(user))
                    assert refused.status == 403, (user, path)
                    assert b"body" not in refused.body
            values = {"values": {"group": "g", "offsets": "0"}}
            refused = client.post("actions/replay-dead-letters", values, **basic("clerk"))
            assert refused.status == 403, refused
            assert "lacks the right" in refused.members["error"]
            # Answers that browsers share are not shared by users.
            groups = client.path("groups")
            assert client.ask("GET", groups, headers=basic("auditor")).status == 200
            assert client.ask("GET", groups, headers=basic("clerk")).status == 403

        await trio.to_thread.run_sync(look)


@pytest.mark.trio
async def test_a_change_in_the_console_is_logged_with_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, object]] = []

    class Log:
        def info(self, event: str, **facts: object) -> None:
            logged.append({"event": event, **facts})

    monkeypatch.setattr(app, "log", Log())
    async with guarded_broker(tmp_path) as broker:
        assert broker.http_address is not None
        client = ConsoleClient(broker.http_address)
        values = {"values": {"group": "billing"}}
        post = partial(client.post, "actions/create-group", values, **basic("admin"))
        assert (await trio.to_thread.run_sync(post)).status == 200
    assert logged == [
        {
            "event": "console_change",
            "user": "admin",
            "action": "create-group",
            "group": "billing",
            "peer": "127.0.0.1",
            "outcome": "done",
        }
    ]


def test_live_numbers_are_no_request_and_need_the_right_to_describe_the_cluster() -> None:
    sources = MetricsSources(BrokerConfig(), Counters(), Health())
    console = Console(sources, History(sources), lambda: None)
    for path in ("/console/events", "/metrics", "/console/../metrics"):
        assert not console.asks_as_its_user(path)
    for path in ("/console/events", "/metrics", "/console/api/find", "/console/api/login/../find"):
        assert not console.is_open(path)
    assert console.asks_as_its_user("/console/api/find")


@pytest.mark.trio
async def test_pages_of_another_broker_have_the_rights_that_their_user_has_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_WATCH_S", 0.1)
    eve = User("eve", SECRET)
    sees = User("eve", SECRET, rules=(rule_of("cluster", ["describe"]),))
    async with AsyncExitStack() as brokers:
        here = await brokers.enter_async_context(guarded_broker(tmp_path / "a", sees))
        there = await brokers.enter_async_context(
            guarded_broker(tmp_path / "b", eve, broker_name="broker-b", name_servers=[here.address])
        )
        assert here.http_address is not None
        client = ConsoleClient(here.http_address)

        def ask(name: str, user: str, **values: object) -> Answer:
            return client.ask("GET", client.path(name, **values), headers=basic(user))

        def look() -> None:
            assert ask("clients", "admin", member=there.address).status == 200
            assert ask("history", "admin", member=there.address).members["is_kept"]
            assert ask("clients", "eve").status == 200
            assert ask("clients", "eve", member=there.address).status == 403
            rows = {row["broker"]: row for row in ask("brokers", "eve").members["brokers"]}
            assert rows["broker-a"]["figures"]
            assert (rows["broker-b"]["figures"], rows["broker-b"]["away_ms"]) == (None, None)
            assert "describe" in rows["broker-b"]["error"]
            rows = {row["broker"]: row for row in ask("brokers", "admin").members["brokers"]}
            assert rows["broker-b"]["figures"]

        def is_listed() -> bool:
            return len(ask("brokers", "admin").members["brokers"]) == 2

        with trio.fail_after(20):
            while not await trio.to_thread.run_sync(is_listed):
                await trio.sleep(0.05)
        await trio.to_thread.run_sync(look)


@pytest.mark.trio
async def test_no_request_is_signed_for_what_only_a_name_server_without_tls_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that may register there, or is on the way, names an address of its own."""
    monkeypatch.setattr(members, "_WATCH_S", 0.1)
    collected: list[bytes] = []
    rounds = 0
    end_round = Members._forget

    def count_round(self: Members) -> None:
        nonlocal rounds
        rounds += 1
        end_round(self)

    monkeypatch.setattr(Members, "_forget", count_round)

    async def collect(stream: trio.SocketStream) -> None:
        collected.append(await stream.receive_some())

    async with trio.open_nursery() as nursery, AsyncExitStack() as brokers:
        (listener,) = await nursery.start(partial(trio.serve_tcp, collect, 0, host="127.0.0.1"))
        rogue = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        open_to_all = partial(BrokerConfig, port=0, ha_port="off", http_port="off")
        names = await brokers.enter_async_context(Broker(open_to_all(data_dir=tmp_path / "names", broker_name="names")))
        await brokers.enter_async_context(
            Broker(
                open_to_all(
                    data_dir=tmp_path / "rogue", broker_name="rogue", name_servers=[names.address], advertise=rogue
                )
            )
        )
        here = await brokers.enter_async_context(
            guarded_broker(tmp_path / "here", broker_name="here", name_servers=[names.address])
        )
        assert here.http_address is not None
        client = ConsoleClient(here.http_address)

        def rows() -> dict[str, Any]:
            answer = client.ask("GET", client.path("brokers"), headers=basic("admin"))
            return {row["address"]: row for row in answer.members["brokers"]}

        def look() -> None:
            found = rows()[rogue]
            assert (found["figures"], found["away_ms"]) == (None, None)
            assert "only a name server without TLS lists it" in found["error"]
            asked = client.ask("GET", client.path("topics", member=rogue), headers=basic("admin"))
            assert (asked.status, "is not asked" in asked.members["error"]) == (403, True)
            assert rows()[names.address]["figures"], "its address is in the configuration"

        with trio.fail_after(20):
            while rogue not in await trio.to_thread.run_sync(rows):
                await trio.sleep(0.05)
            rounds = 0
            while rounds < 2:  # in the second one, all that may be asked are
                await trio.sleep(0.05)
            await trio.to_thread.run_sync(look)
        assert collected == []
        nursery.cancel_scope.cancel()
