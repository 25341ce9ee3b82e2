"""The job that follows a topic to a table is killed again and again: rows in = rows out = distinct."""

from __future__ import annotations

import random
import secrets
from importlib import import_module
from pathlib import Path

import pytest

from reput_client.blocking import Admin, Message, Producer
from support.broker_process import BrokerProcess
from support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.fault]
for library in ("deltalake", "pyiceberg"):
    pytest.importorskip(library)
lake_tables = import_module("support.lake_tables")

KILLS = 2


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_job_that_is_killed_leaves_every_message_once(table_format: str, tmp_path: Path) -> None:
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    with BrokerProcess(tmp_path / "store", environment={"REPUT_STORE__FLUSH": "sync"}) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(lake_tables.TOPIC, queues=lake_tables.QUEUES)
        job = lake_tables.Job(broker.address, table_format, tmp_path / "t")
        lake_tables.kill_and_restart(broker, job, KILLS, random.Random(seed))
        sums = lake_tables.read_by_consumer(broker.address)
    assert lake_tables.sums(lake_tables.read(table_format, job.place)) == sums
    assert sums[0] == sums[1] > 0


def test_a_job_waits_for_a_broker_that_is_away(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", environment={"REPUT_STORE__FLUSH": "sync"}) as broker:
        job = lake_tables.Job(broker.address, "delta", tmp_path / "t")

        def send(count: int) -> None:
            with Producer(broker.address, group="p") as producer:
                producer.send_batch([Message(lake_tables.TOPIC, b"x")] * count, queue_id=0)

        with Admin(broker.address) as admin:
            admin.create_topic(lake_tables.TOPIC, queues=lake_tables.QUEUES)
        send(10)
        with job.follow("-o", "pullTimeoutMs=1000") as process:
            wait_until(lambda: "batch 1: 10 messages" in job.tail(), what=job.tail)
            broker.kill()
            wait_until(lambda: "waits for the broker" in job.tail(), what=job.tail)
            broker.start()
            broker.wait_ready()
            send(5)
            wait_until(lambda: "batch 2: 5 messages" in job.tail(), what=job.tail)
            process.terminate()
            assert process.wait() == 0, job.tail()
        assert "the broker is back" in job.tail()
    assert lake_tables.sums(lake_tables.read("delta", job.place))[:2] == (15, 15)
