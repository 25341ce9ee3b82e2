"""The cost of idle group members: memory, descriptors and processor time of a broker with many clients and groups.

    python benchmarks/idle_clients.py --clients 10000 --groups 1000

Each client is a connection that sends a heartbeat for one group, and a second one later; RocketMQ's clients send one
every 30 s. Private memory is RssAnon of the broker's process. The first thousand clients are not counted, because they
include the shared memory.
"""

from __future__ import annotations

import argparse
import socket
import time

from reput_cli.bench_clients import host_facts
from reput_client.blocking import Admin
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import ConsumerData, HeartbeatData, SubscriptionData
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType
from servers import RunningBroker, broker

_WARM_CLIENTS = 1000


class IdleClient:
    """A member of a group, with its own connection."""

    def __init__(self, address: str, number: int, group: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._reader = FrameReader()
        subscriptions = [
            SubscriptionData.of("orders", "paid || refunded", 1_700_000_000_000),
            SubscriptionData.of(f"%RETRY%{group}", "*", 1_700_000_000_000),
        ]
        data = HeartbeatData(f"10.0.{number >> 8}.{number & 255}@{4711 + number}#12345678901234", [
            ConsumerData(group, subscriptions=subscriptions)
        ])  # fmt: skip
        self._heartbeat = encode_frame(Header(RequestCode.HEART_BEAT, 1, ext={}), HeaderType.JSON, data.to_json())

    def heartbeat(self) -> None:
        """Send a heartbeat and wait for its answer; notifications in between are dropped."""
        self._socket.sendall(self._heartbeat)
        while True:
            for frame in self._reader.receive_data(self._socket.recv(1 << 16)):
                header = decode_header(frame.header_type, frame.header)
                if header.flag & RESPONSE_FLAG:
                    assert header.code == 0, header.remark
                    return

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def main() -> None:
    """Connect, send heartbeats, disconnect, and print the cost of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=9000)
    parser.add_argument("--groups", type=int, default=1000)
    arguments = parser.parse_args()
    with broker("async", LIMITS__CONNECTIONS="100000", LIMITS__IDLE_TIMEOUT="30m") as server:
        with Admin(server.address, timeout_s=30.0) as admin:
            admin.create_topic("orders")
        measure(server, arguments.clients, arguments.groups)
    print(host_facts())


def measure(server: RunningBroker, count: int, groups: int) -> None:
    """Print one line for each stage."""
    print(f"start: {server.private_kib() / 1024:.1f} MiB private, {server.descriptors()} descriptors")
    clients: list[IdleClient] = []
    at_warm = (0.0, 0)
    started_at = time.perf_counter()
    for number in range(count):
        clients.append(IdleClient(server.address, number, f"group-{number % groups}"))
        clients[-1].heartbeat()
        if number + 1 == _WARM_CLIENTS:
            at_warm = (server.private_kib(), server.descriptors())
    seconds = time.perf_counter() - started_at
    more = count - _WARM_CLIENTS
    time.sleep(1.0)
    each = (server.private_kib() - at_warm[0]) / more
    print(
        f"{count} clients in {groups} groups: {server.private_kib() / 1024:.1f} MiB private, {each:.1f} KiB each "
        f"beyond the first {_WARM_CLIENTS}, {(server.descriptors() - at_warm[1]) / more:.2f} descriptors each; "
        f"joined in {seconds:.1f} s"
    )
    before, started_at = server.cpu_s(), time.perf_counter()
    for client in clients:
        client.heartbeat()
    used = server.cpu_s() - before
    print(f"a heartbeat: {1e6 * used / count:.0f} us of processor time; every 30 s that is {used / 30:.3f} of a core")
    before, started_at = server.cpu_s(), time.perf_counter()
    time.sleep(10.0)
    print(f"doing nothing: {(server.cpu_s() - before) / (time.perf_counter() - started_at):.3f} of a core")
    before, started_at = server.cpu_s(), time.perf_counter()
    for client in clients:
        client.close()
    while server.metric("reput_consumer_members"):
        time.sleep(0.05)
    print(
        f"all gone {time.perf_counter() - started_at:.1f} s after they started to disconnect, "
        f"{server.cpu_s() - before:.1f} s of processor time; {server.private_kib() / 1024:.1f} MiB private"
    )


if __name__ == "__main__":
    main()
