"""`reput store ...`: work on a store directory, Reput's or RocketMQ's, without asking a broker.

`store_directory` has what the commands share.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, output_options
from reput_cli.output import Printer, say, write_line
from reput_cli.positions import RangeType
from reput_cli.store_directory import (
    StoreDirectory,
    commit_log_dir_option,
    delay_levels_option,
    directory_argument,
    directory_options,
    examined,
    layout_of,
    locked,
    progress,
    require_store,
)
from reput_client.positions import Position
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted, printable, printable_json

if TYPE_CHECKING:
    from reput_broker.tools.dump import ExportRange, TopicExport
    from reput_broker.tools.repair_plan import RepairPlan
    from reput_broker.tools.verify import Verification
    from reput_protocol.record.record import Record

_SIZES = "--index-slots and --index-entries; RocketMQ's are 5000000 and 20000000"
_TEXT_MAX = 80
_GROUP_ROWS: Final = 65_536
_GROUP_BYTES: Final = 64 << 20


@click.group()
def command() -> None:
    """Verify, dump, repair, rebuild, export and copy a store directory.

    All but snapshot fail for a directory that a running broker has open. Only repair and rebuild change anything in it.
    """


@command.command()
@directory_options
@delay_levels_option
@click.option("--yes", is_flag=True, help="Repair it. Without --yes the command only shows what it would do.")
def repair(directory: StoreDirectory, settings: Settings, delay_levels_ms: tuple[int, ...] | None, yes: bool) -> int:
    """Show what a repair of DIR would correct and truncate; with --yes, do it.

    A damaged field of a record is corrected if the other fields determine its value. The log is truncated at the
    first record that cannot be corrected: all later messages are removed. Everything that is changed or truncated
    is first copied to DIR/repair-N and synced. Then the queues are rebuilt from the log. Exits with 7 if the store
    needs repair and --yes was not given.
    """
    printer = Printer(settings)
    with locked(directory, to_write=yes) as lock:
        verification = examined(directory, settings, delay_levels_ms=delay_levels_ms)
        plan = _plan(verification, directory)
        if plan.is_empty:
            printer.note(f"{directory.root}: nothing to repair")
            return ExitCode.DONE
        if not yes:
            if printer.is_json:
                printer.json_line({"directory": str(directory.root), "plan": plan.lines()})
            else:
                for line in plan.lines():
                    write_line(line)
            printer.note(f"nothing was changed; to do it: reput store repair {directory.root} --yes")
            return ExitCode.DAMAGE
        from reput_broker.tools.repair import apply_repair

        lock.acquire()
        with progress(settings, "repairing") as report_progress:
            result = apply_repair(verification, plan, report_progress)
    if printer.is_json:
        printer.json_line(
            {
                "directory": str(directory.root),
                "plan": plan.lines(),
                "done": result.lines,
                "side_directory": str(result.side_directory),
                "log_end": result.end_offset,
            }
        )
        return ExitCode.DONE
    for line in (*plan.lines(), *result.lines):
        write_line(line)
    write_line(f"copies of the changed bytes: {result.side_directory}")
    printer.note(f"the log ends at offset {result.end_offset}; the next start of the broker completes the recovery")
    return ExitCode.DONE


def _plan(verification: Verification, directory: StoreDirectory) -> RepairPlan:
    from reput_broker.store.base.errors import ForeignFile
    from reput_broker.tools.repair_plan import plan_repair

    try:
        return plan_repair(verification)
    except ForeignFile as error:
        raise CommandFailed(f"{directory.root} cannot be repaired", reason=str(error)) from error


@command.command()
@directory_options
@delay_levels_option
@click.option("--queues", is_flag=True, help="The ConsumeQueues. Without --queues and --index: both.")
@click.option("--index", is_flag=True, help="The key index.")
@click.option(
    "--index-entries",
    type=click.IntRange(0),
    default=0,
    help="Entries in an index file.  [default: what fits the files]",
)
def rebuild(
    directory: StoreDirectory,
    settings: Settings,
    delay_levels_ms: tuple[int, ...] | None,
    queues: bool,
    index: bool,
    index_entries: int,
) -> int:
    """Rebuild the ConsumeQueues and the key index in DIR from the log, and replace the existing ones.

    The log is verified first and must have no holes. File sizes are those of the existing files. Without existing
    files, give --consume-queue-entries unless it is RocketMQ's 300000, and --index-slots and --index-entries: without
    these only the queues are rebuilt, and the exit code is 8.
    """
    from reput_broker.store.base.errors import ForeignFile
    from reput_broker.tools.index_raw import index_sizes
    from reput_broker.tools.rebuild import REBUILDERS, refuse_other_delays, refuse_other_queues
    from reput_broker.tools.rebuild import rebuild as rebuild_files

    directory = replace(directory, index_entries=index_entries)
    wanted = [name for name, chosen in (("queues", queues), ("index", index)) if chosen] or list(REBUILDERS)
    printer = Printer(settings)
    code = ExitCode.DONE
    with locked(directory, to_write=True) as lock:
        if "index" in wanted and index_sizes(layout_of(directory)) is None:
            if index:
                raise CommandFailed(
                    f"no file in {directory.root / 'index'} has its numbers of slots and entries",
                    remedy=_SIZES,
                    code=ExitCode.USAGE,
                )
            wanted.remove("index")
            code = ExitCode.PARTIAL
            printer.note(f"index: not rebuilt; no file has its numbers of slots and entries; give {_SIZES}")
        try:
            if "queues" in wanted:
                refuse_other_queues(directory.root)
            verification = examined(directory, settings, "checking the log", delay_levels_ms=delay_levels_ms)
            _refuse_damage(verification)
            if "queues" in wanted:
                refuse_other_delays(verification)
            if verification.log.damages:
                printer.note(
                    f"{counted(len(verification.log.damages), 'wrong checksum')} of records; their entries are "
                    f"kept: reput store verify {directory.root}"
                )
            lock.acquire()
            with progress(settings, "rebuilding") as report_progress:
                words = rebuild_files(
                    verification.layout,
                    verification.log.kept_end,
                    [REBUILDERS[name] for name in wanted],
                    delay_levels_ms=verification.delay_levels_ms,
                    progress=report_progress,
                )
        except ForeignFile as error:
            raise CommandFailed(f"{directory.root} cannot be rebuilt", reason=str(error)) from error
    for name, text in zip(wanted, words, strict=True):
        printer.note(f"{name}: {text}")
    return code


def _refuse_damage(verification: Verification) -> None:
    """Refuse a log whose damage hides which messages it holds."""
    remedy = f"reput store repair {verification.root}"
    faults = verification.report.faults
    if verification.log.holes:
        first = verification.log.holes[0]
        place, reason = f"{first.file.path} at byte {first.position}", first.reason
    elif (lost := next((fault for fault in faults if fault.kind == "log"), None)) is not None:
        place, reason = f"{lost.file} at byte {lost.position}", lost.reason
    elif verification.is_out_of_order:
        raise CommandFailed(
            "the log is out of order: message numbers do not follow each other",
            reason=next(str(fault) for fault in faults if fault.kind == "order"),
            remedy=remedy,
            code=ExitCode.DAMAGE,
        )
    else:
        return
    raise CommandFailed(f"the log is damaged: {place}", reason=reason, remedy=remedy, code=ExitCode.DAMAGE)


@command.command()
@directory_options
@delay_levels_option
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Faults to print of each kind.")
def verify(directory: StoreDirectory, settings: Settings, delay_levels_ms: tuple[int, ...] | None, limit: int) -> int:
    """Check every record, queue unit, index entry, checkpoint and table in DIR against each other.

    Changes nothing. Names each fault by file and byte. Exits with 0 if there is no fault, otherwise with 7.
    """
    with locked(directory):
        verification = examined(directory, settings, delay_levels_ms=delay_levels_ms, faults_kept=limit)
    report = verification.report
    printer = Printer(settings)
    figures = {
        **report.figures,
        "log_start": verification.layout.log.min_offset,
        "log_end": verification.log.end_offset,
    }
    if printer.is_json:
        faults = [
            {"kind": f.kind, "file": str(f.file), "position": f.position, "reason": f.reason} for f in report.faults
        ]
        printer.json_line(
            {
                "directory": str(directory.root),
                "clean": report.is_clean,
                "fault_count": report.fault_count,
                "faults_by_kind": dict(report.kinds),
                "faults": faults,
                "notes": report.notes,
                "figures": figures,
            }
        )
    else:
        for fault in report.faults:
            write_line(printable(f"{fault.kind}: {fault}"))
        if report.fault_count > len(report.faults):
            write_line(f"... and {report.fault_count - len(report.faults)} more")
        for note in report.notes:
            printer.note(f"note: {note}")
        verdict = "clean" if report.is_clean else counted(report.fault_count, "fault")
        write_line(
            f"{directory.root}: {verdict}; {counted(figures['records'], 'record')} in "
            f"{counted(figures['log_files'], 'file')} [{figures['log_start']}, {figures['log_end']}), "
            f"{counted(figures['units'], 'unit')}, {counted(figures['index_entries'], 'key')} in the index, "
            f"{counted(report.figures['offsets'], 'offset')}"
        )
        if not report.is_clean and (report.kinds["log"] or report.kinds["record"] or report.kinds["file"]):
            printer.note(f"to see what a repair would truncate: reput store repair {directory.root}")
        elif report.kinds["queue"] or report.kinds["index"]:
            printer.note(
                f"the log is undamaged; to rebuild queues and index from it: reput store rebuild {directory.root}"
            )
    return ExitCode.DONE if report.is_clean else ExitCode.DAMAGE


class QueueName(click.ParamType["tuple[str, int]"]):
    """`TOPIC/ID`."""

    name = "topic/id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Return topic and queue id."""
        if isinstance(value, tuple):
            return value
        topic, separator, queue_id = str(value).rpartition("/")
        if not separator or not topic or not queue_id.isdecimal():
            self.fail(f"{value!r} is not a queue: write TOPIC/ID, such as orders/0", param, ctx)
        return topic, int(queue_id)


