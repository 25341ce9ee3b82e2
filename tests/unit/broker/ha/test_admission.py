"""Which slaves a master with access control serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from reput_broker.access.control import AccessControl
from reput_broker.access.model import User, Users
from reput_broker.access.user_file import UserFile
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import AccessConfig
from reput_broker.ha.admission import SlaveAdmission, proof_frame
from reput_broker.ha.frames import HAProtocolError
from reput_broker.observe.counters import Counters
from reput_client import Credentials, Message, Producer
from reput_protocol.rights import rule_of

SECRET = "secret-of-a-slave"
HOST = "10.0.0.7"


@pytest.fixture
def admission(tmp_path: Path) -> SlaveAdmission:
    file = UserFile(tmp_path / "users.json")
    users = Users()
    users = users.with_user(User("slave", SECRET, rules=(rule_of("cluster", ["replicate"], sources=[HOST]),)))
    users = users.with_user(User("eve", SECRET))
    return SlaveAdmission(AccessControl(file, users, file.state(), AccessConfig(), Counters()))


async def admit(admission: SlaveAdmission, *pieces: bytes) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    for piece in pieces:
        await theirs.send_all(piece)
    await admission.admit(ours)
    await ours.aclose()


@pytest.mark.trio
async def test_a_number_counts_once_with_the_secret_of_its_user(
    admission: SlaveAdmission, autojump_clock: trio.testing.MockClock
) -> None:
    frame = proof_frame(admission.number_for("slave", HOST), SECRET)
    await admit(admission, frame[:5], frame[5:])
    for wrong in (
        frame,
        proof_frame("00" * 16, SECRET),
        proof_frame(admission.number_for("slave", HOST), "another-secret"),
        proof_frame(admission.number_for("eve", HOST), SECRET),
        proof_frame(admission.number_for("slave", "10.0.0.8"), SECRET),
        b"\x00" * 8,
        frame[:20],
        b"",
    ):
        with pytest.raises(HAProtocolError):
            await admit(admission, wrong)
    late = proof_frame(admission.number_for("slave", HOST), SECRET)
    await trio.sleep(31)
    with pytest.raises(HAProtocolError, match="not valid any more"):
        await admit(admission, late)


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
