"""The engine on etcd: with a real one on loopback where the machine has it, and with a gateway that misbehaves."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trio

from reput_broker.ha.election.endpoints import Endpoints, tls_context
from reput_broker.ha.election.engine import EngineUnavailable, GroupRecord, Leader, LeaseLost
from reput_broker.ha.election.etcd import EtcdEngine
from support.broker_process import free_port
from support.etcd_process import MISSING, Etcd

needs_etcd = pytest.mark.skipif(bool(MISSING), reason=MISSING)
ONE, TWO = Leader(1, "a:10911", "a:10912"), Leader(2, "b:10911", "b:10912")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    started = Etcd(tmp_path_factory.mktemp("etcd"))
    started.start()
    yield started
    started.stop()


def engine(*addresses: str, group: str = "g", lease_s: float = 5.0, **options: Any) -> EtcdEngine:
    return EtcdEngine(addresses, cluster="c", broker_name=group, lease_s=lease_s, **options)


async def taken(one: EtcdEngine, leader: Leader = ONE) -> GroupRecord:
    record = await one.take(await one.read(), GroupRecord(1, frozenset({1, 2}), leader=leader))
    assert record is not None
    return record


@needs_etcd
@pytest.mark.process
@pytest.mark.trio
async def test_one_of_two_takes_and_only_the_leader_writes(etcd: Etcd) -> None:
    one, two = engine(etcd.address, group="take"), engine(etcd.address, group="take")
    seen = await two.read()
    assert seen == GroupRecord()
    record = await taken(one)
    assert await two.read() == record == GroupRecord(1, frozenset({1, 2}), leader=ONE)
    assert await two.take(seen, GroupRecord(1, frozenset({2}), leader=TWO)) is None, "it saw no leader"
    await one.keep_alive()
    changed = await one.write(record, replace(record, in_sync=frozenset({1})))
    assert changed is not None
    assert await one.write(record, replace(record, in_sync=frozenset({1, 3}))) is None, "it saw another set"
    assert (await two.read()).in_sync == {1}
    given_back = await one.write(changed, replace(changed, successor=2, leader=None))
    assert given_back is not None
    assert await two.read() == GroupRecord(1, frozenset({1}), successor=2)
    for each in (one, two):
        await each.close()


@needs_etcd
@pytest.mark.process
@pytest.mark.trio
async def test_a_watch_reports_changes_and_the_end_of_a_lease(etcd: Etcd) -> None:
    one, two = engine(etcd.address, group="watch", lease_s=1.0), engine(etcd.address, group="watch")
    seen = await two.read()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.changed, seen)
            await trio.sleep(0.1)
            record = await taken(one)
        await two.changed(seen)  # which is not the current one
        await two.changed(await two.read())  # without an extension, the lease ends
    after = await two.read()
    assert after == replace(record, leader=None)
    with pytest.raises(LeaseLost, match="etcd has ended lease"):
        await one.keep_alive()
    assert await one.write(record, replace(record, in_sync=frozenset({1}))) is None
    for each in (one, two):
        await each.close()


@needs_etcd
@pytest.mark.process
@pytest.mark.trio
async def test_a_leader_replaces_its_own_lease_after_a_restart(etcd: Etcd) -> None:
    one, again = engine(etcd.address, group="again"), engine(etcd.address, group="again")
    record = await taken(one)
    taken_again = await again.take(await again.read(), GroupRecord(2, frozenset({1}), leader=ONE))
    assert taken_again is not None
    assert await one.write(record, replace(record, in_sync=frozenset({1}))) is None, "of the lease before"
    for each in (one, again):
        await each.close()


@needs_etcd
@pytest.mark.process
@pytest.mark.trio
async def test_an_etcd_that_restarts_keeps_record_and_lease(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    etcd.start()
    one = engine(f"http://127.0.0.1:{free_port()}", etcd.address)  # the first address is down
    try:
        record = await taken(one)
        etcd.stop()
        with pytest.raises(EngineUnavailable, match=etcd.address):
            await one.keep_alive()
        etcd.start()
        with trio.fail_after(20):
            while True:
                try:
                    await one.keep_alive()
                    break
                except EngineUnavailable:
                    await trio.sleep(0.1)
        assert await one.read() == record
    finally:
        etcd.stop()
        await one.close()


# A gateway that misbehaves

Reply = Callable[[str, dict[str, Any]], tuple[int, Any]]


@pytest.fixture
def gateway() -> Iterator[Callable[[Reply], str]]:
    """Start a server that answers with what a function returns for the path and the body; None: no answer."""
    servers = []

    def start(reply: Reply) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, value = reply(self.path, body | {"authorization": self.headers["Authorization"]})
                if value is None:
                    time.sleep(1.0)
                    return
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def read(*addresses: str, **options: Any) -> GroupRecord:
    async def main() -> GroupRecord:
        one = engine(*addresses, **options)
        try:
            return await one.read()
        finally:
            await one.close()

    return trio.run(main)


def test_an_address_that_is_silent_or_without_quorum_is_passed_over(gateway: Callable[[Reply], str]) -> None:
    silent = gateway(lambda *_: (200, None))
    alone = gateway(lambda *_: (503, {"error": "etcdserver: no leader", "code": 14}))
    works = gateway(lambda *_: (200, {"header": {"revision": "7"}}))
    assert read(silent, alone, works) == GroupRecord()
    with pytest.raises(EngineUnavailable) as refused:
        read(silent, alone, "http://127.0.0.1:1")
    for fact in ("no response within 0.333 s", "status 503: etcdserver: no leader", "http://127.0.0.1:1: "):
        assert fact in refused.value.reason


@pytest.mark.parametrize(
    ("status", "value", "reason"),
    [
        (200, b"<html>", "not a group's"),
        (403, {"error": "etcdserver: permission denied"}, "rejected with status 403: etcdserver: permission denied"),
        (404, b"404 page not found", "rejected with status 404: 404 page not found"),
    ],
)
def test_an_answer_that_is_no_record_is_named(
    gateway: Callable[[Reply], str], status: int, value: Any, reason: str
) -> None:
    if value == b"<html>":
        value = {"kvs": [{"key": "L3JlcHV0L2MvZy9ncm91cA==", "value": "PGh0bWw+"}]}  # /reput/c/g/group: <html>
    with pytest.raises(EngineUnavailable, match=reason):
        read(gateway(lambda *_: (status, value)))


@pytest.mark.trio
async def test_a_user_is_authenticated_again_when_the_token_has_ended(gateway: Callable[[Reply], str]) -> None:
    tokens = iter(("first", "second"))
    valid: list[str] = []

    def reply(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v3/auth/authenticate":
            assert (body["name"], body["password"]) == ("reput", "secret")
            valid[:] = [next(tokens)]
            return 200, {"token": valid[0]}
        if body["authorization"] not in valid:
            return 401, {"error": "etcdserver: invalid auth token", "code": 16}
        valid.clear()
        return 200, {"header": {"revision": "1"}}

    address = gateway(reply)
    one = engine(address, user="reput", password="secret")
    assert await one.read() == GroupRecord()
    assert await one.read() == GroupRecord()
    await one.close()


@pytest.mark.trio
async def test_a_keepalive_without_a_leader_of_etcd_is_no_lost_lease(gateway: Callable[[Reply], str]) -> None:
    def reply(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"error": {"grpc_code": 14, "message": "etcdserver: no leader"}}

    address = gateway(reply)
    one = engine(address)
    one._lease = "42"
    with pytest.raises(EngineUnavailable, match="no leader"):
        await one.keep_alive()
    await one.close()


@pytest.mark.parametrize(("lease", "transaction"), [({}, {}), ({"ID": "42"}, {}), ({"ID": "42"}, {"responses": [{}]})])
@pytest.mark.trio
async def test_answers_that_are_not_those_of_etcd_are_named(
    gateway: Callable[[Reply], str], lease: dict[str, Any], transaction: dict[str, Any]
) -> None:
    address = gateway(lambda path, _: (200, lease if path == "/v3/lease/grant" else transaction))
    one = engine(address)
    with pytest.raises(EngineUnavailable, match=r"the response to a (lease|transaction) has no"):
        await one.take(GroupRecord(), GroupRecord(1, frozenset({1}), leader=ONE))
    await one.close()


@needs_etcd
@pytest.mark.process
def test_an_etcd_with_certificates_and_users(tmp_path: Path) -> None:
    ca, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", str(key), "-out", str(ca), "-days", "2", "-subj", "/O=reput",
            "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    tls = ["--cert-file", str(ca), "--key-file", str(key), "--client-cert-auth", "--trusted-ca-file", str(ca)]
    etcd = Etcd(tmp_path, f"https://127.0.0.1:{free_port()}", options=tls)
    etcd.start()
    shown = tls_context(ca, ca, key)

    async def main() -> None:
        admin = Endpoints([etcd.address], timeout_s=5.0, tls=shown)
        for path, body in (
            ("user/add", {"name": "root", "password": "r"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "reput", "password": "secret"}),
            ("user/grant", {"user": "reput", "role": "root"}),
            ("enable", {}),
        ):
            answer = await admin.call("POST", f"/v3/auth/{path}", body)
            assert answer.status == 200, answer.text
        await admin.close()
        one = engine(etcd.address, tls=shown, user="reput", password="secret")
        record = await taken(one)
        await one.keep_alive()
        assert await one.read() == record
        await one.close()
        for other, reason in (
            (engine(etcd.address, tls=shown, user="reput", password="wrong"), "user 'reput' was rejected"),
            (engine(etcd.address, tls=shown), "user name is empty"),
            (engine(etcd.address, tls=tls_context(ca, None, None)), etcd.address),
            (engine(etcd.address), "certificate verify failed"),
        ):
            with pytest.raises(EngineUnavailable, match=reason):
                await other.read()
            await other.close()

    try:
        trio.run(main)
    finally:
        etcd.stop()


def test_a_change_whose_answer_was_lost_is_found_by_the_next_attempt(gateway: Callable[[Reply], str]) -> None:
    """The first address makes the change and is silent, the second finds it made."""
    key = "L3JlcHV0L2MvZy8="  # /reput/c/g/
    kept: list[dict[str, Any]] = []

    def reply(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v3/lease/grant":
            return 200, {"ID": "42", "TTL": "5"}
        if not kept:
            kept.extend(change["request_put"] | {"mod_revision": "5"} for change in body["success"][:2])
            return 200, None
        return 200, {"header": {"revision": "9"}, "responses": [{"response_range": {"kvs": kept}}]}

    silent_once = gateway(reply)

    async def main() -> None:
        one = engine(silent_once, silent_once, lease_s=2.0)
        record = await one.take(GroupRecord(), GroupRecord(1, frozenset({1}), leader=ONE))
        assert record is not None
        assert record.leader == ONE
        await one.close()

    trio.run(main)
    assert all(entry["key"].startswith(key[:10]) for entry in kept)
