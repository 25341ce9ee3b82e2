"""A Spark driver that streams lines of text files into a broker, and dies where the environment says.

Usage: `python sink_driver.py --broker ADDRESS --topic T --lines DIR --checkpoint DIR`. The process must lead a session
of its own: its whole process group dies, JVM included.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from pyspark.sql.streaming.listener import StreamingQueryListener

from pipeline_faults import dying_sink
from pipeline_faults.points import Point, lead_group
from reput_pipeline.spark.session import make_session


class Watcher(StreamingQueryListener):
    """Dies once Spark has noted in its checkpoint that a batch is done."""

    def __init__(self, point: Point) -> None:
        self._point = point

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._point.reached("after-checkpoint", event.progress.batchId)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass


def main() -> int:
    """Run the stream to the end of its files."""
    parser = argparse.ArgumentParser()
    for name in ("broker", "topic", "lines", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--master", default="local[2,3]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    lead_group()
    conf = {"spark.driver.memory": "512m", "spark.log.level": "ERROR"}
    conf |= dict(text.split("=", 1) for text in arguments.conf)
    spark = make_session("sink faults", master=arguments.master, conf=conf)
    dying_sink.register(spark)
    spark.streams.addListener(Watcher(Point.of_environment()))
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(arguments.lines)
    query = (
        lines.selectExpr("value AS body")
        .repartition(2)
        .writeStream.format("reput")
        .option("nameServer", arguments.broker)
        .option("topic", arguments.topic)
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception as error:
        print(f"query failed: {str(error)[:300]}", flush=True)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
