"""A slave and its master with access control: what the slave may ask, and what each proves to the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.access.model import User, Users
from reput_broker.access.user_file import UserFile
from reput_broker.broker import Broker
from reput_broker.compose import master as compose
from reput_broker.config.model import BrokerConfig
from reput_broker.ha.election.candidacy import OtherMembers
from reput_broker.namesrv.members import GroupMembers
from reput_broker.remoting.client import RemotingClient
from reput_broker.remoting.request import ClientAnswer
from reput_client import TLS, Admin, Credentials, Message, Producer
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.rights import rule_of
from support.inside import status_of, storage_of
from support.tls_files import make_tls_files
from support.waiting import until

SECRET = "secret-of-the-administrator"
SLAVES_SECRET = "secret-of-the-slaves"
ADMIN = Credentials("admin", SECRET)
FILES = {"commit_log_file_size": "4MiB", "index_slots": 100, "index_entries": 400}

pytestmark = pytest.mark.trio


def master_config(path: Path, **sections: Any) -> BrokerConfig:
    """A master whose slaves' user may replicate, and nothing else."""
    users = Users().with_user(User("slave", SLAVES_SECRET, rules=(rule_of("cluster", ["replicate"]),)))
    UserFile(path / "access" / "users.json").change(lambda _: users)
    access = {"enabled": True, "admin_secret": SECRET}
    return BrokerConfig(data_dir=path, port=0, ha_port=0, access=access, store=FILES, **sections)


def slave_config(path: Path, master: str, *, ha: Mapping[str, Any] | None = None, **more: Any) -> BrokerConfig:
    return BrokerConfig(
        data_dir=path,
        port=0,
        broker_id=1,
        ha={"role": "SLAVE", "master": master, **(ha or {})},
        access={"broker_user": "slave", "broker_secret": SLAVES_SECRET},
        store=FILES,
        **more,
    )


async def put_something(master: Broker, tls: TLS | None = None) -> None:
    async with Producer(master.address, credentials=ADMIN, tls=tls) as producer:
        await producer.send(Message("orders", b"x"))
    async with Admin(master.address, credentials=ADMIN, tls=tls) as admin:
        await admin.put_group(SubscriptionGroupConfig("billing"))


def state_of(slave: Broker) -> str:
    return str(status_of(slave, "replication"))


def has_all(master: Broker, slave: Broker) -> bool:
    tables = storage_of(slave).tables
    return (
        slave.store.max_physical_offset == master.store.max_physical_offset > 0
        and tables.topics.get("orders") is not None
        and tables.groups.get("billing") is not None
    )


@pytest.mark.parametrize("with_tls", [False, True])
async def test_a_user_with_replicate_alone_copies_the_log_and_the_tables(tmp_path: Path, with_tls: bool) -> None:
    sections: dict[str, Any] = {}
    tls = None
    if with_tls:
        files = make_tls_files(tmp_path)
        sections["tls"] = files.server_options(connect=True)
        tls = TLS(ca=str(files.ca))
    async with Broker(master_config(tmp_path / "1", **sections)) as master:
        await put_something(master, tls)
        async with Broker(slave_config(tmp_path / "2", master.address, **sections)) as slave:
            await until(lambda: has_all(master, slave))
            assert "copies the log" in state_of(slave)


@asynccontextmanager
async def passing_on(to: str) -> AsyncIterator[str]:
    """A program at another address that passes every byte on, both ways."""
    host, _, port = to.rpartition(":")

    async def serve(here: trio.SocketStream) -> None:
        there = await trio.open_tcp_stream(host, int(port))

        async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            try:
                async for data in source:
                    await sink.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            await trio.aclose_forcefully(sink)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy, here, there)
            nursery.start_soon(copy, there, here)

    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(trio.serve_tcp, serve, 0)
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_a_program_in_between_gets_nothing_of_the_log(tmp_path: Path) -> None:
    async with Broker(master_config(tmp_path / "1")) as master:
        await put_something(master)
        async with passing_on(master.ha_address or "") as between:
            config = slave_config(tmp_path / "2", master.address, ha={"master_ha_address": between})
            async with Broker(config) as slave:
                await until(lambda: "has not proved to be the master" in state_of(slave))
                assert slave.store.max_physical_offset == 0


async def test_a_candidate_believes_members_that_know_its_secret(tmp_path: Path) -> None:
    election = {"etcd": ["http://127.0.0.1:1"]}  # without an answer all stay slaves
    config = master_config(tmp_path / "1", broker_id=1, election=election)
    access = {"broker_user": "slave", "broker_secret": SLAVES_SECRET}
    candidate = BrokerConfig(data_dir=tmp_path / "3", ha_port=0, broker_id=3, access=access, election=election)
    others = OtherMembers(candidate, GroupMembers(lambda: 0.0), lambda: None)
    stranger = BrokerConfig(data_dir=tmp_path / "2", port=0, ha_port=0, broker_id=2, election=election, store=FILES)
    async with Broker(config) as member, Broker(stranger) as other:
        addresses = {2: member.address, 3: other.address, 4: "127.0.0.1:1", 5: "not an address"}
        answers = await others.ask(addresses, 5.0)
        assert [(state.member, state.seen_record) for state in answers] == [(1, (0, 0))]


async def test_a_broker_without_the_secret_is_not_followed(tmp_path: Path) -> None:
    """A slave neither copies a log nor truncates its own because of a stranger's answer."""
    users_secret = "not-the-secret-of-the-slaves"
    async with Broker(BrokerConfig(data_dir=tmp_path / "1", port=0, ha_port=0, store=FILES)) as stranger:
        async with Producer(stranger.address) as producer:
            await producer.send(Message("orders", users_secret.encode()))
        async with Broker(slave_config(tmp_path / "2", stranger.address)) as slave:
            await until(lambda: "does not prove that it is a master" in state_of(slave))
            assert slave.store.max_physical_offset == 0
        loose = slave_config(tmp_path / "2", stranger.address, ha={"mutual_proof": False})
        async with Broker(loose) as slave:
            await until(lambda: slave.store.max_physical_offset == stranger.store.max_physical_offset)


async def test_an_answer_that_was_changed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while brokers of earlier versions, which prove nothing, are accepted."""
    receive = RemotingClient.call

    async def changed(self: RemotingClient, *arguments: Any, **options: Any) -> ClientAnswer:
        answer = await receive(self, *arguments, **options)
        answer.body = answer.body.replace(b"broker-a", b"broker-b")
        return answer

    monkeypatch.setattr(RemotingClient, "call", changed)
    async with Broker(master_config(tmp_path / "1")) as master:
        await put_something(master)
        async with Broker(slave_config(tmp_path / "2", master.address, ha={"mutual_proof": False})) as slave:
            await until(lambda: "does not prove that it is a master" in state_of(slave))
            assert slave.store.max_physical_offset == 0


@pytest.mark.parametrize("is_loose", [True, False])
async def test_brokers_of_earlier_versions_need_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_loose: bool
) -> None:
    """A master of an earlier version proves nothing, and gets the proof of earlier versions."""
    monkeypatch.setattr(compose, "proving", lambda handlers, _group: handlers)
    master_ha = {"mutual_proof": False}
    async with Broker(master_config(tmp_path / "1", ha=master_ha)) as master:
        await put_something(master)
        config = slave_config(tmp_path / "2", master.address, ha={"mutual_proof": not is_loose})
        async with Broker(config) as slave:
            if is_loose:
                await until(lambda: has_all(master, slave))
            else:
                await until(lambda: "set ha.mutual_proof = false until it is replaced" in state_of(slave))
                assert slave.store.max_physical_offset == 0
