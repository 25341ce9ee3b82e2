"""Requests that are passed on to a member: what it gets of the administrator, and what it may call itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_broker.access.model import User
from reput_broker.access.user_file import UserFile
from reput_client import Credentials, Message, Producer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import LockBatchBody
from reput_protocol.record.message import MessageQueue
from reput_protocol.rights import rule_of
from reput_protocol.wire.header import HeaderType, Value
from support.group_client import GroupClient

ADMIN: Final = Credentials("admin", "the-secret-of-the-administrator")
EVE: Final = Credentials("eve", "the-secret-of-eve")
INVALID_ARGUMENT: Final = 29


def broker(root: Path) -> Broker:
    rules = (rule_of("topic:t", ["read"]), rule_of("group:g", ["read"]))
    UserFile(root / "access" / "users.json").change(lambda users: users.with_user(User("eve", EVE.secret, rules=rules)))
    config = BrokerConfig(
        data_dir=root,
        port=0,
        access={"enabled": True, "admin_secret": ADMIN.secret},
        store={"commit_log_file_size": "4MiB", "index_slots": 100, "index_entries": 400},
    )
    return Broker(config)


def connect(running: Broker, user: Credentials, client_id: str = "c") -> GroupClient:
    client = GroupClient(running.address, client_id, header_type=HeaderType.JSON)
    client.credentials = user
    return client


@pytest.mark.trio
async def test_a_member_gets_nothing_of_an_administrators_signature(tmp_path: Path) -> None:
    async with broker(tmp_path) as running:
        async with Producer(running.address, credentials=ADMIN) as producer:
            sent = await producer.send(Message("t", b"x"))

        def passed_on(member: GroupClient, code: RequestCode, **ext: Value) -> Mapping[str, Value]:
            with connect(running, ADMIN) as admin:
                opaque = admin.send(code, {"consumerGroup": "g", "clientId": "c", "of-nobody": "x", **ext})
                header, _ = member.next_asked(code)
                member.reply(header, 0, b"{}", more="not passed on")
                answer, body = admin.answer_to(opaque)
                assert (answer.code, body, answer.ext) == (0, b"{}", {})
            return header.ext

        def ask() -> None:
            with connect(running, EVE) as member:
                assert member.heartbeat("t").code == 0
                info = passed_on(member, RequestCode.GET_CONSUMER_RUNNING_INFO)
                assert info == {"consumerGroup": "g", "clientId": "c", "jstackEnable": "false"}
                directly = passed_on(member, RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=sent.offset_message_id)
                assert set(directly) == {
                    "consumerGroup", "clientId", "msgId", "brokerName", "topicSysFlag", "groupSysFlag",
                }  # fmt: skip

        await trio.to_thread.run_sync(ask)


@pytest.mark.trio
@pytest.mark.parametrize("client_id", ["", "a\nb", "x" * 300, "a\u202eb", "c\x00"])
async def test_a_client_id_has_characters_that_print(tmp_path: Path, client_id: str) -> None:
    async with broker(tmp_path) as running:

        def ask() -> None:
            with connect(running, EVE, client_id) as member:
                beat = member.heartbeat("t")
                assert (beat.code, "client id" in str(beat.remark)) == (INVALID_ARGUMENT, True)
                assert "a client id of" in str(beat.remark) or "leave it out" in str(beat.remark)
                lock = LockBatchBody(client_id, "g", [MessageQueue("t", "broker-a", 0)])
                locked, _ = member.request(RequestCode.LOCK_BATCH_MQ, {}, lock.to_json())
                assert "client id" in str(locked.remark), locked
                assert locked.code == INVALID_ARGUMENT

        await trio.to_thread.run_sync(ask)
