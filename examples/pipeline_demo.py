"""Send the lines of Python's standard library through the broker and Spark, and count them in five ways.

The lines of `demo.py` are sent to a broker. The job `archive` copies them to Parquet, partitioned by module, and to a
Delta and an Iceberg table. Lines, bytes and identifiers are counted by a streaming query on the broker, in the archive,
in the tables, and in the files. The totals are printed, and an HTML report is written. `make demo KIND=spark` runs it
with a broker in a temporary directory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from demo import QUEUES, Counts, count_files, produce, progress_bars, read_lines, running_broker, source_files
from reput_client.blocking import Admin
from reput_pipeline.archives.read import read_archive
from reput_pipeline.data_source import register
from reput_pipeline.jobs.report import COLUMNS, figures_of, page_of
from reput_pipeline.jobs.run import run_job
from reput_pipeline.spark.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "stdlib-lines"
IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
LINES_A_BATCH = 250_000
SHOWN = 12
MODULES_MAX = 1000
SHOWN_MODULES = 25


class Totals(NamedTuple):
    """The totals of one way of counting."""

    lines: int
    bytes: int
    identifiers: int
    different: int
    most: list[tuple[str, int]]
    """The most frequent identifiers."""
    seconds: float


def main() -> int:
    """Produce, archive, count everywhere and compare; return 0 if everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, help="use only this many files")
    parser.add_argument("--html", type=Path, default=Path("build/pipeline-demo.html"), help="file for the report")
    parser.add_argument("--master", default="local[*]", help="where Spark runs")
    arguments = parser.parse_args()
    files = source_files(Path(sysconfig.get_path("stdlib")))[: arguments.files]
    expected = count_files(files)
    total = sum(lines for lines, _ in expected.values())
    with tempfile.TemporaryDirectory(prefix="reput-pipeline-demo-") as name, running_broker(None) as address:
        archive = Path(name) / "parquet"
        say(f"1. {total:,} lines of {len(files)} files go to a broker")
        with Admin(address) as admin, progress_bars() as progress:
            admin.create_topic(TOPIC, queues=QUEUES)
            produce(address, TOPIC, files, "flushed", progress.add_task("produce", total=total), progress)
        say("2. Spark starts")
        spark = make_session("pipeline-demo", master=arguments.master, quiet=True)
        try:
            for table_format in ("parquet", *TABLES):
                if code := archive_topic(address, Path(name) / table_format, table_format):
                    return code
            say("4. identifiers are counted: in a stream from the broker")
            totals = {"stream": from_stream(spark, address, Path(name) / "checkpoint")}
            say("   ... in the archive")
            totals["archive"] = from_archive(spark, archive)
            for table_format, bodies_of in TABLES.items():
                say(f"   ... in the {table_format} table, without Spark")
                started_at = time.monotonic()
                totals[table_format] = from_lines(bodies_of(Path(name) / table_format), started_at)
            say("   ... and in the files themselves")
            totals["files"] = from_files(files)
            say("5. the report is made")
            by_module = write_page(spark, archive, totals, arguments.html)
        finally:
            spark.stop()
    equal = all(total[:-1] == totals["files"][:-1] for total in totals.values()) and by_module == expected
    print_totals(totals)
    print(
        f"{len(files)} files, {len(expected)} modules: lines and bytes of each module are "
        f"{'the same' if by_module == expected else 'NOT the same'} in the archive"
    )
    print(f"the report: {arguments.html}")
    print("equal" if equal else "NOT EQUAL")
    return 0 if equal else 1


def say(text: str) -> None:
    """Print the current step."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def archive_topic(address: str, target: Path, table_format: str) -> int:
    """Run the job `archive`; return its exit code."""
    arguments = ["--server", address, "--topic", TOPIC, "--to", str(target), "--format", table_format]
    arguments += ["--partition-by", "tags"] if table_format == "parquet" else []
    say(f"3. reput pipeline archive {' '.join(arguments)}")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = run_job("archive", [*arguments, "--batch-messages", str(LINES_A_BATCH)], stop_session=False)
    result = json.loads(output.getvalue().splitlines()[-1])
    if not code:
        say(f"   {result['rows']:,} rows")
    return code


def delta_bodies(place: Path) -> Iterator[bytes]:
    """Yield the bodies of a Delta table's rows."""
    from deltalake import DeltaTable

    yield from (body.as_py() for body in DeltaTable(place).to_pyarrow_table(columns=["body"])["body"])


