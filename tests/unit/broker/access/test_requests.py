"""Every request of a broker under access control: who may send it, and what the others hear."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio

from reput_broker.access.control import InsecureAccess
from reput_broker.access.model import User
from reput_broker.access.user_file import UserFile
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.namesrv.processor import NameServerProcessor
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.server.connection_limits import Penalties
from reput_client import Credentials, Message, Producer
from reput_client.errors import PermissionDenied
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.base import Sender
from reput_protocol.commands.table import REQUESTS
from reput_protocol.rights import rule_of
from reput_protocol.wire.header import HeaderType, Value
from reput_protocol.wire.signature import ACCESS_KEY, SIGNATURE, signed_by
from support.raw_client import RawClient, in_letters
from support.typed_requests import request_of

ADMIN: Final = Credentials("admin", "secret-of-admin")
ALICE: Final = Credentials("alice", "secret-of-alice")
EVE: Final = Credentials("eve", "secret-of-eve")
VIEWER: Final = Credentials("viewer", "secret-of-viewer")
OFF: Final = Credentials("off", "secret-of-off")
NO_PERMISSION: Final = 16
OPEN_TO_ALL_USERS: Final = {
    code
    for code, row in REQUESTS.items()
    if not any((row.topics, row.groups, row.cluster, row.unnamed, row.writes_something))
}
"""The processor checks the topic of a message, or of the staged blocks."""


@asynccontextmanager
async def guarded(root: Path, **options: Any) -> AsyncIterator[Broker]:
    """A broker with access control: alice may use group g and topics a*, but not write ab*; viewer see groups."""
    rules = (
        rule_of("topic:a*", ["read", "write"]),
        rule_of("topic:ab*", ["write"], is_denial=True),
        rule_of("group:g", ["read"]),
    )

    def fill(users: Any) -> Any:
        for user in (
            User("alice", ALICE.secret, rules=rules),
            User("eve", EVE.secret),
            User("viewer", VIEWER.secret, rules=(rule_of("group:*", ["describe"]),)),
            User("off", OFF.secret, is_admin=True, is_enabled=False),
        ):
            users = users.with_user(user)
        return users

    UserFile(root / "access" / "users.json").change(fill)
    config = BrokerConfig(
        data_dir=root,
        port=0,
        access={"enabled": True, "admin_secret": ADMIN.secret},
        store={"commit_log_file_size": "4MiB", "index_slots": 100, "index_entries": 400},
        **options,
    )
    async with Broker(config) as broker:
        yield broker


@pytest.mark.trio
async def test_every_request_has_its_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is served by a broker or a name server, and refused to users without its rights."""
    monkeypatch.setattr(Penalties, "pause_s", lambda *_: 0.0)  # of all these refusals
    async with guarded(tmp_path) as broker:
        names = NameServerProcessor(RouteInfoManager(None, trio.current_time), None, None)  # type: ignore[arg-type]
        served = broker.handlers.keys() | names.handlers().keys()
        assert served == {code for code, row in REQUESTS.items() if row.sender is not Sender.TO_CLIENTS}

        def ask_all() -> None:
            for header_type in HeaderType:
                eve = RawClient(broker.address, header_type, credentials=EVE)
                for code in sorted(broker.handlers):
                    if header_type is HeaderType.BINARY and code > 0x7FFF:
                        continue
                    ext, body = request_of(REQUESTS[code], lambda *_: "t")
                    if code != RequestCode.SIGNATURE_CHALLENGE:
                        with RawClient(broker.address, header_type) as nobody:
                            refused, _ = nobody.request(code, ext, body)
                        assert (code, refused.code) == (code, NO_PERMISSION)
                        assert (refused.remark or "").startswith("UNAUTHENTICATED: ")
                    answer, _ = eve.request(code, ext, body)
                    is_refused = "lacks the right" in (answer.remark or "")
                    assert (code, is_refused) == (code, code not in OPEN_TO_ALL_USERS)
                    assert not is_refused or answer.code == NO_PERMISSION
                eve.close()

        await trio.to_thread.run_sync(ask_all)


