"""`reput config ...`: the options of a broker, or those that a start would use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, broker_option, output_options, shared_options, warn_of_unknown_variables
from reput_cli.output import Printer
from reput_cli.serve import checked_config
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_protocol.commands.operation import ConfigChanged, ConfigOption


@click.group()
def command() -> None:
    """Show, check and set options of a broker.

    conf/broker.toml has every option with its default: reput generate config.
    """


@command.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--changed", is_flag=True, help="Only options that are not at their default.")
@broker_option
@shared_options
def show(settings: Settings, keys: tuple[str, ...], changed: bool, name: str | None) -> int:
    """Show the options of a running broker: each value and what set it.

    KEY is an option, or a pattern such as 'store.*'. JSON has each value with its type, durations in seconds and sizes
    in bytes, and the text that a file would have.
    """
    warn_of_unknown_variables()
    with settings.admin() as admin:
        options = admin.broker_config(name)
    _show(Printer(settings), options, keys, changed)
    return ExitCode.DONE


@command.command()
@click.option("-c", "--config", "config_path", type=click.Path(path_type=Path), help="TOML file with options.")
@click.option("--show", "with_values", is_flag=True, help="Print the options that are not at their default.")
@output_options
def check(settings: Settings, config_path: Path | None, with_values: bool) -> int:
    """Check a file and the REPUT_ variables as a start of the broker would, and report all mistakes.

    The certificates and keys of [tls] are checked too, also whether they have expired, and
    whether access control has a user.
    """
    from reput_broker.config.loading import load_config

    config = checked_config(partial(load_config, config_path, os.environ), opens_files=True)
    printer = Printer(settings)
    printer.note("the configuration is valid")
    if with_values:
        from reput_broker.config.description import config_options

        _show(printer, config_options(config), (), changed=True)
    return ExitCode.DONE


@command.command(name="set")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@broker_option
@shared_options
def set_options(settings: Settings, values: tuple[str, ...], name: str | None) -> int:
    """Set options of a running broker, until it reloads its configuration or restarts.

    Only options that `config show` calls live; the broker rejects others, with the reason. To keep a value,
    write it into the broker's file as well.
    """
    warn_of_unknown_variables()
    wanted = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals:
            raise CommandFailed(f"{text!r} has no value", remedy="KEY=VALUE", code=ExitCode.USAGE)
        wanted[key.strip()] = value.strip().strip('"')
    with settings.admin() as admin:
        _show_changes(Printer(settings), admin.set_broker_config(wanted, broker_name=name))
    return ExitCode.DONE


@command.command()
@broker_option
@shared_options
def reload(settings: Settings, name: str | None) -> int:
    """Have a running broker read its file and its environment again, as on SIGHUP.

    Live options apply immediately; others wait for a restart. A mistake changes nothing.
    """
    warn_of_unknown_variables()
    with settings.admin() as admin:
        _show_changes(Printer(settings), admin.reload_broker_config(name))
    return ExitCode.DONE


def _show(printer: Printer, options: Iterable[ConfigOption], keys: tuple[str, ...], changed: bool) -> None:
    options = list(options)
    for key in keys:
        if not any(fnmatchcase(option.key, key) for option in options):
            from reput_broker.config.errors import nearest_key

            near = nearest_key(key, [option.key for option in options])
            raise CommandFailed(
                f"there is no option {key!r}" + (f"; did you mean {near!r}?" if near else ""),
                remedy="reput config show",
                code=ExitCode.NOT_FOUND,
            )
    chosen = [
        option
        for option in options
        if (not keys or any(fnmatchcase(option.key, key) for key in keys))
        and not (changed and option.text == option.default)
    ]
    if printer.is_json:
        columns = ["key", "value", "unit", "text", "source", "live", "default", "description"]
        printer.rows(columns, [[getattr(option, column) for column in columns] for option in chosen])
    else:
        printer.rows(
            ["key", "value", "source", "live"],
            [(option.key, option.text, option.source, option.live) for option in chosen],
        )


def _show_changes(printer: Printer, changes: list[ConfigChanged]) -> None:
    if not changes:
        printer.note("nothing changed")
    printer.rows(
        ["key", "before", "after", "applied"],
        [(change.key, change.before, change.after, change.live) for change in changes],
    )
    if not all(change.live for change in changes):
        printer.note("those that were not applied wait for a restart of the broker")
