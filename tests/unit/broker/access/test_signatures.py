"""Signatures in Reput's form at a broker: who uses them, and what they prevent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_broker.name_server import NameServer
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_broker.remoting.request import Refusal, Request, Response
from reput_broker.server.handling import RequestHandling
from reput_client import Admin, ConnectFailed, ConnectionLost, Credentials, Message, Producer
from reput_client.blocking import Producer as BlockingProducer
from reput_client.security import from_environment
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import ErrorCode
from reput_protocol.wire.header import Header, HeaderType
from reput_protocol.wire.signature import REPUT_SIGNATURE, SIGNATURE, knows_no_challenge
from support.raw_client import RawClient, in_letters

ADMIN: Final = Credentials("admin", "the-secret-of-the-administrator")
NO_PERMISSION: Final = 16
SEND: Final = RequestCode.SEND_MESSAGE_V2


@asynccontextmanager
async def guarded(root: Path, *, broker: dict[str, Any] | None = None, **access: Any) -> AsyncIterator[Broker]:
    config = BrokerConfig(
        data_dir=root,
        port=0,
        access={"enabled": True, "admin_secret": ADMIN.secret, **access},
        store={"commit_log_file_size": "4MiB", "index_slots": 100, "index_entries": 400},
        **(broker or {}),
    )
    async with Broker(config) as running:
        yield running


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The forms of the signatures that brokers of this process check."""
    from reput_broker.access.control import AccessControl

    found: list[str] = []
    check = AccessControl.authenticate

    def noting(self: AccessControl, request: Any) -> None:
        found.extend(name for name in (SIGNATURE, REPUT_SIGNATURE) if name in request.ext)
        check(self, request)

    monkeypatch.setattr(AccessControl, "authenticate", noting)
    return found


@pytest.mark.trio
async def test_the_bundled_clients_sign_in_reputs_form(tmp_path: Path, forms: list[str]) -> None:
    async with guarded(tmp_path, accept_rocketmq_signatures=False) as broker:
        async with Producer(broker.address, credentials=ADMIN) as producer, trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(producer.send, Message("orders", b"%d" % number))

        def blocking() -> None:
            with BlockingProducer(broker.address, credentials=ADMIN) as producer:
                producer.send(Message("orders", bytes(200_000)))

        await trio.to_thread.run_sync(blocking)
        async with Admin(broker.address, credentials=ADMIN) as admin:
            assert "orders" in await admin.list_topics()
    assert set(forms) == {REPUT_SIGNATURE}
    assert broker.counters.auth_failures["bad_credentials"] == 0


@pytest.mark.trio
async def test_brokers_sign_in_reputs_form_among_themselves(tmp_path: Path, forms: list[str]) -> None:
    names = BrokerConfig(
        data_dir=tmp_path / "names",
        port=0,
        access={"enabled": True, "admin_secret": ADMIN.secret, "accept_rocketmq_signatures": False},
    )
    async with NameServer(names) as server:
        registering = {"name_servers": [server.address]}
        async with guarded(tmp_path / "b", broker=registering):
            with trio.fail_after(10):
                while not server.routes.registered:
                    await trio.sleep(0.01)
    assert set(forms) == {REPUT_SIGNATURE}


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[Refusal]:
    """With what servers of this process refuse the next requests for a challenge, each once."""
    found: list[Refusal] = []
    answer = RequestHandling._challenge

    def challenge(self: RequestHandling, request: Request) -> Response:
        if found:
            raise found.pop()
        return answer(self, request)

    monkeypatch.setattr(RequestHandling, "_challenge", challenge)
    return found


