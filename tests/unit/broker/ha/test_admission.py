"""Which slaves a master with access control serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.access.control import AccessControl
from reput_broker.access.model import User, Users
from reput_broker.access.user_file import UserFile
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import AccessConfig
from reput_broker.ha.admission import Group, SlaveAdmission, old_proof_frame, prove
from reput_broker.ha.frames import HAProtocolError
from reput_broker.observe.counters import Counters
from reput_client import Credentials, Message, Producer
from reput_protocol.rights import rule_of

SECRET = "secret-of-a-slave"
HOST = "10.0.0.7"


GROUP = Group("DefaultCluster", "broker-a", 7)
ADDRESS = "10.0.0.1:10912"


def users_of(tmp_path: Path) -> AccessControl:
    file = UserFile(tmp_path / "users.json")
    users = Users()
    users = users.with_user(User("slave", SECRET, rules=(rule_of("cluster", ["replicate"], sources=[HOST]),)))
    users = users.with_user(User("eve", SECRET))
    return AccessControl(file, users, file.state(), AccessConfig(), Counters())


@pytest.fixture
def admission(tmp_path: Path) -> SlaveAdmission:
    return SlaveAdmission(users_of(tmp_path), GROUP, lambda: (ADDRESS,))


class Ends:
    """What a slave and a master conclude of each other."""

    def __init__(self) -> None:
        self.slave: Exception | None = None
        self.master: Exception | None = None


async def meet(
    admission: SlaveAdmission,
    number: str,
    *,
    user: str = "slave",
    secret: str = SECRET,
    group: Group = GROUP,
    dialled: str = ADDRESS,
    between: Callable[[bytes], bytes] = bytes,
) -> Ends:
    """Let a slave and a master prove themselves; `between` changes what the slave sends."""
    slave, slaves_peer = trio.testing.memory_stream_pair()
    masters_peer, master = trio.testing.memory_stream_pair()
    ends = Ends()

    async def pass_on() -> None:
        await masters_peer.send_all(between(bytes(await slaves_peer.receive_some())))
        while data := await masters_peer.receive_some():
            await slaves_peer.send_all(data)
        await slaves_peer.aclose()

    async def serve() -> None:
        try:
            await admission.admit(master)
        except HAProtocolError as error:
            ends.master = error
        await master.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_on)
        nursery.start_soon(serve)
        try:
            await prove(slave, number, user, secret, group, dialled)
        except HAProtocolError as error:
            ends.slave = error
        await slave.aclose()
    return ends


@pytest.mark.trio
async def test_both_ends_prove_themselves(admission: SlaveAdmission, autojump_clock: trio.testing.MockClock) -> None:
    number = admission.number_for("slave", HOST)
    ends = await meet(admission, number)
    assert (ends.slave, ends.master) == (None, None)
    ends = await meet(admission, number)
    assert "not valid any more" in str(ends.master), "a number counts once"
    assert "has not proved to be the master" in str(ends.slave)
    late = admission.number_for("slave", HOST)
    await trio.sleep(31)
    assert "not valid any more" in str((await meet(admission, late)).master)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"secret": "another-secret"}, "has not proved"),
        ({"group": Group("DefaultCluster", "broker-b", 7)}, "has not proved"),
        ({"group": Group("DefaultCluster", "broker-a", 8)}, "has not proved"),
        ({"dialled": "10.6.6.6:10912"}, "has connected to 10.6.6.6:10912"),
        ({"between": lambda data: data[:-1] + bytes([data[-1] ^ 1])}, "has not proved"),
        ({"between": lambda data: data[:40]}, "not complete"),
        ({"between": lambda _: bytes(8)}, "has not proved its user"),
    ],
)
async def test_a_proof_counts_only_between_its_two_ends(
    admission: SlaveAdmission, autojump_clock: trio.testing.MockClock, changes: dict[str, Any], reason: str
) -> None:
    ends = await meet(admission, admission.number_for("slave", HOST), **changes)
    assert reason in str(ends.master)
    assert "has not proved to be the master" in str(ends.slave)


@pytest.mark.trio
async def test_users_without_the_right_are_not_admitted(
    admission: SlaveAdmission, autojump_clock: trio.testing.MockClock
) -> None:
    ends = await meet(admission, admission.number_for("eve", HOST), user="eve")
    assert "lacks the right" in str(ends.master)
    assert ends.slave is not None
    ends = await meet(admission, admission.number_for("slave", "10.0.0.8"))
    assert "lacks the right" in str(ends.master), "a rule of another address"


@pytest.mark.trio
@pytest.mark.parametrize("is_strict", [True, False])
async def test_slaves_of_earlier_versions_need_the_option(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, is_strict: bool
) -> None:
    admission = SlaveAdmission(users_of(tmp_path), GROUP, lambda: (), needs_mutual_proof=is_strict)

    async def is_admitted(frame: bytes) -> bool:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(frame)
        try:
            await admission.admit(ours)
        except HAProtocolError:
            return False
        return True

    frame = old_proof_frame(admission.number_for("slave", HOST), SECRET)
    assert await is_admitted(frame) is not is_strict
    assert not await is_admitted(frame), "a number counts once"
    assert not await is_admitted(old_proof_frame(admission.number_for("slave", HOST), "another-secret"))
    assert not await is_admitted(old_proof_frame("00" * 16, SECRET))


@pytest.mark.trio
async def test_a_slave_with_the_secret_copies_and_others_do_not(tmp_path: Path) -> None:
    files = {"commit_log_file_size": "4MiB", "index_slots": 100, "index_entries": 400}
    on = {"enabled": True, "admin_secret": SECRET}
    admin = Credentials("admin", SECRET)
    master = BrokerConfig(data_dir=tmp_path / "master", port=0, ha_port=0, access=on, store=files)

    def slave(name: str, **access: object) -> BrokerConfig:
        return BrokerConfig(
            data_dir=tmp_path / name,
            port=0,
            broker_id=1,
            ha={"role": "SLAVE", "master": broker.address},
            access=access,
            store=files,
        )

    async with Broker(master) as broker:
        async with Producer(broker.address, credentials=admin) as producer:
            await producer.send(Message("t", b"x"))
        end = broker.store.max_physical_offset
        async with Broker(slave("good", **on)) as good, Broker(slave("bad")) as bad:
            with trio.fail_after(120):
                while good.store.max_physical_offset < end:
                    await trio.sleep(0.05)
            assert bad.store.max_physical_offset == 0
            host, _, port = (broker.ha_address or "").rpartition(":")
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.send_all(bytes(8))  # as a slave of RocketMQ begins
            with trio.fail_after(60):
                assert await stream.receive_some(1) == b""
            await stream.aclose()
