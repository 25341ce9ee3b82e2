"""`reput message ...`: find and print single messages, and what became of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from shlex import quote

import click

from reput_cli import rendering
from reput_cli.completion import TOPIC
from reput_cli.failures import CommandFailed, not_found_as
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer, rfc3339, write_message
from reput_cli.positions import TIME
from reput_protocol.errors import NotFound, RequestNotSupported
from reput_protocol.exit_codes import ExitCode


@click.group()
def command() -> None:
    """Find and print single messages, and their history."""


@command.command()
@click.argument("message_id")
@shared_options
def get(settings: Settings, message_id: str) -> int:
    """Print the message with this offset message id: 32 or 56 hexadecimal digits, as `reput produce` prints it."""
    with settings.admin() as admin, _found(message_id):
        message = admin.view_message(message_id)
    write_message(rendering.renderer(settings)(message))
    return ExitCode.DONE


@command.command()
@click.argument("message_id")
@shared_options
def history(settings: Settings, message_id: str) -> int:
    """Print the history of the message with this offset message id, in the order of time.

    That is when it was sent and stored, how far each group is with it and which member has it, its retries, dead
    letters and replays, and what RocketMQ's clients with enableMsgTrace report. A time marked * is by the clock of a
    client. Nothing is consumed.
    """
    with settings.admin() as admin, _found(message_id):
        found = admin.message_history(message_id)
    printer = Printer(settings)
    rows: list[tuple[object, ...]] = []
    for step in found.steps:
        at: object = step.at_ms
        if printer.is_table:
            at = None if step.at_ms is None else rfc3339(step.at_ms) + "*" * step.is_client_time
        rows.append((at, step.kind, step.text, step.group, step.client, step.offset_message_id))
    when = "time" if printer.is_table else "at_ms"
    printer.rows([when, "what", "text", "group", "client", "offset_message_id"], rows)
    if found.trace_parent:
        printer.note(f"traceparent of the message: {found.trace_parent}")
    for missing in found.missing:
        printer.note(f"not known: {missing}")
    return ExitCode.DONE


def _found(message_id: str) -> AbstractContextManager[None]:
    """Explain why there is no message with an id."""
    return not_found_as(
        NotFound,
        f"no message has the offset message id {message_id}",
        reason="there is no message at the log offset that it contains; it may have been deleted",
        remedy=f"for a message_id, which the producer makes: reput message find TOPIC {message_id}",
    )


@command.command()
@click.argument("names", metavar="TOPIC [KEY]", nargs=-1)
@click.option("-t", "--topic", type=TOPIC, help="Topic, instead of the argument.")
@click.option("-k", "--key", help="Key or message_id, instead of the argument.")
@click.option("-n", "--count", type=click.IntRange(1, 64), default=32, show_default=True, help="At most this many.")
@click.option(
    "--between",
    type=(TIME, TIME),
    metavar="TIME TIME",
    help="Stored between these times: 2026-01-02T03:04:05Z, or -15m.",
)
@shared_options
def find(
    settings: Settings,
    names: tuple[str, ...],
    topic: str | None,
    key: str | None,
    count: int,
    between: tuple[int, int] | None,
) -> int:
    """Print the messages of TOPIC with this key or message_id, newest first; with --between, KEY may be missing."""
    topic, key = _topic_and_key(names, topic, key, key_needed=between is None)
    begin, end = between or (None, None)
    with settings.admin() as admin:
        found = admin.find_messages(topic, key, max_messages=count, begin=begin, end=end)
        if not found.messages:
            with suppress(RequestNotSupported):
                admin.topic_configs(topic)  # raises if there is no such topic
    render = rendering.renderer(settings)
    for message in found.messages:
        write_message(render(message))
    if not found.complete:
        Printer(settings).note("messages may be missing: the key index is being rebuilt, or too many messages match")
    if not found.messages:
        what = f"has the key {key!r}" if key else "was stored"
        raise CommandFailed(
            f"no message of {topic} {what}" + (" in that time" if between else ""),
            remedy=f"reput topic list, and reput consume {topic} -e -O json | grep {quote(key or '...')}",
            code=ExitCode.NOT_FOUND,
        )
    return ExitCode.DONE


def _topic_and_key(names: tuple[str, ...], topic: str | None, key: str | None, *, key_needed: bool) -> tuple[str, str]:
    left = list(names)
    if topic is None and left:
        topic = left.pop(0)
    if key is None and left:
        key = left.pop(0)
    if topic is None or (key_needed and key is None) or left:
        raise click.UsageError("a topic, and a key or a time, are needed: reput message find TOPIC KEY")
    return topic, key or ""
