"""`make cluster` starts programs again, and finds the master of brokers with users too."""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

_TOOL = Path(__file__).resolve().parents[3] / "tools" / "cluster.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cluster_tool", _TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cluster_tool"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        is_user = given == f"Basic {base64.b64encode(b'admin:a-secret').decode()}"
        self.send_response(200 if is_user else 401)
        self.end_headers()
        assert isinstance(self.server, HTTPServer)
        port = self.server.server_port - 2
        self.wfile.write(json.dumps({"election": {"master": f"127.0.0.1:{port}"}}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a broker whose page /status, two ports on, needs a user."""
    server = HTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port - 2
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["REPUT_SECRET", "REPUT_ACCESS__ADMIN_SECRET"])
def test_the_master_is_found_with_the_users_secret(
    tool: ModuleType, port: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("REPUT_USER", "REPUT_SECRET_FILE", "REPUT_SECRET", "REPUT_ACCESS__ADMIN_SECRET"):
        monkeypatch.delenv(variable, raising=False)
    broker = tool.Broker(0, tmp_path, port, "http://127.0.0.1:1", "127.0.0.1:1")
    with pytest.raises(tool.PageRefused):
        broker.leads()
    secret = tmp_path / "secret"
    secret.write_text("a-secret\n")
    monkeypatch.setenv(f"{name}_FILE", str(secret))
    assert broker.leads()


@pytest.mark.trio
async def test_a_program_that_ends_is_started_again_until_it_is_stopped(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "START_AGAIN_S", 0.0)
    program = tool.Program("short", [sys.executable, "-c", "import sys; sys.exit(3)"], tmp_path)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            program.stop()

    with trio.fail_after(60):
        await program.keep(say)
    ended = "short has ended with 3; it is started again in 0 s"
    assert said == [ended, "short is started again", ended]
