"""Users of a cluster by requests: at a master, its slave and the name server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.access.control import user_file_of
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.name_server import NameServer
from reput_client import Admin, Credentials
from reput_client.errors import BrokersFailed, PermissionDenied
from reput_protocol.errors import BrokerError
from reput_protocol.rights import rule_of

ADMIN = Credentials("admin", "the-secret-of-admin")
ON = {"enabled": True, "admin_secret": ADMIN.secret}
FILES = {"commit_log_file_size": "4MiB", "index_slots": 100, "index_entries": 400}


def config(path: Path, **more: Any) -> BrokerConfig:
    return BrokerConfig(data_dir=path, port=0, http_port="off", access=ON, **more)


@pytest.mark.trio
async def test_a_change_reaches_every_member_and_the_name_server(tmp_path: Path) -> None:
    names = NameServer(config(tmp_path / "names"))
    async with names:
        followed = {"name_servers": [names.address], "store": FILES}
        master = Broker(config(tmp_path / "master", ha_port=0, **followed))
        slave = Broker(config(tmp_path / "slave", broker_id=1, ha={"role": "SLAVE"}, ha_port="off", **followed))
        async with master, slave, Admin(names.address, credentials=ADMIN) as admin:
            while len((await admin.cluster_info()).broker_addr_table["broker-a"].broker_addrs) < 2:
                await trio.sleep(0.02)
            files = [user_file_of(each.config) for each in (names, master, slave)]
            await admin.create_user("alice", "the-secret-of-alice")
            await admin.put_rules("alice", [rule_of("topic:t", ["read"])])
            for file in files:
                alice = file.load().users["alice"]
                assert (alice.secret, alice.rules) == ("the-secret-of-alice", (rule_of("topic:t", ["read"]),))
            files[2].change(lambda users: users.without_user("alice"))
            table = await admin.list_users()
            assert {*table.users} == {"admin", "alice"}
            assert table.differing == {"alice": ("broker-a, slave 1",)}
            with pytest.raises(BrokersFailed, match=r"'broker-a, slave 1'.*no user 'alice'"):
                await admin.alter_user("alice", is_enabled=False)
            await admin.delete_user("alice")
            async with Admin(master.address, credentials=Credentials("alice", "the-secret-of-alice")) as other:
                with pytest.raises(PermissionDenied):
                    await other.list_users()


@pytest.mark.trio
async def test_requests_leave_an_administrator(tmp_path: Path) -> None:
    access = {"enabled": True, "generate_admin": True}
    options = BrokerConfig(data_dir=tmp_path, port=0, http_port="off", access=access, store=FILES)
    async with Broker(options) as broker:
        secret = user_file_of(options).load().users["admin"].secret
        async with Admin(broker.address, credentials=Credentials("admin", secret)) as admin:
            await admin.create_user("root", "the-secret-of-root", is_admin=True)
            await admin.alter_user("root", is_enabled=False)
            for change in (
                partial(admin.delete_user, "admin"),
                partial(admin.alter_user, "admin", is_admin=False),
                partial(admin.alter_user, "admin", is_enabled=False),
            ):
                with pytest.raises(BrokerError, match="no administrator would be left"):
                    await change()
            await admin.alter_user("root", is_enabled=True)
            await admin.delete_user("admin")
        assert {*user_file_of(options).load().users} == {"root"}
