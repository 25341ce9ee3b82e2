"""The console of a broker that does not serve yet: its page and live numbers are there, its data are not."""

from __future__ import annotations

import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.console.app import Console
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import Health
from reput_broker.observe.history.recorder import History
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.pages import make_app
from reput_broker.server.http_server import serve_http
from support.console_client import ConsoleClient

TOKEN = "a-token-of-a-test-0123456789"


def test_pages_say_what_they_wait_for() -> None:
    def look(console: ConsoleClient) -> None:
        assert console.ask("GET", "/console/").status == 200
        assert console.ask("HEAD", "/console/events").status == 200
        for name in (
            "topics",
            "groups",
            "dead-letters",
            "clients",
            "store",
            "cluster",
            "delayed",
            "history",
            "brokers",
        ):
            answer = console.refused(name)
            assert (answer.status, answer.members["error"]) == (
                503,
                "the broker is recovering; this page shows its data once it serves",
            )
        assert console.post("login", {"secret": TOKEN}).status == 200
        assert console.post("actions/replay-dead-letters", {"values": {"group": "billing"}}).status == 503

    async def main() -> None:
        sources = MetricsSources(BrokerConfig(console={"token": TOKEN}), Counters(), Health())
        app = make_app(sources, routes=Console(sources, History(sources), lambda: None).routes())
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(serve_http, app, "127.0.0.1", 0)
            await trio.to_thread.run_sync(look, ConsoleClient(f"{host}:{port}"))
            nursery.cancel_scope.cancel()

    trio.run(main)