@pytest.mark.trio
@pytest.mark.parametrize("header_type", list(HeaderType))
async def test_only_the_users_own_signature_over_this_request_counts(tmp_path: Path, header_type: HeaderType) -> None:
    async with guarded(tmp_path) as broker:

        def attack() -> None:
            client = RawClient(broker.address, header_type)
            ext = in_letters("aa")
            signed = signed_by(ALICE, ext, b"pay 1", version=0)
            assert client.request(RequestCode.SEND_MESSAGE_V2, signed, b"pay 1")[0].code == 0
            wrong = {
                "absent": ext,
                "no signature": {**ext, ACCESS_KEY: "alice"},
                "no user": {**ext, SIGNATURE: signed[SIGNATURE]},
                "another field": {**signed, "e": "1"},
                "one more field": {**signed, "z": "1"},
                "another user": {**signed, ACCESS_KEY: "admin"},
                "unknown user": signed_by(Credentials("mallory", ALICE.secret), ext, b"pay 1", version=0),
                "wrong secret": signed_by(Credentials("alice", "secret-of-alise"), ext, b"pay 1", version=0),
                "disabled user": signed_by(OFF, ext, b"pay 1", version=0),
                "empty": {**signed, SIGNATURE: ""},
            }
            remarks = {}
            for what, fields in wrong.items():
                header, _ = client.request(RequestCode.SEND_MESSAGE_V2, fields, b"pay 1")
                assert (what, header.code) == (what, NO_PERMISSION)
                remarks[what] = header.remark
                assert client.request(RequestCode.SEND_MESSAGE_V2, signed, b"pay 1")[0].code == 0
            replayed, _ = client.request(RequestCode.SEND_MESSAGE_V2, signed, b"pay 9")
            assert replayed.code == NO_PERMISSION
            # The answer does not tell which users there are.
            assert remarks["unknown user"] == remarks["wrong secret"] == remarks["disabled user"]
            # The connection was kept.
            assert client.request(RequestCode.SEND_MESSAGE_V2, signed, b"pay 1")[0].code == 0
            client.close()

        await trio.to_thread.run_sync(attack)
        assert broker.counters.auth_failures["bad_credentials"] == 11


@pytest.mark.trio
async def test_a_missing_right_is_named_and_no_topic_given_away(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        async with Producer(broker.address, credentials=ADMIN) as producer:
            await producer.send(Message("secret", b"x"))
        said = []
        async with Producer(broker.address, credentials=ALICE) as producer:
            await producer.send(Message("aa", b"x"))
            for topic in ("secret", "missing"):
                with pytest.raises(PermissionDenied, match=f"on topic '{topic}'") as refused:
                    await producer.send(Message(topic, b"x"))
                said.append(str(refused.value).replace(topic, "T"))
            with pytest.raises(
                PermissionDenied, match=r"denied the right 'write' on topic 'ab-x' by a rule on topic:ab\*"
            ):
                await producer.send(Message("ab-x", b"x"))
        assert said[0] == said[1]


@pytest.mark.trio
async def test_a_message_named_by_its_place_needs_the_right_on_its_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        async with Producer(broker.address, credentials=ADMIN) as producer:
            place = (await producer.send(Message("secret", b"x"))).physical_offset

        def ask() -> None:
            alice = RawClient(broker.address, credentials=ALICE)
            back: dict[str, Value] = {"offset": place, "group": "g", "delayLevel": 0, "originTopic": "aa"}
            view: dict[str, Value] = {"offset": place, "topic": "aa"}
            for code, ext in ((RequestCode.VIEW_MESSAGE_BY_ID, view), (RequestCode.CONSUMER_SEND_MSG_BACK, back)):
                header, body = alice.request(code, ext)
                assert (header.code, body) == (NO_PERMISSION, b"")
                assert "secret" not in (header.remark or "")
            admin = RawClient(broker.address, credentials=ADMIN)
            assert admin.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})[0].code == 0
            alice.close()
            admin.close()

        await trio.to_thread.run_sync(ask)