@command.command()
@directory_options
@click.option(
    "--log", "what", flag_value="log", default="log", help="Records (the default); positions are log offsets."
)
@click.option("--queue", type=QueueName(), help="Units of a queue; positions are queue offsets.")
@click.option("--index", "what", flag_value="index", help="Headers and entries of the key index; log offsets.")
@click.option("--checkpoint", "what", flag_value="checkpoint", help="The fields of the checkpoint.")
@click.option("--topics", "what", flag_value="topics", help="The topics, and the ends of their queues.")
@click.option("--offsets", "what", flag_value="offsets", help="Committed offsets, those in the journal included.")
@click.option("--from", "start", type=click.IntRange(0), help="First position.")
@click.option("--to", "stop", type=click.IntRange(0), help="Position to stop before.")
@click.option("--count", type=click.IntRange(1), help="At most this many.")
def dump(
    directory: StoreDirectory,
    settings: Settings,
    what: str,
    queue: tuple[str, int] | None,
    start: int | None,
    stop: int | None,
    count: int | None,
) -> int:
    """Print the contents of the files in DIR, one entry per line, as text or with -O json as JSON lines.

    Exits with 7 if a printed entry is damaged.
    """
    from reput_broker.tools.dump import NotThere

    printer = Printer(settings)
    damaged = False
    with locked(directory):
        try:
            for row in _rows(directory, what, queue, (start, stop, count)):
                damaged |= "fault" in row
                if printer.is_json:
                    printer.json_line(row)
                else:
                    write_line("  ".join(f"{key}={_text(value)}" for key, value in row.items() if value is not None))
        except NotThere as error:
            raise CommandFailed(
                str(error), remedy=f"reput store dump {directory.root} --topics", code=ExitCode.NOT_FOUND
            ) from error
    return ExitCode.DAMAGE if damaged else ExitCode.DONE


