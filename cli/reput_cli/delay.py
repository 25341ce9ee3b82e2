"""`reput delay ...`: delayed messages."""

from __future__ import annotations

import time

import click

from reput_cli.completion import TOPIC
from reput_cli.failures import CommandFailed, not_found_as
from reput_cli.options import Settings, shared_options, waiting_message_options
from reput_cli.output import Printer, rfc3339
from reput_cli.preview import dry_run_option, show
from reput_protocol.commands.delay import CancelOutcome, DelayedMessage
from reput_protocol.errors import NotFound
from reput_protocol.exit_codes import ExitCode

_COLUMNS = ("deliver_at", "due_in_s", "topic", "queue", "level", "message_id", "keys", "size_bytes")


@click.group()
def command() -> None:
    """List and cancel delayed messages."""


@command.command(name="list")
@waiting_message_options("message_id")
@shared_options
def list_delayed(settings: Settings, topic: str | None, key: str | None, count: int) -> int:
    """List the delayed messages that are not delivered yet, the next one first."""
    with settings.admin() as admin:
        messages = admin.list_delayed(topic=topic, key=key, max_messages=count)
    _print(Printer(settings), messages)
    return ExitCode.DONE


@command.command()
@click.option("-t", "--topic", type=TOPIC, required=True, help="Topic they will be delivered to.")
@click.option("-k", "--key", required=True, help="Key or message_id.")
@dry_run_option
@shared_options
def cancel(settings: Settings, topic: str, key: str, dry_run: bool) -> int:
    """Cancel delayed messages and print the outcome for each. Exits with 1 if one had already been delivered."""
    printer = Printer(settings)
    with settings.admin() as admin:
        if dry_run:
            show(settings, admin.preview_cancel_delayed(topic, key))
            return ExitCode.DONE
        missing = f"no delayed message for {topic} has the key {key!r}"
        with not_found_as(NotFound, missing, remedy=f"reput delay list -t {topic}", says_why=True):
            results = admin.cancel_delayed(topic, key)
    printer.rows(
        ("outcome", "message_id", "offset_message_id"),
        [(result.outcome.value.lower(), result.unique_id, result.offset_message_id) for result in results],
    )
    late = sum(result.outcome is CancelOutcome.DELIVERED for result in results)
    if late:
        raise CommandFailed(
            f"{late} of {len(results)} messages had already been delivered",
            remedy=f"reput message find -t {topic} -k {key}",
        )
    return ExitCode.DONE


def _print(printer: Printer, messages: list[DelayedMessage]) -> None:
    now_ms = time.time_ns() // 1_000_000
    printer.rows(
        _COLUMNS,
        [
            (
                rfc3339(message.deliver_timestamp),
                round((message.deliver_timestamp - now_ms) / 1000, 3),
                message.topic,
                message.queue_id,
                message.delay_level or None,
                message.unique_id or message.offset_message_id,
                message.keys if printer.is_json else " ".join(message.keys),
                message.size,
            )
            for message in messages
        ],
    )
