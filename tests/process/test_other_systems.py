"""The client works without what only POSIX systems have: as on Windows, and on macOS, which has more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess

pytestmark = pytest.mark.process

WINDOWS = """
import errno, os, select, sys

LOOP = sys.argv[2]
sys.modules["fcntl"] = sys.modules["resource"] = None
import _socket
del _socket.AF_UNIX, _socket.socketpair
for name in ("O_DIRECTORY", "O_CLOEXEC", "posix_fallocate", "fork", "register_at_fork", "fdatasync"):
    delattr(os, name)
if LOOP != "trio":  # trio needs them on Linux
    for name in ("epoll", "poll"):
        delattr(select, name)
import socket, subprocess  # subprocess takes a system with msvcrt for Windows

class Socket(socket.socket):
    '''Windows says EWOULDBLOCK of a connection in progress, and has no sendmsg.'''
    def __getattribute__(self, name):
        if name == "sendmsg":
            raise AttributeError(name)
        return super().__getattribute__(name)
    def connect_ex(self, address):
        code = super().connect_ex(address)
        return errno.EWOULDBLOCK if code == errno.EINPROGRESS else code

socket.socket = Socket

class Locks:
    '''msvcrt: the second lock is refused.'''
    LK_NBLCK = 2
    locked = set()
    def locking(self, descriptor, mode, count):
        file = os.fstat(descriptor).st_ino
        if file in self.locked:
            raise PermissionError(errno.EACCES, "locked")
        self.locked.add(file)

sys.modules["msvcrt"] = Locks()
address = sys.argv[1]
bodies = [b"%d" % number + bytes(30_000) for number in range(100)]
"""

ASYNC = """
from reput_client import Admin, Consumer, Message, PullConsumer, Producer

async def use():
    async with Producer(address) as producer:
        await producer.send(Message(LOOP, b"alone"), queue_id=0)
        await producer.send_batch([Message(LOOP, body) for body in bodies], queue_id=0)
        await producer.send_many(LOOP, bodies, queue_id=0)
    async with PullConsumer(address, group="p") as consumer:
        result = await consumer.pull(LOOP, 0, 0)
        assert bytes(result.messages[0].body) == b"alone"
        await consumer.commit(LOOP, 0, 7)
        assert await consumer.committed(LOOP, 0) == 7
    found = []
    sys.platform = "win32"  # not before, for trio and asyncio have other modules there
    async with Consumer(address, group=LOOP, topic=LOOP, mode="broadcasting", start="earliest") as consumer:
        async for message in consumer:
            found.append(bytes(message.body))
            if len(found) == 201:
                break
    assert found == [b"alone", *bodies, *bodies]
    sys.platform = "linux"
    async with Consumer(address, group=LOOP, topic=LOOP, start="earliest") as consumer:
        async def handle(message):
            handled.append(bytes(message.body))
            if len(handled) == 201:
                consumer.stop()
        handled = []
        await consumer.run(handle)
        assert handled == found
    async with Admin(address) as admin:
        assert LOOP in await admin.list_topics()
"""

TRIO = """
import trio
trio.run(use)
"""

ASYNCIO = """
import asyncio

class Proactor(asyncio.SelectorEventLoop):
    '''Windows' default loop cannot wait for sockets.'''
    add_reader = asyncio.AbstractEventLoop.add_reader
    add_writer = asyncio.AbstractEventLoop.add_writer
    remove_reader = asyncio.AbstractEventLoop.remove_reader
    remove_writer = asyncio.AbstractEventLoop.remove_writer
    add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
    remove_signal_handler = asyncio.AbstractEventLoop.remove_signal_handler

with asyncio.Runner(loop_factory=Proactor) as runner:
    runner.run(use())
"""

BLOCKING = """
from reput_client.blocking import Admin, Consumer, Message, PullConsumer, Producer
from reput_client.errors import OffsetStoreInUse

with Producer(address) as producer:
    producer.send(Message(LOOP, b"alone"), queue_id=0)
    producer.send_batch([Message(LOOP, body) for body in bodies], queue_id=0)
    producer.send_many(LOOP, bodies, queue_id=0)
    producer.post(Message(LOOP, b"posted"), queue_id=0)
    producer.flush()
with PullConsumer(address, group="p") as consumer:
    assert bytes(consumer.pull(LOOP, 0, 0).messages[0].body) == b"alone"
found = []
sys.platform = "win32"
options = dict(group=LOOP, topic=LOOP, mode="broadcasting", start="earliest")
with Consumer(address, **options) as consumer:
    try:
        with Consumer(address, **options) as second:
            next(iter(second))
    except OffsetStoreInUse:
        pass
    else:
        raise AssertionError("two consumers with one file of offsets")
    for message in consumer:
        found.append(bytes(message.body))
        if len(found) == 202:
            break
assert found == [b"alone", *bodies, *bodies, b"posted"]
"""


def test_the_client_works_without_posix(tmp_path: Path) -> None:
    programs = {"trio": ASYNC + TRIO, "asyncio": ASYNC + ASYNCIO, "none": BLOCKING}
    with BrokerProcess(tmp_path / "store") as process:
        process.wait_ready()
        for loop, program in programs.items():
            command = [sys.executable, "-c", WINDOWS + program + "print('done')", process.address, loop]
            environment = {"REPUT_OFFSETS_DIR": str(tmp_path / "offsets")}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
            assert done.stdout == "done\n", (loop, done.stderr)
