"""`reput dlq peek`: show dead letters without touching anything."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import click

from reput_cli import message_lines
from reput_cli.dlq.letters import READER_GROUP, DeadLetter, bounds_of, chosen_by, filter_option, read_letters
from reput_cli.options import Settings, shared_options
from reput_cli.output import write_message
from reput_cli.positions import Position, RangeType
from reput_client.blocking import Admin, PullConsumer
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable, printable_json


@click.command()
@click.argument("group")
@click.option(
    "-o", "--from", "span", type=RangeType(), default="earliest", show_default=True, metavar="START[:END]",
    help="earliest, an offset, -N for the last N, @TIME, @-15m, or a range of these.",
)  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=10, show_default=True, help="At most so many."
)
@click.option("-f", "--format", "text", help="Percent escapes, as of reput consume.")
@filter_option
@shared_options
def peek(
    settings: Settings,
    group: str,
    span: tuple[Position, Position | None],
    count: int,
    text: str | None,
    expression: str | None,
) -> int:
    """Show dead letters of GROUP, oldest first: the message, where it came from, why it is here, after how many
    tries."""
    render, chosen = _renderer(settings, text), chosen_by(expression)
    with (
        Admin(settings.server, timeout_s=settings.timeout_s) as admin,
        PullConsumer(settings.server, group=READER_GROUP, timeout_s=settings.timeout_s) as consumer,
    ):
        topic, start, end = bounds_of(admin, group)
        first, last = span
        start = first.resolve(admin, topic, 0)
        if last is not None:
            end = min(end, last.resolve(admin, topic, 0))
        left = count
        for letter in read_letters(consumer, topic, start, end):
            if not chosen(letter):
                continue
            write_message(render(letter))
            left -= 1
            if not left:
                break
    return ExitCode.DONE


def _renderer(settings: Settings, text: str | None) -> Callable[[DeadLetter], str]:
    if text is not None:
        of_message = message_lines.compile_format(text)
        return lambda letter: of_message(letter.message)
    form = settings.output or ("table" if sys.stdout.isatty() else "json")
    if form == "table":
        return _block
    return _plain if form == "plain" else _json_line


def _json_line(letter: DeadLetter) -> str:
    return printable_json({**json.loads(message_lines.json_line(letter.message)), **letter.fields})


def _plain(letter: DeadLetter) -> str:
    head = (letter.message.queue_offset, letter.origin_topic or "-", letter.attempts, letter.reason)
    # Queue, offset, tag and body; the queue of dead letters is always 0.
    _, _, rest = message_lines.plain(letter.message).split("\t", 2)
    return "\t".join([*(printable(str(value)) for value in head), rest])


def _block(letter: DeadLetter) -> str:
    line = f"  from {letter.origin_topic or 'unknown'}  attempts {letter.attempts}  reason {letter.reason}"
    if letter.cause:
        line += f"  cause {letter.cause}"
    head, _, body = message_lines.block(letter.message).partition("\n")
    return f"{head}\n{printable(line)}\n{body}"
