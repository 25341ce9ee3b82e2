"""Hostile clients, in their own process: they send until the process is ended.

An attack is a coroutine that makes its own connections and ends. Those of a list follow each other with short pauses,
over and over. Every outcome (answered, closed, refused, timed out) is counted; the counts are written once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, cycle
from pathlib import Path

import msgpack  # type: ignore[import-untyped]

from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import Header, HeaderType, Value

OLD_TOPIC = "old"
"""The topic that holds enough to fill the outbox of a client that never reads."""
_PAUSE_S = 1.0
_PATIENCE_S = 30.0
_FRAME_BYTES = 16_777_216
_MOST_OF_A_FRAME = bytes(10 << 20)
_JSON_REQUESTS = {"lock": 41, "check_client": 46, "group": 200, "commit_staged": 700_042}
_opaques = count(1)
Attack = Callable[["Target"], Awaitable[None]]


@dataclass(slots=True)
class Target:
    """The broker under attack, and what has come of it so far."""

    port: int
    http_port: int
    outcomes: Counter[str]

    async def connect(self, port: int | None = None) -> socket.socket:
        """Open a connection to the message port, or to another port."""
        client = socket.socket()
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port or self.port))
        except BaseException:
            client.close()
            raise
        return client

    async def exchange(self, name: str, data: bytes, *, port: int | None = None, answers: int = 1) -> None:
        """Send bytes on a separate connection, read `answers` times, and count what came of it."""
        loop = asyncio.get_running_loop()
        client = await self.connect(port)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                sending = asyncio.create_task(_send(client, data))
                try:
                    for _ in range(answers):
                        answer = await loop.sock_recv(client, 1 << 16)
                        self.outcomes[f"{name}: {'answered' if answer else 'closed'}"] += 1
                        if not answer:
                            break
                finally:
                    sending.cancel()
        finally:
            client.close()


async def _send(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):  # the reader sees the end, too
        await asyncio.get_running_loop().sock_sendall(client, data)


def _request(
    code: int, ext: Mapping[str, Value] | None = None, body: bytes = b"", *, kind: int = HeaderType.JSON
) -> bytes:
    return encode_frame(Header(code, next(_opaques), ext=dict(ext or {})), kind, body)


def _pull(topic: str, queue_id: int, offset: int, *, wait_ms: int = 0, sql: str = "") -> bytes:
    ext: dict[str, Value] = {
        "consumerGroup": "hostile",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subVersion": "0",
        "subscription": sql or "*",
        "expressionType": "SQL92" if sql else "TAG",
    }
    return _request(11, ext)


# --- work: little is sent, much is to be done for it ----------------------------------------------------------------


async def upgrade_to_http2(target: Target) -> None:
    """Ask the HTTP port for HTTP/2, by an upgrade and by the preface."""
    head = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    upgrade = head + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n"
    await target.exchange("h2c upgrade", upgrade, port=target.http_port)
    priority = struct.pack(">I", 5)[1:] + b"\x02\x00" + struct.pack(">IIB", 1, 0, 15)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4)
    await target.exchange("h2 preface", preface + 2_000 * priority, port=target.http_port)


async def request_after_the_last(target: Target) -> None:
    """Send bytes behind a request that ends its connection."""
    get = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    for _ in range(5):
        await target.exchange(
            "request after close", get + b"Connection: close\r\n\r\n" + get + b"\r\n", port=target.http_port
        )
        await target.exchange("HTTP/1.0 and more", b"GET /livez HTTP/1.0\r\n\r\nxx", port=target.http_port)


async def heartbeat_of_many_groups(target: Target) -> None:
    """Register 20,000 producer groups with one heartbeat, and leave."""
    await target.exchange("heartbeat", _heartbeat())


async def large_json_bodies(target: Target) -> None:
    """Send JSON as large as a frame may be, in the loose form of RocketMQ's clients."""
    for name, code in _JSON_REQUESTS.items():
        await target.exchange(f"JSON to {name}", _loose_json(code))


async def many_groups_at_once(target: Target) -> None:
    """Create half a million groups with one request."""
    await target.exchange("500,000 groups", _groups())


# Made once: what is measured is the broker, not how fast a client makes nonsense.


@cache
def _heartbeat() -> bytes:
    groups = [{"groupName": f"g{number}"} for number in range(20_000)]
    body = json.dumps({"clientID": "hostile@1", "producerDataSet": groups, "consumerDataSet": []})
    return _request(34, body=body.encode())


@cache
def _loose_json(code: int) -> bytes:
    return _request(code, body=b'{1:{"a":[' + b'{2:"x"},' * 1_900_000 + b"{}]}}")


@cache
def _groups() -> bytes:
    groups = ",".join(f'{{"groupName":"m{number}"}}' for number in range(500_000))
    return _request(225, body=f'{{"groupConfigList":[{groups}]}}'.encode())


@cache
def _pulls(offset: int) -> bytes:
    return b"".join(_pull("parked", 0, offset, wait_ms=20_000) for _ in range(20_000))


async def nested_headers(target: Target) -> None:
    """Send msgpack headers of nothing but nested arrays."""
    header = msgpack.packb({"code": 11}) + b"\x91" * 60_000 + b"\xc0"
    frame = struct.pack(">II", 4 + len(header), 0x4D << 24 | len(header)) + header
    for _ in range(20):
        await target.exchange("nested header", frame)


