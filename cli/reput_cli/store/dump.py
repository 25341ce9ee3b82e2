"""`reput store dump`: print the contents of the files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer, write_line
from reput_cli.store.directory import StoreDirectory, directory_options, layout_of, locked
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable

_TEXT_MAX = 80


class QueueName(click.ParamType["tuple[str, int]"]):
    """`TOPIC/ID`."""

    name = "topic/id"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return topic and queue id."""
        if isinstance(value, tuple):
            return value
        topic, separator, queue_id = str(value).rpartition("/")
        if not separator or not topic or not queue_id.isdecimal():
            self.fail(f"{value!r} is not a queue: write TOPIC/ID, such as orders/0", param, ctx)
        return topic, int(queue_id)


@click.command()
@directory_options
@click.option(
    "--log", "what", flag_value="log", default="log", help="Records (the default); positions are log offsets."
)
@click.option("--queue", type=QueueName(), help="Units of a queue; positions are queue offsets.")
@click.option(
    "--index", "what", flag_value="index", help="Headers and entries of the key index; log offsets."
)
@click.option("--checkpoint", "what", flag_value="checkpoint", help="The fields of the checkpoint.")
@click.option("--topics", "what", flag_value="topics", help="The topics, and the ends of their queues.")
@click.option(
    "--offsets", "what", flag_value="offsets", help="Committed offsets, those in the journal included."
)
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
                    write_line(
                        "  ".join(f"{key}={_text(value)}" for key, value in row.items() if value is not None)
                    )
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
