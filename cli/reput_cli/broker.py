"""`reput broker ...`: a broker's state, its intake of messages, and which broker of a group is the master."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from reput_cli.options import Settings, broker_option, shared_options
from reput_cli.output import Printer, duration_text, rfc3339, write_line
from reput_cli.preview import dry_run_option, show
from reput_protocol.commands.operation import INTAKE_WORDS, Intake
from reput_protocol.commands.replica import Promotion
from reput_protocol.errors import NotMaster, ReputError, RequestNotSupported
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted, printable_json
from reput_protocol.quantities import size_text

if TYPE_CHECKING:
    from reput_client.blocking import Admin

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"-?[0-9]{1,19}\.[0-9]{1,19}")


@click.group()
def command() -> None:
    """Show a broker's state; drain it, make it read-only, sync its log; make it the master of its replica group."""


@command.command()
@click.option("--broker", "name", metavar="NAME", help="Only this broker's master.")
@shared_options
def status(settings: Settings, name: str | None) -> int:
    """Print a broker's state and the checks that fail; -O plain and JSON have every figure.

    In JSON all values have their type; sizes (_bytes) are in bytes, ages (_s) in seconds, times in seconds since 1970.
    If the cluster has several brokers, these are the figures of all their masters, one after the other. RocketMQ's
    brokers have other figures, under RocketMQ's names.
    """
    printer = Printer(settings)
    failure: ReputError | None = None
    with settings.admin() as admin:
        names: list[str | None] = [*sorted(admin.cluster_info().masters)] if name is None else [name]
        for each in names or [None]:
            try:
                found = _figures(admin, each)
            except ReputError as error:
                failure = failure or error
                continue
            if printer.is_table and "checks" in found:
                _print_summary(found)
            else:
                _print_status(printer, {"broker": each, **found} if len(names) > 1 else found)
    if failure is not None:
        raise failure
    return ExitCode.DONE


def _figures(admin: Admin, name: str | None) -> dict[str, Any]:
    try:
        return admin.describe_broker(name)
    except RequestNotSupported:
        return {key: _value(text) for key, text in sorted(admin.broker_status(name).items())}


def _print_status(printer: Printer, found: dict[str, Any]) -> None:
    if printer.is_json:
        printer.fields(found)
        return
    checks = found.pop("checks", {})
    printer.fields(dict(_flat(found)))
    for name, check in checks.items():
        if not check["ok"]:
            printer.note(f"check {name} fails: {check['detail']}")


def _print_summary(found: Mapping[str, Any]) -> None:
    """Print what a person wants to know first."""
    store, disk = found["store"], found["disk"] or {}
    delayed, transactions = found.get("delayed") or {}, found.get("transactions") or {}
    now_ms, started_ms = found["clock_ms"], int(found["started_at"] * 1000)
    ready = "ready" if found["ready"] else "NOT READY"
    behind = store["flush_behind_bytes"]
    lines = {
        "version": f"{found['version']}, kernel {found['kernel']}",
        "up": f"{duration_text((now_ms - started_ms) / 1000)}, since {rfc3339(started_ms)}",
        "role": f"{found['role']}, broker id {found['broker_id']}, epoch {found['epoch']}, cluster {found['cluster']}",
        "console": None if found["http"] is None else f"http://{found['http']}/console/",
        "data": found["data_dir"],
        "log": f"{size_text(store['end_offset'] - store['start_offset'])}, "
        f"{'all on disk' if not behind else size_text(behind) + ' not on disk yet'}, flush {found['flush']}",
        "disk": f"{size_text(disk['free_bytes'])} free, {disk['used_ratio']:.0%} used, level {disk['level']}"
        if "free_bytes" in disk
        else None,
        "topics": f"{counted(store['topics'], 'topic')}, retry and dead-letter topics included",
        "groups": f"{counted(store['groups'], 'group')}, {store['groups_online']} online",
        "clients": f"{counted(store['connections'], 'connection')}, {counted(found['held_pulls'], 'waiting pull')}",
        "delayed": f"{counted(delayed['waiting'], 'message')}" if delayed.get("waiting") else None,
        "open": counted(transactions["open"], "transaction") if transactions.get("open") else None,
        "copies": f"{found['copies_in_sync']} of {found['copies_wanted']} in sync, "
        f"{counted(len(found['slaves']), 'slave')}",
        "read-only": store["read_only_reason"],
    }
    write_line(f"{found['broker_name']}  {found['address']}  {found['state']}, {ready}")
    for label, text in lines.items():
        if text is not None:
            write_line(f"  {label:<9}  {text}")
    failing = {name: check for name, check in found["checks"].items() if not check["ok"]}
    if not failing:
        write_line(f"  {'checks':<9}  all {len(found['checks'])} pass")
    for name, check in failing.items():
        since = rfc3339(int(check["since"] * 1000))
        write_line(f"  {'checks':<9}  {name} FAILS since {since}: {check['detail']}")