def iceberg_bodies(place: Path) -> Iterator[bytes]:
    """Yield the bodies of an Iceberg table's rows."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("reput", type="sql", uri=f"sqlite:///{place / 'catalog.db'}")
    rows = catalog.load_table("reput.messages").scan(selected_fields=("body",)).to_arrow()
    yield from (body.as_py() for body in rows["body"])


TABLES: Final[dict[str, Callable[[Path], Iterator[bytes]]]] = {"delta": delta_bodies, "iceberg": iceberg_bodies}


def identifiers(lines: DataFrame) -> DataFrame:
    """Return the identifiers in bodies, a row each, and an empty one for each line, with the line's bytes."""
    from pyspark.sql import functions as f

    found = f.regexp_extract_all(f.col("body").cast("string"), f.lit(IDENTIFIER), 0)
    marked = lines.select(f.concat(f.array(f.lit("")), found).alias("names"), f.octet_length("body").alias("size"))
    return marked.select(f.explode("names").alias("name"), f.expr("if(name = '', size, 0)").alias("size"))


def counted(names: DataFrame) -> DataFrame:
    """Count identifiers; the empty one counts the lines and their bytes."""
    from pyspark.sql import functions as f

    return names.groupBy("name").agg(f.count("*").alias("times"), f.sum("size").alias("size"))


def totals_of(counts: Iterable[tuple[str, int, int]], seconds: float) -> Totals:
    """Return the totals of counted identifiers."""
    lines = size = 0
    found: Counter[str] = Counter()
    for name, times, bytes_ in counts:
        if name:
            found[name] = times
        else:
            lines, size = times, bytes_
    most = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
    return Totals(lines, size, found.total(), len(found), most, seconds)


def from_stream(spark: SparkSession, address: str, checkpoint: Path) -> Totals:
    """Count with a streaming query on the broker."""
    started_at = time.monotonic()
    register(spark)
    options = {"nameServer": address, "subscribe": TOPIC, "startingOffsets": "earliest", "select": "body"}
    lines = spark.readStream.format("reput").options(**options, maxOffsetsPerTrigger=str(LINES_A_BATCH)).load()
    query = (
        counted(identifiers(lines))
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("identifiers")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.table("identifiers").collect()
    return totals_of(((row.name, row.times, row["size"]) for row in rows), time.monotonic() - started_at)


def from_archive(spark: SparkSession, archive: Path) -> Totals:
    """Count in the archive."""
    started_at = time.monotonic()
    rows = counted(identifiers(read_archive(spark, archive).select("body"))).collect()
    return totals_of(((row.name, row.times, row["size"]) for row in rows), time.monotonic() - started_at)


def from_files(files: Iterable[Path]) -> Totals:
    """Count in the files, without broker and Spark."""
    started_at = time.monotonic()
    return from_lines((line for path in files for _, line in read_lines(path)), started_at)


def from_lines(lines: Iterable[bytes], started_at: float) -> Totals:
    """Count in lines, without Spark."""
    pattern = re.compile(IDENTIFIER.encode())
    found: Counter[bytes] = Counter()
    number = size = 0
    for line in lines:
        number, size = number + 1, size + len(line)
        found.update(pattern.findall(line))
    counts = [("", number, size), *((name.decode(), times, 0) for name, times in found.items())]
    return totals_of(counts, time.monotonic() - started_at)


def write_page(spark: SparkSession, archive: Path, totals: dict[str, Totals], html: Path) -> Counts:
    """Write the report on the archive with the totals; return lines and bytes of every module in the archive."""
    figures = figures_of(read_archive(spark, archive).select(*COLUMNS), top=MODULES_MAX)
    modules = {row["name"]: (row["messages"], row["bytes"]) for row in figures.tags}
    shown = replace(figures, tags=figures.tags[:SHOWN_MODULES], keys=figures.keys[:SHOWN_MODULES])
    page = page_of(shown, "the standard library's lines", "Python's standard library, through broker and Spark")
    page.heading("Totals")
    page.table(["counted from", *_ROWS], [[name, *total[:4]] for name, total in totals.items()])
    page.heading("Most frequent identifiers", 3)
    page.bars([(name, float(times)) for name, times in totals["stream"].most])
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(page.html(), encoding="utf-8")
    return modules


_ROWS = ("lines", "bytes", "identifiers", "different ones")


def print_totals(totals: dict[str, Totals]) -> None:
    """Print the totals as columns."""
    table = Table("counted in", *totals, "", title="Totals", title_justify="left")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for at, name in enumerate(_ROWS):
        values = [total[at] for total in totals.values()]
        table.add_row(name, *(f"{value:,}" for value in values), "=" if len(set(values)) == 1 else "DIFFERS")
    table.add_section()
    for place in range(min(5, *(len(total.most) for total in totals.values()))):
        pairs = [total.most[place] for total in totals.values()]
        table.add_row(
            f"`{pairs[0][0]}`", *(f"{times:,}" for _, times in pairs), "=" if len(set(pairs)) == 1 else "DIFFERS"
        )
    table.add_section()
    table.add_row("seconds", *(f"{total.seconds:.1f}" for total in totals.values()), "")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
