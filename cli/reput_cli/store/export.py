"""`reput store export`: the messages of a topic as JSON lines or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer, say
from reput_cli.positions import Position, RangeType
from reput_cli.store.directory import StoreDirectory, directory_options, layout_of, locked, progress
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted, printable_json

if TYPE_CHECKING:
    from reput_broker.tools.export import ExportRange, TopicExport
    from reput_protocol.record.record import Record


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
    from reput_broker.tools.dump import NotThere
    from reput_broker.tools.export import ParquetMissing, TopicExport, require_parquet, write_parquet

    printer = Printer(settings)
    if form == "parquet":
        if str(target) == "-":
            raise CommandFailed("a Parquet file needs a name", remedy="-o FILE", code=ExitCode.USAGE)
        try:
            require_parquet()
        except ParquetMissing as error:
            raise CommandFailed(
                str(error), remedy="pip install pyarrow, or -f jsonl", code=ExitCode.FAILED
            ) from error
    with locked(directory), progress(settings, f"exporting {topic}") as report_progress:
        try:
            source = TopicExport(layout_of(directory), topic, _range(start, stop))
        except NotThere as error:
            raise CommandFailed(
                str(error), remedy=f"reput store dump {directory.root} --topics", code=ExitCode.NOT_FOUND
            ) from error
        records = _good(source, report_progress)
        if form == "parquet":
            count = write_parquet(target, records)
        else:
            with _opened(target) as file:
                count = _write_lines(file, records)
    printer.note(f"{counted(count, 'message')} of {topic}")
    if source.bad_count:
        printer.note(
            f"{counted(source.bad_count, 'damaged message was', 'damaged messages were')} left out: "
            f"reput store verify {directory.root}"
        )
        return ExitCode.DAMAGE
    return ExitCode.DONE


def _range(start: Position | None, stop: Position | None) -> ExportRange:
    from reput_broker.tools.export import ExportRange

    return ExportRange(
        start.offset if start else None,
        stop.offset if stop else None,
        start.timestamp_ms if start else None,
        stop.timestamp_ms if stop else None,
    )


def _good(source: TopicExport, report_progress: Callable[[int, int], None]) -> Iterator[Record]:
    from reput_broker.tools.export import BadMessage

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