def _rows(
    directory: StoreDirectory,
    what: str,
    queue: tuple[str, int] | None,
    bounds: tuple[int | None, int | None, int | None],
) -> Iterator[dict[str, Any]]:
    from reput_broker.tools import dump as dumps

    part = dumps.DumpRange(*bounds)
    layout = layout_of(directory)
    if queue is not None:
        return dumps.dump_queue(layout, *queue, part)
    if what == "checkpoint":
        return iter([dumps.dump_checkpoint(directory.root)])
    if what == "topics":
        return dumps.dump_topics(layout)
    if what == "offsets":
        return dumps.dump_offsets(layout)
    return dumps.dump_index(layout, part) if what == "index" else dumps.dump_log(layout, part)


def _text(value: Any) -> str:
    text = printable(str(value))
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


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
                f"{value!r} is neither a queue offset nor a time such as @2026-01-02T03:04:05Z or @-15m", param, ctx
            )
        return position


_POSITION = _PositionType()


@command.command()
@directory_options
@click.option("--topic", required=True, help="The topic.")
@click.option("--from", "start", type=_POSITION, help="First queue offset of each queue, or @TIME.")
@click.option("--to", "stop", type=_POSITION, help="Queue offset of each queue, or @TIME, to stop before.")
@click.option("-f", "--format", "form", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True)
@click.option(
    "-o", "--file", "target", type=click.Path(path_type=Path), default="-", help="File to write.  [default: stdout]"
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


@command.command()
@directory_argument
@commit_log_dir_option
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="Directory to create.")
@output_options
def snapshot(root: Path, commit_log_dirs: tuple[Path, ...], target: Path, settings: Settings) -> int:
    """Copy the store in DIR to a new directory; its broker may be running.

    The copy holds every message acknowledged before the command began. Its state is that of a
    killed broker's directory, so the next start on it runs recovery. It contains the users of access control with their
    secrets, if their file is in DIR. While the copy is made its name ends with .partial, and no broker starts on it.
    """
    require_store(StoreDirectory(root, commit_log_dirs))
    from reput_broker.tools.snapshot import SnapshotFailed, take_snapshot

    try:
        with progress(settings, "copying") as report_progress:
            made = take_snapshot(root, target, commit_log_dirs, report_progress)
    except SnapshotFailed as error:
        raise CommandFailed(error.what, reason=error.reason, remedy=error.remedy) from error
    printer = Printer(settings)
    if printer.is_json:
        printer.json_line(
            {
                "directory": str(root),
                "snapshot": str(target),
                "broker": made.state.value,
                "log_start": made.log_start,
                "log_end": made.log_end,
                "files": made.files,
                "bytes": made.bytes,
            }
        )
    else:
        printer.note(
            f"{target}: log [{made.log_start}, {made.log_end}), {counted(made.files, 'file')}, {made.bytes} bytes; "
            f"the broker was {made.state.value}"
        )
        printer.note(f"to check it: reput store verify {target}")
    return ExitCode.DONE