async def long_expressions(target: Target) -> None:
    """Pull with SQL expressions of 8 KiB, each another."""
    for number in range(50):
        sql = " OR ".join(f"a{number} = {i}" for i in range(590))
        await target.exchange("SQL expression", _pull(OLD_TOPIC, 0, 0, sql=sql))


async def waiting_pulls(target: Target) -> None:
    """Have 20,000 pulls of one connection wait at the end of a queue, and put one message there."""
    loop = asyncio.get_running_loop()
    client = await target.connect()
    put = {"a": "PG", "b": "parked", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000",
           "h": "0", "i": "", "j": "0", "k": "false", "m": "false", "n": "broker-a"}  # fmt: skip
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await loop.sock_sendall(client, _request(310, put, b"x"))
            answer = await loop.sock_recv(client, 1 << 16)
            found = re.search(rb'"queueOffset":"?(\d+)', answer)
            if found is None:
                target.outcomes["waiting pulls: no put"] += 1
                return
            reading = asyncio.create_task(_read_away(client))
            await loop.sock_sendall(client, _pulls(int(found[1]) + 1))
            await loop.sock_sendall(client, _request(310, put, b"x"))
            await asyncio.sleep(2.0)
            reading.cancel()
            target.outcomes["waiting pulls: done"] += 1
    finally:
        client.close()


async def _read_away(client: socket.socket) -> None:
    try:
        while await asyncio.get_running_loop().sock_recv(client, 1 << 18):
            pass
    except ConnectionError:
        pass


# --- memory: much is begun, nothing is finished ---------------------------------------------------------------------


async def trickling_frames(target: Target, connections: int = 34) -> None:
    """Begin the largest frames, send most of each, and then one byte a second."""

    async def trickle() -> None:
        client = await target.connect()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await _send_or_fail(client, struct.pack(">II", _FRAME_BYTES - 4, 100))
                await _send_or_fail(client, _MOST_OF_A_FRAME)
                while True:
                    await asyncio.sleep(1.0)
                    await _send_or_fail(client, b"x")
        except (ConnectionError, TimeoutError) as error:
            target.outcomes[f"half frame: {'timed out' if isinstance(error, TimeoutError) else 'closed'}"] += 1
        finally:
            client.close()

    await asyncio.gather(*(trickle() for _ in range(connections)))


async def _send_or_fail(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def many_trickling_frames(target: Target) -> None:
    """Begin 300 of the largest frames."""
    await trickling_frames(target, 300)


async def pullers_that_never_read(target: Target) -> None:
    """Ask for a lot over 200 connections, and read nothing."""

    async def ask() -> None:
        client = await target.connect()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                for offset in range(0, 32_000, 32):
                    await _send_or_fail(client, _pull(OLD_TOPIC, 0, offset % 16_000))
                await asyncio.sleep(10.0)
                target.outcomes["never read: kept"] += 1
        except (ConnectionError, TimeoutError) as error:
            target.outcomes[f"never read: {'stuck' if isinstance(error, TimeoutError) else 'closed'}"] += 1
        finally:
            client.close()

    await asyncio.gather(*(ask() for _ in range(200)))


async def one_byte_a_second(target: Target) -> None:
    """Send a whole, small request at one byte a second."""

    async def send_slowly() -> None:
        client = await target.connect()
        try:
            for byte in _pull(OLD_TOPIC, 0, 0)[:60]:
                await _send_or_fail(client, bytes([byte]))
                await asyncio.sleep(1.0)
            target.outcomes["byte a second: kept"] += 1
        except ConnectionError:
            target.outcomes["byte a second: closed"] += 1
        finally:
            client.close()

    await asyncio.gather(*(send_slowly() for _ in range(50)))


LISTS: Mapping[str, tuple[Attack, ...]] = {
    "work": (
        upgrade_to_http2, request_after_the_last, heartbeat_of_many_groups, large_json_bodies,
        many_groups_at_once, nested_headers, long_expressions, waiting_pulls,
    ),
    "memory": (trickling_frames, many_trickling_frames, pullers_that_never_read, one_byte_a_second),
}  # fmt: skip


async def _repeat(attacks: Sequence[Attack], target: Target) -> None:
    for attack in cycle(attacks):
        try:
            await attack(target)
        except (OSError, TimeoutError) as error:
            target.outcomes[f"{attack.__name__}: {type(error).__name__}"] += 1
        await asyncio.sleep(_PAUSE_S)


async def _attack(name: str, target: Target, report: Path) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_repeat(LISTS[name], target))
        while True:
            _write(report, target.outcomes)
            await asyncio.sleep(1.0)


def _write(report: Path, outcomes: Mapping[str, int]) -> None:
    report.write_text(json.dumps(outcomes))


def main() -> None:
    """`python -m hostile.attacks LIST PORT HTTP_PORT REPORT`: attack until killed."""
    name, port, http_port, report = sys.argv[1:]
    os.nice(19)  # what is measured is the broker, not who gets the processor
    asyncio.run(_attack(name, Target(int(port), int(http_port), Counter()), Path(report)))


if __name__ == "__main__":
    main()
