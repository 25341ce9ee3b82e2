"""Two brokers of different names whose name services know each other; clients have the addresses of both."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_client import Admin, Consumer, Message, Producer
from support.broker_process import free_port


@pytest.mark.trio
async def test_consumers_stay_while_the_only_broker_of_their_topic_is_away(tmp_path: Path) -> None:
    """The name service of the other one has dropped it, and says that there is no such topic."""
    ports = {"a": free_port(), "b": free_port()}
    addresses = [f"127.0.0.1:{port}" for port in ports.values()]

    def broker(name: str) -> Broker:
        return Broker(
            BrokerConfig(
                data_dir=tmp_path / name,
                broker_name=name,
                port=ports[name],
                name_servers=addresses,
                store={"commit_log_file_size": "1MiB", "index": False},
                topics={"auto_create": False},
            )
        )

    async with broker("b"):
        async with broker("a"):
            async with Admin(addresses[0]) as admin:
                await admin.create_topic("t", queues=1)
            consumer = Consumer(",".join(addresses), group="g", topic="t")
            await consumer.__aenter__()
        try:
            assert await consumer.receive(1.5) is None
            async with broker("a"):
                async with Producer(addresses[0]) as producer:
                    await producer.send(Message("t", b"back"))
                with trio.fail_after(20):
                    message = await consumer.receive(20.0)
                assert message is not None
                assert bytes(message.body) == b"back"
        finally:
            await consumer.aclose()
