"""Damage in an old file of the log, read through a running broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_client import Consumer, Message, Producer, PullConsumer
from reput_client.errors import DamagedMessage
from reput_client.received import ReceivedMessage

pytestmark = pytest.mark.process

COUNT = 60
DAMAGED = 7
SMALL = {"commit_log_file_size": 4096, "consume_queue_entries": 16}


def config_of(data_dir: Path) -> BrokerConfig:
    return BrokerConfig(data_dir=data_dir, port=0, store=SMALL)


async def filled(data_dir: Path) -> None:
    async with Broker(config_of(data_dir)) as broker, Producer(broker.address, group="p") as producer:
        for number in range(COUNT):
            body = b"%03d" % number + bytes(200)
            await producer.send(Message("t", body, tag="even" if number % 2 == 0 else "odd"), queue_id=0)


def place_of(data_dir: Path, number: int) -> tuple[Path, int]:
    """The log file that holds a message, and where its record starts there."""
    entry = (data_dir / "consumequeue" / "t" / "0" / f"{0:020d}").read_bytes()[20 * number :][:20]
    offset = int.from_bytes(entry[:8], "big")
    return data_dir / "commitlog" / f"{offset - offset % 4096:020d}", offset % 4096


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def damage_size(data_dir: Path) -> None:
    path, start = place_of(data_dir, DAMAGED)
    flip(path, start + 2)


def damage_body(data_dir: Path) -> None:
    path, start = place_of(data_dir, DAMAGED)
    flip(path, start + 100)


def damage_queue_offset(data_dir: Path) -> None:
    path, start = place_of(data_dir, DAMAGED)
    flip(path, start + 20)


def damage_entry(data_dir: Path) -> None:
    """The entry of one message points at the record of another."""
    path = data_dir / "consumequeue" / "t" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20 * DAMAGED : 20 * DAMAGED + 20] = data[:20]
    path.write_bytes(data)


DAMAGES = [damage_size, damage_body, damage_queue_offset, damage_entry]


def content(message: ReceivedMessage) -> bytes | None:
    try:
        return message.body[:3]
    except DamagedMessage as error:
        named = error
    assert (named.topic, named.queue_id, named.queue_offset) == ("t", 0, message.queue_offset)
    return None


def expected(step: int = 1) -> dict[int, bytes | None]:
    return {number: None if number == DAMAGED else b"%03d" % number for number in range(0, COUNT, step)}


@pytest.mark.trio
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_consumer_gets_an_error_for_the_message_and_all_others(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    await filled(tmp_path)
    damage(tmp_path)
    async with Broker(config_of(tmp_path)) as broker:
        found: dict[int, bytes | None] = {}
        async with Consumer(broker.address, group="g", topic="t") as consumer:
            with trio.fail_after(20):
                while len(found) < COUNT:
                    message = await consumer.receive(timeout_s=5)
                    assert message is not None
                    assert message.queue_offset not in found
                    found[message.queue_offset] = content(message)
        assert found == expected()
        async with PullConsumer(broker.address, group="g") as consumer:
            assert await consumer.committed("t", 0) == COUNT
            result = await consumer.pull("t", 0, DAMAGED, max_messages=1)
            assert [(m.queue_offset, content(m)) for m in result.messages] == [(DAMAGED, None)]
            assert result.next_begin_offset == DAMAGED + 1


@pytest.mark.trio
async def test_a_filter_hides_no_damage(tmp_path: Path) -> None:
    """The broker filters by the entries, the client by the tag; of another record in the place it is unknown."""
    await filled(tmp_path)
    damage_queue_offset(tmp_path)
    async with Broker(config_of(tmp_path)) as broker, PullConsumer(broker.address, group="g") as consumer:
        found: dict[int, bytes | None] = {}
        offset = 0
        while offset < COUNT:
            result = await consumer.pull("t", 0, offset, tags="odd", wait_s=0)
            found |= {message.queue_offset: content(message) for message in result.messages}
            offset = result.next_begin_offset
    sound = {number: b"%03d" % number for number in range(1, COUNT, 2) if number != DAMAGED}
    assert {number: body for number, body in found.items() if body is not None} == sound
    assert [number for number, body in found.items() if body is None] == [DAMAGED - 1], "in its place at least"


@pytest.mark.trio
async def test_the_command_names_it_and_continues(tmp_path: Path) -> None:
    await filled(tmp_path)
    damage_size(tmp_path)
    async with Broker(config_of(tmp_path)) as broker:
        arguments = ["consume", "t", "-e", "-f", "%o", "--server", broker.address]
        done = await trio.run_process(
            [sys.executable, "-m", "reput_cli", *arguments],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "NO_COLOR": "1"},
        )
    assert done.returncode == 7
    assert done.stdout.decode().split() == [str(number) for number in range(COUNT) if number != DAMAGED]
    assert f"message t/0 at offset {DAMAGED}: its record cannot be read" in done.stderr.decode()
