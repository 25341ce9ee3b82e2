"""`reput proxy` as a process, in front of a broker that is killed.

`proxy_faults` kills under RocketMQ's own clients, in `make test` the proxy alone. The kills here need none of those,
and check that clients get no error but those after which they try again.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import duration_of
from support.broker_process import BrokerProcess
from support.cluster_of_three import ClusterOfThree
from support.grpc_client import Code, GrpcClient, Telemetry, client_of, consumer_settings, message
from support.proxy_process import ProxyProcess, running_proxy
from support.waiting import until, wait_until

pytestmark = pytest.mark.process

KILLS = 4
FAILOVERS = 2
SENDERS = 4


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    async def work(proxy: ProxyProcess) -> None:
        async with client_of(proxy.address) as client:
            stream = Telemetry(client)
            await stream.settle(consumer_settings("billing", "orders", pb.SIMPLE_CONSUMER))
            await client.send(message("orders", b"x", "ID"))
            [got] = await client.receive_all("orders", "billing", 1)
            waiting = asyncio.ensure_future(client.receive("orders", "billing", wait_s=20))
            pull = pb.PullMessageRequest(
                group=got.topic, long_polling_timeout=duration_of(20_000),
                message_queue=pb.MessageQueue(topic=got.topic, id=(got.system_properties.queue_id + 1) % 4),
            )  # fmt: skip
            pulling = asyncio.ensure_future(client.responses("PullMessage", pull))
            await asyncio.to_thread(wait_until, lambda: "reput_proxy_waiting_receives 2" in proxy.page("/metrics")[1])
            proxy.process.send_signal(signal.SIGTERM)
            status, _ = await waiting
            assert status.code == Code.MESSAGE_NOT_FOUND
            assert [each.status.code for each in await pulling] == [Code.MESSAGE_NOT_FOUND, 0]
            answer = await client.ack("billing", got)
            assert answer.status.code == Code.OK, "what a client has in hand can still be settled"
            status, _ = await client.receive("orders", "billing", wait_s=20)
            assert status.code == Code.INTERNAL_SERVER_ERROR, "after which clients try again"

    with BrokerProcess(tmp_path / "data") as broker:
        broker.wait_ready()
        address_file = tmp_path / "address"
        with running_proxy(tmp_path, broker.address, "--address-file", str(address_file)) as proxy:
            proxy.wait_ready()
            assert address_file.read_text() == proxy.address
            assert proxy.page("/healthz") == (200, "ok\n")
            assert proxy.page("/other")[0] == 404
            asyncio.run(work(proxy))
            assert proxy.process.wait(20) == 0, proxy.log
            assert "Traceback" not in proxy.log
            assert "requests_need_no_signature" in proxy.log


def test_it_is_not_ready_without_a_broker_and_becomes_ready(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with running_proxy(tmp_path, broker.address) as proxy:
        wait_until(lambda: proxy.page("/readyz")[0] == 503, what=lambda: proxy.log)
        with broker:
            broker.wait_ready()
            proxy.wait_ready()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--listen-tls-cert", "missing.pem"), "go together"),
        (("--listen-tls-cert", "missing.pem", "--listen-tls-key", "missing.pem"), "missing.pem"),
        (("--users", "missing.json"), "missing.json"),
        (("--advertise", "no port"), "no port"),
        (("--advertise", "http://proxy:8081"), "http://proxy:8081"),
        (("--port", "70000"), "--port"),  # it listened at 70000 % 65536
        (("--http-port", "70000"), "--http-port"),
        (("--tracing-sample-ratio", "0.5"), "--tracing-endpoint"),
    ],
)
def test_a_mistake_ends_it_with_a_text(tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    with running_proxy(tmp_path, "127.0.0.1:1", *arguments) as proxy:
        assert proxy.process.wait(30) != 0
        assert error in proxy.log
        assert "Traceback" not in proxy.log


def test_it_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    """It had room for a thousand clients, the usual limit of a process that does not ask for more."""
    few = ("sh", "-c", 'ulimit -Sn 200; exec "$@"', "sh", sys.executable, "-m", "reput_cli")
    with running_proxy(tmp_path, "127.0.0.1:1", command=few) as proxy:
        wait_until(lambda: proxy.page("/healthz")[0] == 200, what=lambda: proxy.log)
        soft, hard = resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard


class ProxyAway(Exception):
    """A call has not reached the proxy, or its answer the client."""


class Load:
    """Messages that are sent and received through a proxy while brokers are killed.

    Attributes:
        stored: the messages whose sends have succeeded.
        got: those that were received.
    """

    def __init__(self, address: str, *, kills_proxy: bool = False) -> None:
        self._address = address
        self._kills_proxy = kills_proxy
        self.stored: set[str] = set()
        self.got: set[str] = set()
        self._stopping = False
        self._done = False

    async def run(self, disturb: Callable[[], object], times: int) -> None:
        """Disturb the brokers several times; raises if a client gets another error than one to try again after."""
        async with client_of(self._address) as client, client_of(self._address, "client-2") as other:
            await client.send(message("orders", b"first", "first"))
            pops = [asyncio.ensure_future(self._receive(other)) for _ in range(2)]
            senders = [asyncio.ensure_future(self._send(client, f"sender{n}")) for n in range(SENDERS)]
            for _ in range(times):
                await self._more(50)
                await asyncio.to_thread(disturb)
            await self._more(50)
            self._stopping = True
            await asyncio.gather(*senders)
            async with asyncio.timeout(90):
                await until(lambda: self.stored <= self.got, within_s=90)
            self._done = True
            await asyncio.gather(*pops)

    async def _more(self, count: int) -> None:
        wanted = len(self.stored) + count
        await until(lambda: len(self.stored) >= wanted)

    async def _send(self, client: GrpcClient, name: str) -> None:
        number = 0
        while not self._stopping:
            number += 1
            sent = message("orders", f"{name}-{number}".encode(), f"{name}-{number}")
            with suppress(ProxyAway), self._proxy_may_be_away():
                answer = await client.call("SendMessage", pb.SendMessageRequest(messages=[sent]), 10.0)
                if answer.status.code == Code.OK:
                    self.stored.add(f"{name}-{number}")
                else:
                    assert answer.status.code >= Code.TOO_MANY_REQUESTS, answer

    async def _receive(self, client: GrpcClient) -> None:
        while not self._done:
            with suppress(ProxyAway), self._proxy_may_be_away():
                status, messages = await client.receive("orders", "billing", invisible_s=10.0, wait_s=5.0)
                assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND) or status.code >= Code.TOO_MANY_REQUESTS
                self.got.update(each.body.decode() for each in messages)
                if messages:  # whatever the answer: the broker may have it, and redelivers what it has not
                    await client.ack("billing", *messages)

    @contextmanager
    def _proxy_may_be_away(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if not self._kills_proxy or error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            raise ProxyAway from error


@pytest.mark.fault
def test_nothing_acknowledged_is_lost_while_the_broker_is_killed(tmp_path: Path) -> None:
    """Clients get codes after which they try again, and no other error."""
    with BrokerProcess(tmp_path / "data") as broker:
        broker.wait_ready()

        def kill() -> None:
            broker.kill()
            broker.start()
            broker.wait_ready()

        with running_proxy(tmp_path, broker.address) as proxy:
            proxy.wait_ready()
            asyncio.run(Load(proxy.address).run(kill, KILLS))
            assert "Traceback" not in proxy.log


@pytest.mark.fault
def test_nothing_acknowledged_is_lost_while_the_proxy_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        broker.wait_ready()
        with running_proxy(tmp_path, broker.address) as proxy:
            proxy.wait_ready()

            def kill() -> None:
                proxy.kill()
                proxy.start()
                proxy.wait_ready()

            asyncio.run(Load(proxy.address, kills_proxy=True).run(kill, KILLS))
            assert "Traceback" not in proxy.log


@pytest.mark.fault
def test_nothing_acknowledged_is_lost_in_a_failover(tmp_path: Path) -> None:
    options = {"REPUT_HA__IN_SYNC_REPLICAS": "2"}
    with ClusterOfThree(tmp_path, environment=options) as cluster:

        def kill() -> None:
            old = cluster.wait_in_sync(0, 1, 2)
            cluster.brokers[old].kill()
            cluster.wait_master()
            cluster.brokers[old].start()
            cluster.brokers[old].wait_ready()

        with running_proxy(tmp_path, ",".join(cluster.addresses), "--ack", "replicated") as proxy:
            proxy.wait_ready()
            asyncio.run(Load(proxy.address).run(kill, FAILOVERS))
            assert "Traceback" not in proxy.log
