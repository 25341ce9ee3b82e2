"""`reput store export`: the messages of a topic as JSON lines or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer, say
from reput_cli.positions import RangeType
from reput_cli.store.directory import StoreDirectory, directory_options, layout_of, locked, progress
from reput_client.positions import Position
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted, printable_json

if TYPE_CHECKING:
    from reput_broker.tools.dump import ExportRange, TopicExport
    from reput_protocol.record.record import Record


_GROUP_ROWS: Final = 65_536
_GROUP_BYTES: Final = 64 << 20


class _PositionType(click.ParamType[Position]):
    """A queue offset or a time."""

    name = "position"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        """Return the position; other text is refused with the valid forms."""
        if isinstance(value, Position):
            return value
        position, end = RangeType().convert(value, param, ctx)
        if end is not None or position.word or (position.offset is not None and position.offset < 0):
            self.fail(
                f"{value!r} is neither a queue offset nor a time such as @2026-01-02T03:04:05Z or @-15m",
                param,
                ctx,
            )
        return position


_POSITION = _PositionType()


@click.command()
@directory_options
@click.option("--topic", required=True, help="The topic.")
@click.option("--from", "start", type=_POSITION, help="First queue offset of each queue, or @TIME.")
@click.option("--to", "stop", type=_POSITION, help="Queue offset of each queue, or @TIME, to stop before.")
@click.option(
    "-f", "--format", "form", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True
)
@click.option(
    "-o",
    "--file",
    "target",
    type=click.Path(path_type=Path),
    default="-",
    help="File to write.  [default: stdout]",
)
def export(
    directory: StoreDirectory,
    settings: Settings,
    topic: str,
    start: Position | None,
    stop: Position | None,
    form: str,
    target: Path,
) -> int:
    """Write the messages of a topic in DIR, queue by queue, to a file.

    Every record is checked. A damaged message is left out and reported on stderr; the exit code is then 7.
    """
    from reput_broker.tools.dump import NotThere, TopicExport

    printer = Printer(settings)
    if form == "parquet":
        _require_parquet(target)
    with locked(directory), progress(settings, f"exporting {topic}") as report_progress:
        try:
            source = TopicExport(layout_of(directory), topic, _range(start, stop))
        except NotThere as error:
            raise CommandFailed(
                str(error), remedy=f"reput store dump {directory.root} --topics", code=ExitCode.NOT_FOUND
            ) from error
        records = _good(source, report_progress)
        undecoded = 0
        if form == "parquet":
            count, undecoded = _write_parquet(target, records)
        else:
            with _opened(target) as file:
                count = _write_lines(file, records)
    printer.note(f"{counted(count, 'message')} of {topic}")
    if bad_count := source.bad_count + undecoded:
        printer.note(
            f"{counted(bad_count, 'damaged message was', 'damaged messages were')} left out: "
            f"reput store verify {directory.root}"
        )
        return ExitCode.DAMAGE
    return ExitCode.DONE


def _range(start: Position | None, stop: Position | None) -> ExportRange:
    from reput_broker.tools.dump import ExportRange

    return ExportRange(
        start.offset if start else None,
        stop.offset if stop else None,
        start.timestamp_ms if start else None,
        stop.timestamp_ms if stop else None,
    )


def _good(source: TopicExport, report_progress: Callable[[int, int], None]) -> Iterator[Record]:
    from reput_broker.tools.dump import BadMessage

    done = -1
    for message in source.messages():
        if isinstance(message, BadMessage):
            say(f"damaged: {message}")
        else:
            yield message
        if source.units_done != done:
            done = source.units_done
            report_progress(done, source.total_units)


def _write_lines(file: TextIO, records: Iterator[Record]) -> int:
    from reput_broker.tools.dump import record_fields

    count = 0
    for record in records:
        file.write(printable_json(record_fields(record)) + "\n")
        count += 1
    return count


def _require_parquet(target: Path) -> None:
    if str(target) == "-":
        raise CommandFailed("a Parquet file needs a name", remedy="-o FILE", code=ExitCode.USAGE)
    for name in ("numpy", "pyarrow"):
        if find_spec(name) is None:
            raise CommandFailed(
                f"Parquet needs {name}, which is not installed",
                remedy="pip install 'reput-client[arrow]', or -f jsonl",
                code=ExitCode.FAILED,
            )


def _write_parquet(target: Path, records: Iterator[Record]) -> tuple[int, int]:
    """Write a row for each message, with the columns of Spark's source.

    Returns:
        The numbers of rows, and of messages whose body cannot be decompressed.
    """
    import pyarrow.parquet as pq

    from reput_client.arrow.batches import BatchMaker
    from reput_client.consume.arrow_columns import arrow_schema
    from reput_client.consume.pull import read_records
    from reput_protocol.filter.tags import TagFilter
    from reput_protocol.record.columns import RecordColumns
    from reput_protocol.record.record import encode_record

    count = bad = 0

    def on_bad_row(columns: RecordColumns, row: int, reason: str) -> None:
        nonlocal bad
        bad += 1
        queue = f"{bytes(columns.topic(row)).decode()}/{int(columns.queue_id[row])}"
        say(f"damaged: message {int(columns.queue_offset[row])} of {queue}: {reason}")

    maker = BatchMaker(arrow_schema(), TagFilter.parse("*"), on_bad_row)
    temporary = target.with_name(target.name + ".tmp")
    try:
        with pq.ParquetWriter(temporary, maker.schema, compression="zstd") as writer:
            for block in _blocks(map(encode_record, records)):
                for batch in maker.make(RecordColumns(block, read_records(block)), ""):
                    writer.write_batch(batch)
                    count += batch.num_rows
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return count, bad


def _blocks(records: Iterator[bytearray]) -> Iterator[bytes]:
    """Join records to blocks of a row group each."""
    block: list[bytearray] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record)
        if size >= _GROUP_BYTES or len(block) >= _GROUP_ROWS:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


@contextmanager
def _opened(target: Path) -> Iterator[TextIO]:
    """Open a file, which gets its name when it is complete; `-` is stdout."""
    if str(target) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    temporary = target.with_name(target.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
