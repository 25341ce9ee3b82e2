"""A Spark driver that streams lines of text files into a broker, and kills itself, all of it, at one point.

Usage: `python sink_driver.py --broker ADDRESS --topic T --lines DIR --checkpoint DIR --marks DIR [--point
POINT:BATCH]`. The process must lead a session of its own: what dies is its whole process group, JVM and Python
workers included.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from reput_pipeline.session import make_session
from reput_pipeline.sink import ReputStreamWriter
from reput_pipeline.source import ReputDataSource

POINTS = ("before-staging", "after-staging", "before-commit", "after-commit", "after-checkpoint")
FAILING = "failing-task"
ALWAYS_FAILING = "always-failing-task"


class Point:
    """Where to die, once."""

    def __init__(self, text: str, marks: str, group: int) -> None:
        self.name, _, batch = text.partition(":")
        self.batch_id = int(batch or 0)
        self._mark = f"{marks}/{text}"
        self._group = group

    def reached(self, name: str, batch_id: int) -> None:
        """Die, if this is the point and nobody has died there before."""
        if (name, batch_id) != (self.name, self.batch_id):
            return
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.killpg(self._group, signal.SIGKILL)


class DyingWriter(ReputStreamWriter):
    """The sink's writer with something that dies, or fails, before and after each of its steps."""

    def __init__(self, options: Any, schema: Any, overwrite: bool) -> None:
        own = {"point", "marks", "group"}
        super().__init__(
            {name: value for name, value in options.items() if name not in own}, schema, overwrite
        )
        self._point = Point(options["point"], options["marks"], int(options["group"]))

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        assert context is not None
        batch_id = int(str(context.getLocalProperty("streaming.sql.batchId")))
        self._point.reached("before-staging", batch_id)
        done = super().write(iterator)
        self._point.reached("after-staging", batch_id)
        fails = self._point.name == FAILING and context.attemptNumber() == 0 and context.partitionId() == 0
        if fails or self._point.name == ALWAYS_FAILING:
            raise RuntimeError("this task fails after it has staged all of its rows")
        return done

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._point.reached("before-commit", batchId)
        super().commit(messages, batchId)
        self._point.reached("after-commit", batchId)


class DyingSource(ReputDataSource):
    """The format with that writer."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return DyingWriter(self.options, schema, overwrite)


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
    for name in ("broker", "topic", "lines", "checkpoint", "marks"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--point", default="none:0")
    parser.add_argument("--master", default="local[2,3]")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    spark = make_session(
        "sink faults",
        master=arguments.master,
        conf={"spark.driver.memory": "512m", "spark.log.level": "ERROR"},
    )
    spark.dataSource.register(DyingSource)
    point = Point(arguments.point, arguments.marks, os.getpgrp())
    spark.streams.addListener(Watcher(point))
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(arguments.lines)
    query = (
        lines.selectExpr("value AS body")
        .repartition(2)
        .writeStream.format("dying")
        .option("nameServer", arguments.broker)
        .option("topic", arguments.topic)
        .option("point", arguments.point)
        .option("marks", arguments.marks)
        .option("group", str(os.getpgrp()))
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
