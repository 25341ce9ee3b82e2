"""`reput message ...`: single messages."""

from __future__ import annotations

import click

from reput_cli import message_lines
from reput_cli.exit_codes import ExitCode
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer, write_line
from reput_cli.positions import TimeType
from reput_client.blocking import Admin
from reput_protocol.errors import NotFound

TIME = TimeType()


@click.group()
def command() -> None:
    """Look at single messages."""


@command.command()
@click.argument("message_id")
@shared_options
def get(settings: Settings, message_id: str) -> int:
    """Print the message with this offset message id (32 or 56 hexadecimal digits, as a send prints it)."""
    with Admin(settings.server, timeout_s=settings.timeout_s) as admin:
        try:
            message = admin.view_message(message_id)
        except NotFound as error:
            raise CommandFailed(
                f"no message has the offset message id {message_id}",
                reason=str(error),
                remedy=f"for a message_id, which is the producer's own: reput message find -t TOPIC -k {message_id}",
                code=ExitCode.NOT_FOUND,
            ) from error
    write_line(message_lines.renderer(settings)(message))
    return ExitCode.DONE


@command.command()
@click.option("-t", "--topic", required=True, help="Topic of the messages.")
@click.option("-k", "--key", required=True, help="One of their keys, or a message_id.")
@click.option(
    "-n", "--count", type=click.IntRange(1, 64), default=32, show_default=True, help="At most so many."
)
@click.option(
    "--between",
    type=(TIME, TIME),
    metavar="TIME TIME",
    help="Stored between these: 2026-01-02T03:04:05Z, or -15m.",
)
@shared_options
def find(settings: Settings, topic: str, key: str, count: int, between: tuple[int, int] | None) -> int:
    """Print the messages of a topic that have a key, newest first."""
    begin, end = between or (None, None)
    with Admin(settings.server, timeout_s=settings.timeout_s) as admin:
        found = admin.find_messages(topic, key, max_messages=count, begin=begin, end=end)
    render = message_lines.renderer(settings)
    for message in found.messages:
        write_line(render(message))
    if not found.complete:
        Printer(settings).note("the index is being made again after a crash: messages may be missing")
    if not found.messages:
        raise CommandFailed(
            f"no message of {topic} has the key {key!r}" + (" in that time" if between else ""),
            remedy=f"reput topic list, and reput consume {topic} -e -O json | grep",
            code=ExitCode.NOT_FOUND,
        )
    return ExitCode.DONE
