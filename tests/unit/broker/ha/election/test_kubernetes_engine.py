"""The engine on Leases of Kubernetes, with an API server that keeps one object as Kubernetes does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trio

from reput_broker.ha.election.engine import EngineUnavailable, GroupRecord, Leader, LeaseLost
from reput_broker.ha.election.kubernetes import KubernetesEngine

ONE, TWO = Leader(1, "a:10911", "a:10912"), Leader(2, "b:10911", "b:10912")
COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


class ApiServer:
    """Leases of one namespace: resourceVersions, conflicts, watches, tokens.

    Attributes:
        loses_answers: how many of the next changes are made without an answer.
    """

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.token = "first"
        self.loses_answers = 0
        self.is_open = True
        self._version = 100
        self._changed = Condition()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                if not self._may():
                    return
                if "watch" in query:
                    name = query["fieldSelector"][0].removeprefix("metadata.name=")
                    self._watch(name, int(query.get("resourceVersion", ["0"])[0]))
                    return
                found = api.leases.get(url.path.removeprefix(COLLECTION + "/"))
                self._answer(*((200, found) if found else (404, {"message": "leases not found", "code": 404})))

            def do_POST(self) -> None:
                lease = self._body()
                if self._may():
                    self._answer(*api.keep(lease, None))

            def do_PUT(self) -> None:
                lease = self._body()
                if self._may():
                    self._answer(*api.keep(lease, lease["metadata"].get("resourceVersion")))

            def _body(self) -> Any:
                return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

            def _may(self) -> bool:
                if self.headers["Authorization"] == f"Bearer {api.token}":
                    return True
                self._answer(401, {"message": "Unauthorized", "code": 401})
                return False

            def _answer(self, status: int, body: Any) -> None:
                if status < 300 and self.command != "GET" and api.loses_answers:
                    api.loses_answers -= 1
                    self.close_connection = True
                    return
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _watch(self, name: str, version: int) -> None:
                self.send_response(200)
                self.end_headers()
                while api.is_open:
                    with api._changed:
                        found = api.leases.get(name)
                        if found is None or int(found["metadata"]["resourceVersion"]) <= version:
                            api._changed.wait(0.05)
                            continue
                        version = int(found["metadata"]["resourceVersion"])
                        line = json.dumps({"type": "MODIFIED", "object": found}).encode() + b"\n"
                    try:
                        self.wfile.write(line)
                        self.wfile.flush()
                    except OSError:
                        return

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def keep(self, lease: dict[str, Any], version: str | None) -> tuple[int, dict[str, Any]]:
        name = lease["metadata"]["name"]
        with self._changed:
            kept = self.leases.get(name)
            if version is None and kept is not None:
                return 409, {"message": "already exists", "code": 409}
            if version is not None and kept is None:
                return 404, {"message": "not found", "code": 404}
            if kept is not None and version != kept["metadata"]["resourceVersion"]:
                return 409, {"message": "the object has been modified", "code": 409}
            self._version += 1
            made = json.loads(json.dumps(lease))
            made["metadata"]["resourceVersion"] = str(self._version)
            self.leases[name] = made
            self._changed.notify_all()
            return (200 if version else 201), made

    def close(self) -> None:
        self.is_open = False
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    return tmp_path


def engine(api: ApiServer, account: Path, *, group: str = "Broker_a", lease_s: float = 3.0) -> KubernetesEngine:
    return KubernetesEngine(
        "ns",
        cluster="DefaultCluster",
        broker_name=group,
        lease_s=lease_s,
        clock=time.monotonic,
        address=api.address,
        service_account=account,
    )


FIRST = GroupRecord(1, frozenset({1, 2}), leader=ONE)


@pytest.mark.trio
async def test_one_of_two_takes_and_only_the_holder_writes(api: ApiServer, account: Path) -> None:
    one, two = engine(api, account), engine(api, account)
    seen = await two.read()
    assert seen == GroupRecord()
    record = await one.take(await one.read(), FIRST)
    assert record == FIRST == await two.read()
    assert record is not None
    assert await two.take(seen, GroupRecord(1, frozenset({2}), leader=TWO)) is None, "it saw no object"
    with pytest.raises(LeaseLost):
        await two.keep_alive()
    await one.keep_alive()
    changed = await one.write(record, replace(record, in_sync=frozenset({1})))
    assert changed == replace(record, in_sync=frozenset({1}))
    assert changed is not None
    assert await one.write(record, replace(record, in_sync=frozenset({1, 3}))) is None, "it saw another set"
    (lease,) = api.leases.values()
    assert lease["metadata"]["name"] == "reput-defaultcluster-broker-a"
    assert lease["spec"]["leaseTransitions"] == 1
    assert await one.write(changed, replace(changed, successor=2, leader=None)) is not None
    assert await two.read() == GroupRecord(1, frozenset({1}), successor=2)
    for each in (one, two):
        await each.close()


@pytest.mark.trio
async def test_a_lease_ends_when_the_object_did_not_change_for_its_time(api: ApiServer, account: Path) -> None:
    one, two = engine(api, account, lease_s=1.0), engine(api, account, lease_s=1.0)
    record = await one.take(await one.read(), FIRST)
    assert record is not None
    seen = await two.read()
    started_at = trio.current_time()
    with trio.fail_after(5), trio.CancelScope() as renewals:
        async with trio.open_nursery() as nursery:

            async def renew() -> None:
                for _ in range(4):
                    await trio.sleep(0.3)
                    await one.keep_alive()

            nursery.start_soon(renew)
            await two.changed(seen)
            renewals.cancel()
    assert trio.current_time() - started_at >= 1.2 + 0.9, "a renewal is no change, but extends the lease"
    after = await two.read()
    assert after == replace(record, leader=None)
    assert await two.take(after, GroupRecord(2, frozenset({2}), leader=TWO)) is not None
    with pytest.raises(LeaseLost, match="is held by '2/"):
        await one.keep_alive()
    with pytest.raises(LeaseLost):
        await one.write(record, replace(record, in_sync=frozenset({1})))
    for each in (one, two):
        await each.close()


@pytest.mark.trio
async def test_a_renewal_in_the_same_moment_wins_over_a_take(api: ApiServer, account: Path) -> None:
    one, two = engine(api, account), engine(api, account)
    assert await one.take(await one.read(), FIRST) is not None
    seen = replace(await two.read(), leader=None)  # as if the lease had ended
    await one.keep_alive()
    assert await two.take(seen, GroupRecord(2, frozenset({2}), leader=TWO)) is None
    for each in (one, two):
        await each.close()


@pytest.mark.trio
async def test_changes_whose_answers_are_lost_are_found(api: ApiServer, account: Path) -> None:
    one = engine(api, account)
    seen = await one.read()
    api.loses_answers = 1
    with pytest.raises(EngineUnavailable):
        await one.take(seen, FIRST)
    record = await one.take(await one.read(), replace(FIRST, epoch=2))
    assert record is not None
    api.loses_answers = 1
    with pytest.raises(EngineUnavailable):
        await one.keep_alive()
    await one.keep_alive()
    wanted = replace(record, in_sync=frozenset({1}))
    api.loses_answers = 1
    with pytest.raises(EngineUnavailable):
        await one.write(record, wanted)
    assert await one.write(record, wanted) == wanted
    await one.close()


@pytest.mark.trio
async def test_what_a_restored_server_has_forgotten_is_written_again_at_once(api: ApiServer, account: Path) -> None:
    one, two = engine(api, account), engine(api, account)
    first = await one.take(await one.read(), FIRST)
    assert first is not None
    copy = deepcopy(api.leases)
    own = await one.write(first, replace(first, in_sync=frozenset({1, 2}), version=1))
    assert own is not None
    api.leases = copy
    found = await one.read()
    assert found == first
    assert await one.write(found, own) == own
    assert await two.read() == own
    assert await one.write(first, replace(first, version=2)) is None, "it is not what was seen"
    for each in (one, two):
        await each.close()


@pytest.mark.trio
async def test_a_new_token_is_read(api: ApiServer, account: Path) -> None:
    one = engine(api, account)
    await one.read()
    api.token = "second"
    with pytest.raises(EngineUnavailable, match=r"Unauthorized; the pod's service account needs get, watch"):
        await one.read()
    (account / "token").write_text("second\n")
    assert await one.read() == GroupRecord()
    await one.close()


@pytest.mark.trio
async def test_the_lease_of_another_group_is_refused(api: ApiServer, account: Path) -> None:
    one, other = engine(api, account), engine(api, account, group="broker.a")
    assert await one.take(await one.read(), FIRST) is not None
    with pytest.raises(EngineUnavailable, match="belongs to group DefaultCluster/Broker_a"):
        await other.read()
    for each in (one, other):
        await each.close()


def test_a_process_outside_of_a_pod_is_refused(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(EngineUnavailable, match="only by a broker in a pod"):
        KubernetesEngine("ns", cluster="c", broker_name="b", lease_s=3.0, clock=time.monotonic, service_account=account)