@pytest.mark.trio
async def test_a_busy_server_gets_no_signature_in_rocketmqs_form(
    tmp_path: Path, forms: list[str], refusals: list[Refusal]
) -> None:
    """It is asked again, as any server to which a client cannot connect."""
    busy = Refusal(ErrorCode.BUSY, "later; ask again")
    async with guarded(tmp_path) as broker:
        async with Producer(broker.address, credentials=ADMIN) as producer:
            refusals += [busy] * 3
            session = producer._session
            session.connection_to(session.home).lose(ConnectionLost(broker.address, "cut"))
            await producer.send(Message("orders", b"x"))
            assert (refusals, set(forms)) == ([], {REPUT_SIGNATURE})
        refusals += [busy] * 2
        client = RemotingClient(broker.address, credentials=ADMIN)
        for _ in range(2):
            with pytest.raises(
                RemoteUnreachable, match="rejected the request for a challenge for signatures: BUSY: later"
            ):
                await client.call(RequestCode.GET_BROKER_CONFIG, {}, timeout_s=5)
        assert (await client.call(RequestCode.GET_BROKER_CONFIG, {}, timeout_s=5)).code == 0
        client.close()
    assert (refusals, set(forms)) == ([], {REPUT_SIGNATURE})


OLDER: Final = (
    Refusal(ErrorCode.UNSUPPORTED_REQUEST, "request 700080 is not served"),
    Refusal(ErrorCode.UNAUTHENTICATED, "the request has no signature"),
)


@pytest.mark.trio
@pytest.mark.parametrize("refusal", OLDER, ids=["without users", "with users"])
async def test_a_server_that_does_not_know_reputs_form_gets_rocketmqs_unless_that_is_forbidden(
    tmp_path: Path, forms: list[str], refusals: list[Refusal], refusal: Refusal
) -> None:
    refusals += [refusal] * 1000
    strict = Credentials(ADMIN.user, ADMIN.secret, rocketmq_signatures=False)
    async with guarded(tmp_path) as broker:
        with pytest.raises(ConnectFailed, match="does not support signatures in Reput's form"):
            async with Producer(broker.address, credentials=strict, connect_timeout_s=0.2):
                pass
        client = RemotingClient(broker.address, credentials=strict)
        with pytest.raises(RemoteUnreachable, match="does not support signatures in Reput's form"):
            await client.call(RequestCode.GET_BROKER_CONFIG, {}, timeout_s=5)
        client.close()
        assert forms == []
        async with Producer(broker.address, credentials=ADMIN) as producer:
            await producer.send(Message("orders", b"x"))
        client = RemotingClient(broker.address, credentials=ADMIN)
        assert (await client.call(RequestCode.GET_BROKER_CONFIG, {}, timeout_s=5)).code == 0
        client.close()
    assert set(forms) == {SIGNATURE}


