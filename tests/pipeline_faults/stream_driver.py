"""A Spark driver with two streams over a topic of a group: to another topic of it, and to Parquet files.

Usage: `python stream_driver.py --broker ADDRESSES --topic T --copies T --directory DIR --ended FILE
[--tls-ca FILE]`; once FILE is there, the queries process what the topic has and end.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from pyspark.sql.streaming.query import StreamingQuery

from pipeline_faults import dying_sink
from reput_pipeline.spark.keep_running import LATE_WORKER, keep_running
from reput_pipeline.spark.session import make_session

# A commit whose master dies takes longer, since another one is elected after its lease of 3 s only: the query ends,
# without knowing whether the batch is written, and makes it again.
_COMMIT_TIMEOUT_MS = "2500"


def main() -> int:
    """Run both queries until they are to end."""
    parser = argparse.ArgumentParser()
    for name in ("broker", "topic", "copies", "directory", "ended"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--tls-ca")
    arguments = parser.parse_args()
    address = {"nameServer": arguments.broker}
    if arguments.tls_ca:
        address["tlsCa"] = arguments.tls_ca
    directory = Path(arguments.directory)
    conf = {"spark.driver.memory": "512m", "spark.log.level": "ERROR"}
    spark = make_session("failovers", master="local[2]", conf=conf)
    dying_sink.register(spark)

    def rows(checkpoint: str, sink: str, **options: str) -> StreamingQuery:
        source = spark.readStream.format("reput").options(
            **address, subscribe=arguments.topic, startingOffsets="earliest"
        )
        place = str(directory / checkpoint)
        frame = source.load().select("body")
        writer = frame.writeStream.format(sink).options(checkpointLocation=place, **options)
        return writer.trigger(processingTime="1 second").start()

    started: list[StreamingQuery] = []

    def copy() -> StreamingQuery:
        make_session("failovers")
        options = {**address, "commitTimeoutMs": _COMMIT_TIMEOUT_MS}
        started.append(rows("cp-copies", "reput", topic=arguments.copies, **options))
        return started[-1]

    def write_files() -> StreamingQuery:
        while True:
            query = rows("cp-parquet", "parquet", path=str(directory / "parquet"))
            while query.isActive and not query.recentProgress:
                time.sleep(0.1)
            if LATE_WORKER not in str(query.exception()):
                return query

    files = write_files()
    stop = threading.Event()
    copier = threading.Thread(
        target=keep_running, args=(copy,), kwargs={"stop": stop, "most_pause_s": 5.0}, daemon=True
    )
    copier.start()

    def is_up() -> bool:
        return files.isActive and copier.is_alive()

    while is_up() and not Path(arguments.ended).exists():
        time.sleep(0.2)
    while is_up():
        try:
            files.processAllAvailable()
            started[-1].processAllAvailable()
        except Exception as error:  # the query to the broker, which starts again; the other one is_up() sees
            print(f"not all is processed yet: {str(error)[:300]}", flush=True)
            time.sleep(1.0)
        else:
            break
    failed = not is_up()
    if failed:
        print(f"a query has ended: {files.exception() or started[-1].exception()}", flush=True)
    stop.set()
    files.stop()
    started[-1].stop()
    copier.join(60.0)
    spark.stop()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
