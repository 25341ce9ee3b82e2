"""A topic that Spark streams to a Delta table, and back: each message once, though the first query is killed.

`make test DELTA=1 ARGS=tests/spark/test_delta.py` runs this with the Spark that Delta's package is for, which is older
than the one that is installed otherwise. The package's classes come from Maven Central.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer
from spark import delta_query
from spark.delta_query import TOPIC
from support import lake_tables
from support.sink_client import published
from support.waiting import wait_until

pytestmark = pytest.mark.process

_PROGRAM = Path(delta_query.__file__)
_PATIENCE_S = 600.0
MESSAGES = 1500


def send(broker: BackgroundBroker, first: int, end: int) -> None:
    with Producer(broker.address, group="p") as producer:
        for queue_id in range(3):
            numbers = range(first + queue_id, end, 3)
            producer.send_batch([Message(TOPIC, b"%05d" % number) for number in numbers], queue_id=queue_id)


def run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(_PROGRAM), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_a_topic_is_in_the_table_once_and_comes_back(
    new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path
) -> None:
    import pyspark

    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin:
        for topic in (TOPIC, "copies"):
            admin.create_topic(topic, queues=3)
    send(broker, 0, MESSAGES - 300)
    table, log = tmp_path / "table", tmp_path / "query.log"
    places = ("--broker", broker.address, "--table", str(table), "--checkpoint", str(tmp_path / "checkpoint"))

    def commits() -> int:
        return len(list(table.glob("_delta_log/*.json")))

    with log.open("wb") as output:
        command = [sys.executable, str(_PROGRAM), "copy", *places, "--follow"]
        query = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait_until(lambda: commits() >= 2 or query.poll() is not None, _PATIENCE_S, what=log.read_text)
        finally:
            query.kill()
            query.wait()
    killed_after = commits()
    assert killed_after >= 2, log.read_text()[-3000:]
    send(broker, MESSAGES - 300, MESSAGES)
    again = run("copy", *places)
    assert again["spark"] == pyspark.__version__
    assert again["batches"][0] in (killed_after - 1, killed_after)  # the checkpoint is continued
    rows, distinct, offsets, size = lake_tables.sums(lake_tables.read("delta", table))
    assert (rows, distinct, size) == (MESSAGES, MESSAGES, 5 * MESSAGES)
    assert offsets == 3 * sum(range(MESSAGES // 3))
    assert run("send", *places[:4], "--to", "copies")["rows"] == MESSAGES
    bodies = sorted(body for queue in published(broker.address, "copies").values() for body in queue)
    assert bodies == [b"%05d" % number for number in range(MESSAGES)]