@pytest.mark.parametrize(
    ("code", "remark", "is_old"),
    [
        (3, " request type 700080 not supported", True),
        (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured", True),
        (16, "username cannot be null.", True),
        (3, "UNSUPPORTED_REQUEST: request 700080 is not served", True),
        (16, "UNAUTHENTICATED: the request has no signature", True),
        (2, "BUSY: later", False),
        (2, "[REJECTREQUEST]system busy, start flow control for a while", False),
        (1, "INTERNAL: a defect", False),
        (14, "DRAINING: this broker is stopping", False),
    ],
)
def test_only_servers_that_do_not_know_the_challenge_get_rocketmqs_form(code: int, remark: str, is_old: bool) -> None:
    assert knows_no_challenge(code, remark) is is_old


def test_a_broker_may_be_forbidden_rocketmqs_form() -> None:
    access: dict[str, Any] = {"broker_user": "brokers", "broker_secret": ADMIN.secret}
    for chosen in (True, False):
        found = BrokerConfig(access={**access, "send_rocketmq_signatures": chosen}).access.credentials()
        assert found is not None
        assert found.rocketmq_signatures is chosen


def test_the_environment_may_forbid_rocketmqs_form(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(ADMIN.secret)
    file = {"REPUT_USER": "alice", "REPUT_SECRET_FILE": str(tmp_path / "secret")}
    for environ in ({"REPUT_USER": "alice", "REPUT_SECRET": ADMIN.secret}, file):
        for value, is_allowed in (("true", True), ("", True), ("false", False)):
            found = from_environment({**environ, "REPUT_ROCKETMQ_SIGNATURES": value})
            assert found is not None
            assert found.rocketmq_signatures is is_allowed
        with pytest.raises(ValueError, match="REPUT_ROCKETMQ_SIGNATURES is 'no'; set it to true or false"):
            from_environment({**environ, "REPUT_ROCKETMQ_SIGNATURES": "no"})


@pytest.mark.trio
async def test_a_server_without_users_gets_no_signature(tmp_path: Path) -> None:
    async with guarded(tmp_path, enabled=False) as broker, Producer(broker.address, credentials=ADMIN) as producer:
        await producer.send(Message("orders", b"x"))


@pytest.mark.trio
async def test_a_wrong_secret_is_an_error_of_each_request(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        wrong = Credentials("admin", "another-secret-altogether")
        async with Producer(broker.address, credentials=wrong) as producer:
            with pytest.raises(Exception, match="check the client's user and secret"):
                await producer.send(Message("orders", b"x"))


@pytest.mark.trio
async def test_rocketmqs_form_is_accepted_or_refused(tmp_path: Path) -> None:
    def send(address: str) -> Header:
        with RawClient(address, HeaderType.JSON, credentials=ADMIN) as client:
            return client.request(SEND, in_letters("orders"), b"x")[0]

    async with guarded(tmp_path / "a") as broker:
        assert (await trio.to_thread.run_sync(send, broker.address)).code == 0
    async with guarded(tmp_path / "b", accept_rocketmq_signatures=False) as broker:
        answer = await trio.to_thread.run_sync(send, broker.address)
        assert answer.code == NO_PERMISSION
        assert "access.accept_rocketmq_signatures" in (answer.remark or "")


@pytest.mark.trio
@pytest.mark.parametrize("header_type", list(HeaderType))
async def test_a_recorded_request_is_refused_wherever_it_is_sent_again(tmp_path: Path, header_type: HeaderType) -> None:
    async with guarded(tmp_path) as broker:

        def attack() -> None:
            user, eve = (RawClient(broker.address, header_type) for _ in range(2))
            user.ask_for_challenge(ADMIN)
            frame = user.frame(SEND, in_letters("orders"), b"pay")

            def sent(client: RawClient) -> Header:
                client.send_bytes(frame)
                return client.receive()[0]

            assert sent(user).code == 0
            again = sent(user)
            assert (again.code, "received before" in str(again.remark)) == (NO_PERMISSION, True)
            assert sent(eve).code == NO_PERMISSION
            eve.ask_for_challenge(ADMIN)
            assert sent(eve).code == NO_PERMISSION
            user.close()
            eve.close()

        await trio.to_thread.run_sync(attack)


@pytest.mark.trio
async def test_another_code_with_the_same_fields_is_refused(tmp_path: Path) -> None:
    """What RocketMQ's form lets through: the fields of one request as those of another."""
    async with guarded(tmp_path) as broker:

        def attack() -> None:
            with RawClient(broker.address, HeaderType.JSON) as user:
                user.ask_for_challenge(ADMIN)
                frame = user.frame(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
                other = frame.replace(b'"code":202', b'"code":215')
                assert other != frame
                user.send_bytes(other)
                assert user.receive()[0].code == NO_PERMISSION
                user.send_bytes(frame)
                assert user.receive()[0].code == ResponseCode.TOPIC_NOT_EXIST

        await trio.to_thread.run_sync(attack)


@pytest.mark.trio
async def test_a_wrong_secret_is_named_where_rocketmqs_clients_see_no_route(tmp_path: Path) -> None:
    wrong = Credentials("admin", "another-secret-altogether")

    def route(address: str) -> Header:
        with RawClient(address, HeaderType.JSON, credentials=wrong) as client:
            return client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})[0]

    async with guarded(tmp_path) as broker:
        answer = await trio.to_thread.run_sync(route, broker.address)
    assert answer.code == NO_PERMISSION
    remark = str(answer.remark)
    assert "check the client's user and secret" in remark
    assert "No route info of this topic" in remark


@pytest.mark.trio
async def test_a_clock_that_is_set_ends_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(tmp_path) as broker, Admin(broker.address, credentials=ADMIN) as admin:
        await admin.list_topics()
        with monkeypatch.context() as later:
            later.setattr("time.time_ns", lambda now=time.time_ns: now() + 3_600_000_000_000)
            await admin.list_topics()
    assert broker.counters.auth_failures["bad_credentials"] == 0