@pytest.mark.trio
async def test_to_see_a_group_does_not_create_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:

        def ask(user: Credentials, group: str) -> int:
            with RawClient(broker.address, HeaderType.JSON, credentials=user) as client:
                return client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})[0].code

        def groups() -> bytes:
            with RawClient(broker.address, credentials=ADMIN) as client:
                return client.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)[1]

        def route(user: Credentials) -> int:
            with RawClient(broker.address, HeaderType.JSON, credentials=user) as client:
                return client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g"})[0].code

        assert await trio.to_thread.run_sync(ask, VIEWER, "g") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert await trio.to_thread.run_sync(route, VIEWER) == ResponseCode.TOPIC_NOT_EXIST
        assert b'"g"' not in await trio.to_thread.run_sync(groups)
        # RocketMQ's tools rely on it for members of the group, who create it by a heartbeat too.
        assert await trio.to_thread.run_sync(ask, ALICE, "g") == 0
        assert await trio.to_thread.run_sync(ask, VIEWER, "g") == 0
        assert await trio.to_thread.run_sync(route, ALICE) == 0


@pytest.mark.trio
async def test_administrative_requests_and_refusals_are_logged(tmp_path: Path) -> None:
    topic = {"topic": "new", "readQueueNums": "1", "writeQueueNums": "1"}
    with structlog.testing.capture_logs() as logs:
        async with guarded(tmp_path) as broker:

            def ask() -> None:
                for user in (ADMIN, EVE):
                    client = RawClient(broker.address, HeaderType.JSON, credentials=user)
                    for _ in range(2):
                        client.request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
                    client.request(RequestCode.AUTH_DELETE_USER, {"username": "bob"})
                    client.close()

            await trio.to_thread.run_sync(ask)
    audit = [
        (entry["user"], entry["request"], entry["resources"], entry["outcome"])
        for entry in logs
        if entry["event"] == "administrative_request" and "account" not in entry
    ]
    request = ("UPDATE_AND_CREATE_TOPIC", ["topic:new"])
    assert audit == [("admin", *request, "SUCCESS")] * 2 + [("eve", *request, "NO_PERMISSION")] * 2
    deleted = [(entry["user"], entry["account"], entry["outcome"]) for entry in logs if "account" in entry]
    assert deleted == [("admin", "bob", "SUCCESS"), ("eve", "bob", "NO_PERMISSION")]
    refused = next(entry for entry in logs if entry["event"] == "access_refused")
    assert (refused["user"], refused["needs"]) == ("eve", "'admin' on topic 'new'")
    assert refused["peer"].startswith("127.0.0.1:")
    assert "secret-of" not in repr(logs)


@pytest.mark.trio
async def test_a_changed_file_counts_without_a_restart(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        access = broker._base.access
        assert access is not None
        assert not isinstance(access, InsecureAccess)
        file = UserFile(tmp_path / "access" / "users.json")
        file.change(lambda users: users.without_user("alice"))
        file_of_others = file.path.stat().st_mode
        with trio.fail_after(60):
            while "alice" in access.user_names:
                await trio.sleep(0.05)
        file.path.write_text("{")
        with structlog.testing.capture_logs() as logs, trio.fail_after(60):
            while not any(entry["event"] == "users_not_read" for entry in logs):
                await trio.sleep(0.05)
        assert file_of_others == file.path.stat().st_mode
        assert set(access.user_names) == {"admin", "eve", "viewer"}


@pytest.mark.trio
async def test_without_access_control_other_machines_administer_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput_broker.server.listener.is_loopback", lambda _: False)
    config = BrokerConfig(data_dir=tmp_path, host="0.0.0.0", allow_insecure=True, port=0, ha_port="off")
    async with Broker(config) as broker:

        def ask() -> None:
            client = RawClient(broker.address, HeaderType.JSON)
            topic = {"topic": "new", "readQueueNums": "1", "writeQueueNums": "1"}
            refused, _ = client.request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
            assert refused.code == NO_PERMISSION
            assert "access.enabled" in (refused.remark or "")
            assert client.request(RequestCode.SEND_MESSAGE_V2, in_letters("new"), b"x")[0].code == 0
            client.close()

        await trio.to_thread.run_sync(ask)
