"""Roles by configuration: a master, and a slave that finds its master."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from reput_broker.config.model import BrokerConfig
from reput_broker.tenure.core import Master, Role, StaticTenures, Tenure


def slave(**ha: Any) -> BrokerConfig:
    return BrokerConfig(port=0, broker_id=2, name_servers=("127.0.0.1:9876",), ha={"role": "SLAVE", **ha})


def test_a_master_as_configured() -> None:
    tenure = StaticTenures(BrokerConfig(ha={"role": "SYNC_MASTER"})).current
    assert tenure == Tenure(Role.SYNC_MASTER, 0)
    assert tenure.is_master


def test_the_log_of_a_master_is_at_the_port_after_its_own_unless_configured() -> None:
    assert StaticTenures(slave(master="a:10911")).current.master == Master("a:10911", "a:10912")
    other = slave(master="a:10911", master_ha_address="b:7")
    assert StaticTenures(other).current.master == Master("a:10911", "b:7")


@pytest.mark.trio
async def test_a_slave_follows_the_master_that_the_name_servers_name() -> None:
    source = StaticTenures(slave())
    first = source.current
    assert first == Tenure(Role.SLAVE, 2)
    told: list[Tenure] = []

    async def watch() -> None:
        tenure = first
        while len(told) < 2:
            await source.changed(tenure)
            tenure = source.current
            told.append(tenure)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for address, ha_address in (("", ""), ("a:1", "a:5"), ("a:1", "a:5"), ("", "")):
            source.master_found(address, ha_address)
            await wait_all_tasks_blocked()
        assert [tenure.master for tenure in told] == [Master("a:1", "a:5")]
        source.master_found("b:1", "")
    assert told[-1].master == Master("b:1", "b:2")
    assert not told[-1].differs_in_role(first), "it connects elsewhere, and does not restart"


def test_a_master_that_is_configured_stays() -> None:
    source = StaticTenures(slave(master="a:1"))
    source.master_found("b:1", "b:2")
    assert source.current.master == Master("a:1", "a:2")
