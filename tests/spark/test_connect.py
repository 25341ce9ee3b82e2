"""Source and sink in a session of Spark Connect, whose server is a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Producer
from support.sink_client import published

pytest.importorskip("grpc_status", reason="the extra spark-connect is not installed")
pytestmark = pytest.mark.skipif(
    "CLUSTERS" not in os.environ, reason="takes long: `make test CLUSTERS=all ARGS=tests/spark/test_connect.py` runs it"
)

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from reput_pipeline.data_source import register
from reput_pipeline.spark.session import prepare_environment

address, checkpoint = sys.argv[1:]
prepare_environment()  # for the server, which this starts
spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
register(spark)
options = {"nameServer": address, "subscribe": "orders"}
rows = spark.read.format("reput").options(**options).load()
found = sorted(int(bytes(row.body)) for row in rows.select("body").collect())
rows.selectExpr("body").write.format("reput").options(nameServer=address, topic="copies").mode("append").save()
stream = spark.readStream.format("reput").options(startingOffsets="earliest", **options).load()
writer = stream.select("body").writeStream.format("reput").options(nameServer=address, topic="streamed")
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
print(json.dumps([type(spark).__module__, found]))
spark.stop()
"""


def test_a_batch_and_a_stream_through_spark_connect(
    new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path
) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Producer(broker.address, group="p") as producer:
        producer.send_many("orders", [b"%d" % number for number in range(300)])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.address, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    module, bodies = json.loads(ran.stdout.splitlines()[-1])
    assert module.startswith("pyspark.sql.connect.")
    assert bodies == [*range(300)]
    for topic in ("copies", "streamed"):
        there = [int(body) for queue in published(broker.address, topic).values() for body in queue]
        assert sorted(there) == [*range(300)]