@command.command()
@click.option("--off", is_flag=True, help="End it: accept messages again, and report ready.")
@dry_run_option
@broker_option
@shared_options
def drain(settings: Settings, off: bool, dry_run: bool, name: str | None) -> int:
    """Reject new messages and report that the broker is not ready, so that load balancers send no more clients.

    Returns when every message accepted before is on disk. Consumers continue; delayed messages, retries and
    transactions are still delivered. The broker keeps running and stays the master of its replica
    group (reput broker promote hands over); a restart ends the drain.
    """
    return _set_intake(settings, name, Intake.OPEN if off else Intake.DRAINING, dry_run=dry_run)


@command.command()
@click.option("--off", is_flag=True, help="End it: accept messages again.")
@dry_run_option
@broker_option
@shared_options
def readonly(settings: Settings, off: bool, dry_run: bool, name: str | None) -> int:
    """Reject new messages, and stay ready for consumers.

    Returns when every message accepted before is on disk. A restart ends it.
    """
    return _set_intake(settings, name, Intake.OPEN if off else Intake.READONLY, dry_run=dry_run)


def _set_intake(settings: Settings, name: str | None, intake: Intake, *, dry_run: bool) -> int:
    with settings.admin() as admin:
        if dry_run:
            show(settings, admin.preview_intake(intake, broker_name=name))
            return ExitCode.DONE
        before = admin.set_intake(intake, broker_name=name)
    again = "already " if before is intake else ""
    Printer(settings).note(f"the broker {again}{INTAKE_WORDS[intake]}")
    return ExitCode.DONE


@command.command()
@broker_option
@shared_options
def flush(settings: Settings, name: str | None) -> int:
    """Write the log to disk, whatever store.flush says, and print the offset up to which it is on disk."""
    with settings.admin() as admin:
        flushed = admin.flush_log(broker_name=name)
    Printer(settings).fields({"flushed_offset": flushed})
    return ExitCode.DONE


@command.command()
@click.argument("broker_id", type=click.IntRange(0))
@click.option("--force", is_flag=True, help="Promote a replica that is not in sync; messages that it lacks are lost.")
@dry_run_option
@shared_options
def promote(settings: Settings, broker_id: int, force: bool, dry_run: bool) -> int:
    """Make the replica BROKER_ID the master of its replica group.

    --server may name any replica of the group. The master rejects new messages, waits until the replica has all of the
    log, and hands over; no message is lost. Without a master, --force makes the replica at --server the master.
    """
    if dry_run:
        with settings.admin() as admin:
            show(settings, admin.preview_promote(broker_id, force=force))
        return ExitCode.DONE
    if force and not settings.yes:
        click.confirm(f"Messages that broker {broker_id} does not have are lost. Continue?", abort=True, err=True)
    made = _promote(settings, broker_id, force)
    lost_b = made.end_offset - made.kept_offset
    printer = Printer(settings)
    printer.fields(
        {
            "broker_id": made.broker_id,
            "end_offset": made.end_offset,
            "kept_offset": made.kept_offset,
            "lost_bytes": lost_b,
        }
    )
    if lost_b:
        printer.note(f"{lost_b} bytes from offset {made.kept_offset} on are kept in a file of the old master only")
    return ExitCode.DONE


def _promote(settings: Settings, broker_id: int, force: bool) -> Promotion:
    """Ask the broker that the settings name, and the master that it names instead."""
    with settings.admin() as admin:
        try:
            return admin.promote_broker(broker_id, force=force)
        except NotMaster as error:
            master = error.ext.get("master")
            if not master:
                raise
    with replace(settings, server=str(master)).admin() as admin:
        return admin.promote_broker(broker_id, force=force)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the members of nested objects with dotted names; a list is JSON."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", printable_json(value) if isinstance(value, list) else value


def _value(text: str) -> str | int | float | bool:
    """Return a figure of RocketMQ's with its type: on the wire all of them are text."""
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
