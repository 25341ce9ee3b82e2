"""`reput transaction ...`: transactions that no producer has ended yet."""

from __future__ import annotations

import click

from reput_cli.completion import TOPIC
from reput_cli.failures import not_found_as
from reput_cli.options import Settings, shared_options, waiting_message_options
from reput_cli.output import Printer, rfc3339
from reput_cli.preview import dry_run_option, may_proceed
from reput_protocol.errors import NotFound
from reput_protocol.exit_codes import ExitCode

_COLUMNS = ("topic", "transaction_id", "producer_group", "checked", "keys", "size_bytes")


@click.group()
def command() -> None:
    """List open transactions, and decide one instead of its producer."""


@command.command(name="list")
@waiting_message_options("transaction id")
@shared_options
def list_open(settings: Settings, topic: str | None, key: str | None, count: int) -> int:
    """List the transactions that are neither committed nor rolled back, the oldest first."""
    with settings.admin() as admin:
        found = admin.list_transactions(topic=topic, key=key, max_transactions=count)
    printer = Printer(settings)
    printer.rows(
        ("stored_at" if printer.is_table else "stored_ms", *_COLUMNS),
        [
            (
                rfc3339(one.store_timestamp) if printer.is_table else one.store_timestamp,
                one.topic,
                one.unique_id,
                one.producer_group,
                one.check_times,
                one.keys if printer.is_json else " ".join(one.keys),
                one.size,
            )
            for one in found
        ],
    )
    return ExitCode.DONE


@command.command()
@click.argument("topic", type=TOPIC)
@click.argument("transaction_id")
@dry_run_option
@shared_options
def commit(settings: Settings, topic: str, transaction_id: str, dry_run: bool) -> int:
    """Deliver the message of TRANSACTION_ID to the consumers of TOPIC."""
    return _end(settings, topic, transaction_id, dry_run=dry_run, commits=True)


@command.command()
@click.argument("topic", type=TOPIC)
@click.argument("transaction_id")
@dry_run_option
@shared_options
def rollback(settings: Settings, topic: str, transaction_id: str, dry_run: bool) -> int:
    """Discard the message of TRANSACTION_ID. Asks for the topic's name unless --yes is given."""
    return _end(settings, topic, transaction_id, dry_run=dry_run, commits=False)


def _end(settings: Settings, topic: str, transaction_id: str, *, dry_run: bool, commits: bool) -> int:
    with settings.admin() as admin:
        missing = f"no transaction of {topic} with the id {transaction_id} is open"
        with not_found_as(NotFound, missing, remedy=f"reput transaction list -t {topic}"):
            found = admin.open_transaction(topic, transaction_id)
            preview = admin.preview_end_transaction(topic, transaction_id, commit=commits)
        if not may_proceed(
            settings,
            preview,
            f"transaction {transaction_id} was not ended",
            dry_run=dry_run,
            name=None if commits else topic,
            question="type the topic's name to roll it back",
        ):
            return ExitCode.DONE
        admin.end_transaction(found, commit=commits)
    Printer(settings).note(f"transaction {transaction_id} {'committed' if commits else 'rolled back'}")
    return ExitCode.DONE
