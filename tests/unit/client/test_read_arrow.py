"""`read_arrow` over several brokers, one of which fails over while it is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reput_client.arrow import read_arrow
from reput_client.errors import DataLost
from support.fake_cluster import FakeCluster

BODIES = {name: [b"%s-%d" % (name.encode(), number) for number in range(6)] for name in ("broker-a", "broker-b")}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster({"broker-a": 2, "broker-b": 1}) as cluster:
        for name, bodies in BODIES.items():
            cluster.master(name).store("t", *bodies)
        yield cluster


def read(cluster: FakeCluster, **given: object) -> dict[str, list[bytes]]:
    """Return the bodies by broker."""
    found: dict[str, list[bytes]] = {}
    reader = read_arrow(cluster.names.address, "t", columns=["brokerName", "value"], **given)  # type: ignore[arg-type]
    for row in reader.read_all().to_pylist():
        found.setdefault(row["brokerName"], []).append(row["value"])
    return found


def test_all_brokers_of_a_topic_are_read(cluster: FakeCluster) -> None:
    assert read(cluster) == BODIES
    assert read(cluster, start={("broker-a", 0): 4}, end={("broker-b", 0): 2}) == {
        "broker-a": BODIES["broker-a"][4:],
        "broker-b": BODIES["broker-b"][:2],
    }


def test_a_queue_that_several_brokers_have_is_named_with_its_broker(cluster: FakeCluster) -> None:
    with pytest.raises(ValueError, match=r"which brokers 'broker-a', 'broker-b' each have.*\('broker-a', 0\)"):
        read(cluster, start={0: 4})
    with pytest.raises(DataLost, match=r"t/broker-b/0: start is 7, but its messages are \[0, 6\)"):
        read(cluster, start={("broker-b", 0): 7})


@pytest.mark.parametrize("how", ["killed", "handed over"])
def test_a_reader_follows_a_failover(cluster: FakeCluster, how: str) -> None:
    reader = read_arrow(cluster.names.address, "t", columns=["value"], timeout_s=5.0)
    if how == "killed":
        cluster.members["broker-a"][0].stop()
    cluster.promote(broker_a=1)
    cluster.master("broker-a").store("t", b"later")  # is not read: the end was decided
    assert reader.read_all()["value"].to_pylist() == [*BODIES["broker-a"], *BODIES["broker-b"]]
