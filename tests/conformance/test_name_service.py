"""One cluster of a broker of each kind, behind a name server of each kind: RocketMQ's tools and clients see both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance import apache
from conformance.counts import COUNTS
from conformance.java_cluster import JavaCluster
from reput_client.blocking import Consumer, Message, Producer
from support.broker_process import BrokerProcess, free_port
from support.waiting import wait_until

pytestmark = pytest.mark.process

REPUT, APACHE = "broker-reput", "broker-apache"
SETTLE_S = 90


class Scene:
    """A broker of each kind, registered with one name server."""

    def __init__(self, java: JavaCluster, names: str, reput: BrokerProcess, apache_port: int) -> None:
        self.java, self.names, self.reput = java, names, reput
        self.failure = ""
        self.apache_address = f"127.0.0.1:{apache_port}"

    def admin(self, *arguments: str) -> str:
        """What a command of `mqadmin` prints."""
        answer = self.java.ask("admin", arguments=[*arguments, "-n", self.names])
        self.failure = str(answer["failed"])
        return str(answer["printed"])

    def until(self, found: Callable[[], bool], what: str) -> None:
        """Wait until something holds; name servers and brokers need some seconds for it."""
        wait_until(found, SETTLE_S, what=lambda: f"{what}; the last command failed with: {self.failure}")

    def until_registered(self, address: str) -> None:
        """Wait until the name server lists a broker."""
        self.until(lambda: address in self.admin("clusterList"), f"{address} is registered")

    def until_shown(self, address: str) -> None:
        """Wait until a broker answers with its figures."""
        self.until(lambda: "brokerVersionDesc" in self.admin("brokerStatus", "-b", address), f"figures of {address}")

    def until_committed(self, group: str, topic: str, count: int) -> None:
        """Wait until the committed offsets of a group have this sum."""
        self.until(lambda: self.committed(group, topic) == count, f"offsets of {group}")

    def route(self, topic: str) -> dict[str, str]:
        """The master's address of every broker that has a topic, as `mqadmin topicRoute` shows it."""
        printed = self.admin("topicRoute", "-t", topic)
        if '"brokerDatas"' not in printed:
            return {}
        text = printed[printed.index("{") : printed.rindex("}") + 1].replace("{0:", '{"0":')
        return {data["brokerName"]: data["brokerAddrs"]["0"] for data in json.loads(text)["brokerDatas"]}

    def committed(self, group: str, topic: str) -> int:
        """The sum of a group's committed offsets over all queues, as `mqadmin consumerProgress` shows them."""
        rows = [line.split() for line in self.admin("consumerProgress", "-g", group).splitlines()]
        return sum(int(row[4]) for row in rows if row[:1] == [topic])

    @property
    def both(self) -> dict[str, str]:
        """The masters of both brokers."""
        return {REPUT: self.reput.address, APACHE: self.apache_address}


