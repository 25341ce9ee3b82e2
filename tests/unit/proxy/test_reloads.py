"""Files that a proxy reads again: what it logs while they cannot be used."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest

from reput_proxy import server
from reput_proxy.server import tls_credentials
from reput_proxy.users import Users, UsersUnreadable
from support.tls_files import make_tls_files


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.msg for record in caplog.records if record.name == "reput_proxy"]


def test_a_certificate_that_cannot_be_used_is_logged_once_and_not_for_each_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reput_proxy")
    connects: list[Any] = []

    def credentials(_first: object, changed: Any, *, require_client_authentication: bool) -> None:
        connects.append(changed)

    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", credentials)
    files = make_tls_files(tmp_path)
    tls_credentials(files.broker, None, None)
    [connect] = connects
    good = files.broker.read_bytes()
    for data in (b"damaged", good, b"damaged", None, files.foreign.read_bytes()):
        if data is None:
            files.broker.unlink()
        else:
            files.broker.write_bytes(data)
        assert (connect() is not None) is (data is not None and data != b"damaged")
        assert connect() is None
        assert connect() is None
    failed, renewed = "tls_reload_failed", "tls_reloaded"
    assert events(caplog) == [failed, renewed, failed, failed, renewed]


def test_users_that_cannot_be_read_are_logged_once_for_each_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = iter(["a", "a", None, "a", "b", "b"])

    class Unreadable(Users):
        def __init__(self) -> None:
            pass

        def refresh(self) -> None:
            reason = next(reasons)
            if reason is not None:
                raise UsersUnreadable(reason)

    monkeypatch.setattr(server, "_WATCH_S", 0.0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(server._watch(Unreadable(), lambda: None))
    assert [record.facts["error"] for record in caplog.records] == ["a", "a", "b"]  # type: ignore[attr-defined]


def test_a_missing_file_of_users_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UsersUnreadable, match=r"reput user create NAME --file .*users\.json"):
        Users(tmp_path / "users.json")
