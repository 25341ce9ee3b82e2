"""The job that follows a topic to a table is killed again and again: rows in = rows out = distinct."""

from __future__ import annotations

import random
import secrets
from importlib import import_module
from pathlib import Path

import pytest

from reput_client.blocking import Admin
from support.broker_process import BrokerProcess

pytestmark = [pytest.mark.process, pytest.mark.fault]
for library in ("deltalake", "pyiceberg"):
    pytest.importorskip(library)
lake_tables = import_module("support.lake_tables")

KILLS = 5


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_job_that_is_killed_leaves_every_message_once(table_format: str, tmp_path: Path) -> None:
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    with BrokerProcess(tmp_path / "store", environment={"REPUT_STORE__FLUSH": "sync"}) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(lake_tables.TOPIC, queues=lake_tables.QUEUES)
        job = lake_tables.Job(broker, table_format, tmp_path / "t")
        lake_tables.kill_and_restart(broker, job, KILLS, random.Random(seed))
        sums = lake_tables.read_by_consumer(broker.address)
    assert lake_tables.sums(lake_tables.read(table_format, job.place)) == sums
    assert sums[0] == sums[1] > 0
