"""Users and rules as `mqadmin createUser` and its kin administer them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.access.model import User
from reput_broker.access.user_file import UserFile
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_client import Credentials
from reput_protocol.codes import RequestCode
from reput_protocol.rights import rule_of
from reput_protocol.wire.header import HeaderType
from support.raw_client import RawClient, in_letters

ADMIN = Credentials("admin", "the-secret-of-admin")
ALICE = Credentials("alice", "the-secret-of-alice")
OPERATOR = Credentials("operator", "the-secret-of-operator")


def policies(resources: str, actions: str, decision: str = "Allow", **more: Any) -> dict[str, Any]:
    entries = [
        {"resource": resource, "actions": actions.split(","), "decision": decision, **more}
        for resource in resources.split(",")
    ]
    return {"policies": [{"policyType": "Custom", "entries": entries}]}


@pytest.mark.trio
async def test_users_and_rules_of_rocketmqs_tools_are_in_force(tmp_path: Path) -> None:
    operator = User("operator", OPERATOR.secret, rules=(rule_of("cluster", ["admin"]),))
    UserFile(tmp_path / "access" / "users.json").change(lambda users: users.with_user(operator))
    access = {"enabled": True, "admin_secret": ADMIN.secret}
    async with Broker(BrokerConfig(data_dir=tmp_path, port=0, ha_port="off", access=access)) as broker:

        def administer() -> None:
            clients = {
                user.user: RawClient(broker.address, HeaderType.JSON, credentials=user)
                for user in (ADMIN, ALICE, OPERATOR)
            }

            def ask(code: RequestCode, body: Any = None, user: str = "admin", **ext: str) -> tuple[int, Any]:
                header, data = clients[user].request(code, ext, b"" if body is None else json.dumps(body).encode())
                return header.code, json.loads(data) if data else header.remark

            created = {"username": "alice", "password": ALICE.secret, "userType": "Normal"}
            assert ask(RequestCode.AUTH_CREATE_USER, created, username="alice")[0] == 0
            assert ask(RequestCode.AUTH_CREATE_USER, created, username="alice")[0] != 0
            shown = {"username": "alice", "userType": "Normal", "userStatus": "enable"}
            assert ask(RequestCode.AUTH_GET_USER, username="alice") == (0, shown)
            assert ask(RequestCode.AUTH_LIST_USER, filter="ali") == (0, [shown])

            assert clients["alice"].request(RequestCode.SEND_MESSAGE_V2, in_letters("orders"), b"x")[0].code == 16
            rules = policies("Topic:orders*,Group:g", "Pub,Sub")
            assert ask(RequestCode.AUTH_CREATE_ACL, rules, subject="User:alice")[0] == 0
            assert clients["alice"].request(RequestCode.SEND_MESSAGE_V2, in_letters("orders"), b"x")[0].code == 0
            code, acl = ask(RequestCode.AUTH_GET_ACL, subject="User:alice")
            assert (code, acl["subject"]) == (0, "User:alice")
            assert {entry["resource"]: entry["actions"] for entry in acl["policies"][0]["entries"]} == {
                "Topic:orders*": ["Pub", "Sub"],
                "Group:g": ["Sub"],
            }
            denied = policies("Topic:orders*", "Pub", "Deny")
            assert ask(RequestCode.AUTH_UPDATE_ACL, denied, subject="User:alice")[0] == 0
            assert clients["alice"].request(RequestCode.SEND_MESSAGE_V2, in_letters("orders"), b"x")[0].code == 16
            code, listed = ask(RequestCode.AUTH_LIST_ACL, resourceFilter="Group")
            assert [each["subject"] for each in listed] == ["User:alice"]
            assert ask(RequestCode.AUTH_DELETE_ACL, subject="User:alice", resource="Group:g")[0] == 0
            assert ask(RequestCode.AUTH_LIST_ACL, resourceFilter="Group") == (0, [])

            refused: tuple[dict[str, Any], ...] = (
                policies("Topic:t", "Create"),
                policies("Topic:t", "Fly"),
                policies("Cluster:*", "Pub"),
                policies("Cluster:other", "All"),
                policies("Topic:t", "Pub", sourceIps=["home"]),
                policies("Topic:t", "Pub", "Perhaps"),
                {"policies": []},
            )
            for wrong in refused:
                assert ask(RequestCode.AUTH_CREATE_ACL, wrong, subject="User:alice")[0] != 0
            # From another address only, and from here.
            send = partial(clients["alice"].request, RequestCode.SEND_MESSAGE_V2, in_letters("orders"), b"x")
            for address, code in (("10.0.0.0/8", 16), ("127.0.0.1", 0)):
                limited = policies("Topic:orders*", "Pub", sourceIps=[address])
                assert ask(RequestCode.AUTH_UPDATE_ACL, limited, subject="User:alice")[0] == 0
                assert send()[0].code == code
            code, acl = ask(RequestCode.AUTH_GET_ACL, subject="User:alice")
            assert acl["policies"][0]["entries"][0]["sourceIps"] == ["127.0.0.1/32"]
            # Who may administer the cluster may not make itself more.
            for user in ("operator", "alice"):
                grab = {"username": user, "userType": "Super"}
                assert ask(RequestCode.AUTH_UPDATE_USER, grab, user, username=user)[0] == 16
                assert ask(RequestCode.AUTH_LIST_USER, None, user)[0] == 16
            assert ask(RequestCode.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="alice")[0] == 0
            assert clients["alice"].request(RequestCode.GET_BROKER_CLUSTER_INFO)[0].code == 16
            assert ask(RequestCode.AUTH_DELETE_USER, username="alice")[0] == 0
            assert ask(RequestCode.AUTH_GET_USER, username="alice") == (0, None)
            for client in clients.values():
                client.close()

        await trio.to_thread.run_sync(administer)