@pytest.fixture(params=[pytest.param("rocketmq", marks=pytest.mark.long), "reput"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    names = f"127.0.0.1:{free_port()}"
    java = JavaCluster(tmp_path / "java")
    own: subprocess.Popen[bytes] | None = None
    try:
        if request.param == "reput":
            command = [sys.executable, "-m", "reput_cli", "namesrv", "--port", names.rpartition(":")[2]]
            command += ["--http-port", "0", "--data-dir", str(tmp_path / "names")]
            own = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        else:
            java.ask("names", port=int(names.rpartition(":")[2]), dir=str(tmp_path))
        environment = {"REPUT_BROKER_NAME": REPUT, "REPUT_NAME_SERVERS": names}
        with BrokerProcess(tmp_path / "reput", environment=environment) as reput:
            port = apache.free_broker_port()
            java.start_broker(APACHE, names, port, compressed=request.param == "reput")
            yield Scene(java, names, reput, port)
    finally:
        java.close()
        if own is not None:
            own.terminate()
            assert own.wait(30) == 0


@pytest.mark.long
def test_rocketmqs_tools_show_and_change_both_brokers(scene: Scene) -> None:
    for address in scene.both.values():
        scene.until_registered(address)
    rows = [line.split() for line in scene.admin("clusterList").splitlines() if "DefaultCluster" in line]
    assert {(row[1], row[2], row[3]) for row in rows} == {
        (REPUT, "0", scene.reput.address),
        (APACHE, "0", scene.apache_address),
    }
    for address in scene.both.values():
        scene.until_shown(address)

    created = scene.admin("updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "2", "-w", "2")
    assert created.count("success") == 2, created
    scene.until(lambda: scene.route("Orders") == scene.both, "both brokers have the topic")
    assert "Orders" in scene.admin("topicList").split()
    assert "Orders" in scene.admin("topicList", "-c").split()

    for code, perm in (("wipeWritePerm", 4), ("addWritePerm", 6)):
        printed = scene.admin(code, "-b", REPUT)
        assert "of broker" in printed, printed
        route = scene.admin("topicRoute", "-t", "Orders")
        assert f'"perm":{perm}' in route, (code, route)

    scene.admin("updateKvConfig", "-s", "N", "-k", "key", "-v", "value")
    deleted = scene.admin("deleteTopic", "-c", "DefaultCluster", "-t", "Orders")
    assert "success" in deleted, deleted
    scene.until(lambda: scene.route("Orders") == {}, "no broker has the topic")
    assert "Orders" not in scene.admin("topicList").split()
    COUNTS["commands of mqadmin on both brokers"] += 11


@pytest.mark.long
def test_brokers_leave(scene: Scene) -> None:
    for address in scene.both.values():
        scene.until_registered(address)
    scene.java.ask("stop brokers")
    scene.until(lambda: scene.apache_address not in scene.admin("clusterList"), "RocketMQ's broker has left")
    assert scene.reput.address in scene.admin("clusterList")
    scene.reput.kill()
    scene.until(lambda: scene.reput.address not in scene.admin("clusterList"), "a killed broker is dropped at once")


def test_a_topic_over_both_brokers(scene: Scene) -> None:
    """RocketMQ's client and the bundled one produce to both brokers, and each consumes every message once."""
    for address in scene.both.values():
        scene.until_registered(address)
    scene.admin("updateTopic", "-c", "DefaultCluster", "-t", "Shared", "-r", "4", "-w", "4")
    scene.until(lambda: scene.route("Shared") == scene.both, "both brokers have the topic")
    taken = scene.java.ask("produce", names=scene.names, topic="Shared", count=400)
    assert sum(taken.values()) == 400
    assert min(taken[REPUT], taken[APACHE]) >= 150, "round robin"
    ours = [f"python {number}" for number in range(400)]
    with Producer(scene.names, ack="page_cache", timeout_s=30.0) as producer:
        receipts = [producer.send(Message("Shared", body.encode())) for body in ours[:200]]
        for start in range(200, 400, 20):
            receipts += producer.send_many("Shared", [body.encode() for body in ours[start : start + 20]])
    hosts = Counter(receipt.store_host for receipt in receipts)
    assert set(hosts) == set(scene.both.values())
    assert min(hosts.values()) >= 100, "both brokers take messages"
    places = {(receipt.store_host, receipt.queue_id, receipt.queue_offset) for receipt in receipts}
    assert len(places) == len({receipt.offset_message_id for receipt in receipts}) == len(ours)

    sent = sorted([*(f"java {number}" for number in range(400)), *ours])
    bodies = scene.java.ask("consume", names=scene.names, topic="Shared", group="java-group", count=800)["bodies"]
    assert sorted(bodies) == sent, "each once"
    found = []
    with Consumer(scene.names, group="python-group", topic="Shared", start="earliest", timeout_s=30.0) as consumer:
        for message in consumer:
            found.append(message.body.decode())
            if len(found) == len(sent):
                break
    assert sorted(found) == sent, "each once"
    for group in ("java-group", "python-group"):
        scene.until_committed(group, "Shared", len(sent))
    COUNTS["messages of a topic over both brokers"] += len(bodies) + len(found)
