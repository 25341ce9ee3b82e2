"""The Spark source against Spark's own zstd Parquet read of the same rows, and micro-batches against its rate source.

    python benchmarks/spark_source.py [--messages 600000] [--rounds 3] [--only scan,stream,parts,memory]

Everything is measured in one session in turn, so that the ratios of one run can be compared; only ratios are meant to
be. Bodies are pieces of the standard library's source text.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from filled_store import dispatch, opened, options_for, put
from reput_broker.background import BackgroundBroker
from reput_broker.config import BrokerConfig
from reput_pipeline.session import make_session
from reput_protocol.message import Message
from reput_protocol.record_batch import encode_put_block

TOPIC = "bench"
QUEUES = 8
BLOCK = 64
BATCH_ROWS = 1000
TICK = os.sysconf("SC_CLK_TCK")
THREE = "topic string, queueOffset long, tags string"


def main() -> None:
    """Fill a store, measure, print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--messages", type=int, default=600_000)
    arguments.add_argument("--size", type=int, default=300, help="bytes of a body")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="scan,parts,stream,memory")
    given = arguments.parse_args()
    only = given.only.split(",")
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as name:
        root = Path(name)
        fill(root / "store", given.messages, given.size)
        spark = make_session("bench", master=f"local[{os.cpu_count()}]", conf={"spark.driver.memory": "1g"})
        spark.sparkContext.setLogLevel("ERROR")
        config = {
            "data_dir": root / "store",
            "port": 0,
            "http_port": None,
            "store": {"commit_log_file_size": 64 << 20},
        }
        broker = BackgroundBroker(BrokerConfig.model_validate(config))
        broker.start()
        try:
            bench = Bench(spark, root, broker.address, given.messages, given.rounds)
            for measure in only:
                getattr(bench, measure)()
        finally:
            spark.stop()
            broker.stop()


def fill(root: Path, messages: int, size: int) -> None:
    """Make a store with so many messages in some queues, blocks of them in turn."""
    text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    store = opened(options_for(root))
    for start in range(0, messages, BLOCK):
        numbers = range(start, min(start + BLOCK, messages))
        queue_id = start // BLOCK % QUEUES
        rows = [
            Message(
                TOPIC,
                text[(start := number * size % (len(text) - size)) : start + size + number % 97],
                tag=f"tag{number % 8}",
                keys=[f"order-{number}"],
                properties={"source": f"module-{number % 50}"},
            )
            for number in numbers
        ]
        ids = [f"{number:032X}" for number in numbers]
        put(
            store,
            queue_id,
            len(rows),
            bytearray(encode_put_block(rows, TOPIC, queue_id, 1_700_000_000_000, ids)),
        )
        if start % 4096 == 0:
            dispatch(store)
    dispatch(store)
    store.close()


class Bench:
    """The measurements."""

    def __init__(self, spark: Any, root: Path, address: str, messages: int, rounds: int) -> None:
        self.spark = spark
        self.root = root
        self.offline = {"path": str(root / "store"), "subscribe": TOPIC}
        self.live = {"nameServer": address, "subscribe": TOPIC}
        self.messages = messages
        self.rounds = rounds

    def frame(self, schema: str | None = None, **options: str) -> Any:
        """The source as a frame."""
        reader = self.spark.read.format("reput").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def scan(self) -> None:
        """Read everything and throw it away."""
        parquet = str(self.root / "rows.parquet")
        self.frame(**self.offline).write.option("compression", "zstd").parquet(parquet)
        frames: dict[str, Callable[[], Any]] = {
            "Parquet zstd": lambda: self.spark.read.parquet(parquet),
            "offline": lambda: self.frame(**self.offline),
            "offline, by queue": lambda: self.frame(
                **self.offline, subExpression=" || ".join(f"tag{n}" for n in range(8))
            ),
            "offline, three columns": lambda: self.frame(THREE, **self.offline),
            "live": lambda: self.frame(**self.live),
        }
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in frames}
        for _ in range(self.rounds + 1):
            for name, make in frames.items():
                rates[name].append(self.run(make))
        print(f"\n{'path':26}{'rows/s':>12}{'ratio':>8}{'rows per CPU s':>16}{'ratio':>8}")
        base = None
        for name, pairs in rates.items():
            wall, cpu = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
            base = base or (wall, cpu)
            print(f"{name:26}{wall:12.0f}{wall / base[0]:8.2f}{cpu:16.0f}{cpu / base[1]:8.2f}")

    def parts(self) -> None:
        """Rows per CPU second by the number of partitions."""
        print(f"\n{'offline, partitions':26}{'rows/s':>12}{'rows per CPU s':>16}")
        for parts in (1, 2, 4):
            pairs = [
                self.run(partial(self.frame, **self.offline, minPartitions=str(parts)))
                for _ in range(self.rounds)
            ]
            wall, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{parts:<26}{wall:12.0f}{cpu:16.0f}")

    def run(self, make: Callable[[], Any]) -> tuple[float, float]:
        """Read a frame once; return rows per second of the clock and of all processes' CPU."""
        cpu, since = cpu_s(), time.perf_counter()
        make().write.format("noop").mode("overwrite").save()
        wall = time.perf_counter() - since
        return self.messages / wall, self.messages / (cpu_s() - cpu)

    def stream(self) -> None:
        """Micro-batches of 1,000 rows in one partition, beside those of Spark's rate source."""
        ours = self.spark.readStream.format("reput").options(
            **self.live, startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH_ROWS), minPartitions="1"
        )
        theirs = self.spark.readStream.format("rate-micro-batch").options(
            rowsPerBatch=str(BATCH_ROWS), numPartitions="1"
        )
        found: dict[str, list[float]] = {"rate source": [], "live": []}
        for round_ in range(self.rounds):
            for name, reader in (("rate source", theirs), ("live", ours)):
                found[name] += self.batches(reader, self.root / f"checkpoint-{name[:4]}-{round_}")
        print(f"\n{'micro-batch of 1,000 rows':26}{'ms':>12}{'ratio':>8}")
        base = statistics.median(found["rate source"])
        for name, times in found.items():
            print(f"{name:26}{statistics.median(times):12.0f}{statistics.median(times) / base:8.2f}")

    def batches(self, reader: Any, checkpoint: Path) -> list[float]:
        """Return how long each of some micro-batches took, in ms, the first ones left out."""
        query = reader.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        until = time.monotonic() + 60
        while query.lastProgress is None or query.lastProgress["batchId"] < 25:
            if time.monotonic() > until:
                break
            time.sleep(0.1)
        query.stop()
        times = [
            float(progress["durationMs"]["triggerExecution"])
            for progress in query.recentProgress
            if progress["numInputRows"]
        ]
        return times[5:]

    def memory(self) -> None:
        """Private memory of the Python workers after all that."""
        workers = [rss_anon_mib(pid) for pid in descendants(os.getpid()) if is_python(pid)]
        print(f"\nprivate memory of {len(workers)} Python processes of Spark: at most {max(workers):.0f} MiB")


def descendants(pid: int) -> Iterator[int]:
    """Yield a process's children, theirs, and so on."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from descendants(int(child))


def is_python(pid: int) -> bool:
    """Whether a process runs Python."""
    return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]


def rss_anon_mib(pid: int) -> float:
    """Private memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_s() -> float:
    """CPU seconds that this process's children have used so far, those that have ended included; not the broker's."""
    total = 0
    for pid in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return total / TICK


if __name__ == "__main__":
    main()
