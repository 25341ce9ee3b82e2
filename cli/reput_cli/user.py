"""`reput user ...`: the users of access control."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer
from reput_cli.preview import dry_run_option, refuse, show
from reput_cli.user_store import UserStore, check_known, note_differences, user_store_options
from reput_protocol.exit_codes import ExitCode
from reput_protocol.wire.signature import check_user_name

_new_secret_option = click.option("--new-secret-file", metavar="FILE", help="File with the user's new secret.")
_generate_option = click.option(
    "--generate", metavar="FILE", help="Make a new secret, and write it into this new file."
)


@click.group()
def command() -> None:
    """List, create, alter and delete the users of access control.

    The commands need an administrator, and change all brokers of the cluster, and the name servers at --server. With
    --data-dir, --config or --file they edit the file of one broker, which need not run; a running broker reads the
    change within seconds. `reput acl` says what the users may do.
    """


@command.command(name="list")
@user_store_options
def list_users(settings: Settings, store: UserStore) -> int:
    """List the users, without their secrets."""
    table = store.list_users()
    printer = Printer(settings)
    printer.rows(
        ["user", "admin", "enabled", "groups", "rules"],
        [
            (
                user.name,
                user.is_admin,
                user.is_enabled,
                " ".join(user.groups) or None,
                len(user.rules) + sum(len(table.groups.get(group, ())) for group in user.groups),
            )
            for user in sorted(table.users.values(), key=lambda user: user.name)
        ],
    )
    return note_differences(printer, table)


@command.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="May do everything.")
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="A named set of rules that the user gets. Repeatable."
)
@_new_secret_option
@_generate_option
@dry_run_option
@user_store_options
def create(
    settings: Settings,
    store: UserStore,
    name: str,
    admin: bool,
    groups: tuple[str, ...],
    new_secret_file: str | None,
    generate: str | None,
    dry_run: bool,
) -> int:
    """Create the user NAME. Its secret is asked for, unless it is in a file or generated.

    Without --admin the user has no rights until `reput acl allow` grants them.
    """
    from reput_client.users import preview_create_user

    _check_name(name)
    preview = preview_create_user(store.list_users(), name, is_admin=admin, groups=groups)
    refuse(preview)
    if dry_run:
        show(settings, preview)
        return ExitCode.DONE
    with _new_secret(name, new_secret_file, generate) as given:
        store.create_user(name, given or _read_secret(name, None), is_admin=admin, groups=groups)
    Printer(settings).note(f"created user {name}")
    return ExitCode.DONE


@command.command()
@click.argument("name")
@click.option("--admin/--no-admin", default=None, help="Whether it may do everything.")
@click.option("--enable/--disable", default=None, help="Whether its requests are accepted.")
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="The named sets of rules that the user gets. Repeatable."
)
@click.option("--no-groups", is_flag=True, help="Remove all named sets of rules from the user.")
@_new_secret_option
@_generate_option
@dry_run_option
@user_store_options
def alter(
    settings: Settings,
    store: UserStore,
    name: str,
    admin: bool | None,
    enable: bool | None,
    groups: tuple[str, ...],
    no_groups: bool,
    new_secret_file: str | None,
    generate: str | None,
    dry_run: bool,
) -> int:
    """Alter the user NAME."""
    from reput_client.users import preview_alter_user

    table, of_groups = store.list_users(), () if no_groups else groups or None
    check_known(table, name)
    if dry_run:
        has_new_secret = generate is not None or new_secret_file is not None
        show(
            settings,
            preview_alter_user(
                table, name, has_new_secret=has_new_secret, is_admin=admin, is_enabled=enable, groups=of_groups
            ),
        )
        return ExitCode.DONE
    with _new_secret(name, new_secret_file, generate) as secret:
        store.alter_user(name, secret=secret, is_admin=admin, is_enabled=enable, groups=of_groups)
    Printer(settings).note(f"altered user {name}")
    return ExitCode.DONE


@command.command()
@click.argument("name")
@dry_run_option
@user_store_options
def delete(settings: Settings, store: UserStore, name: str, dry_run: bool) -> int:
    """Delete the user NAME, with its rules."""
    from reput_client.users import preview_delete_user

    table = store.list_users()
    check_known(table, name)
    if dry_run:
        show(settings, preview_delete_user(table, name))
        return ExitCode.DONE
    store.delete_user(name)
    Printer(settings).note(f"deleted user {name}")
    return ExitCode.DONE


def _check_name(name: str) -> None:
    try:
        check_user_name(name)
    except ValueError as error:
        raise CommandFailed(str(error), code=ExitCode.USAGE) from None


@contextmanager
def _new_secret(name: str, secret_file: str | None, generate: str | None) -> Iterator[str | None]:
    """Yield the secret that the options give, if any. A file made for one that all brokers refuse is removed again."""
    if secret_file is not None and generate is not None:
        raise CommandFailed(
            "--new-secret-file and --generate are both given", remedy="give one of them", code=ExitCode.USAGE
        )
    if generate is None:
        yield None if secret_file is None else _read_secret(name, secret_file)
        return
    from reput_broker.access.user_file import write_private
    from reput_client.errors import BrokerError, BrokersFailed

    secret, path = secrets.token_hex(32), Path(generate)
    try:
        write_private(path, secret.encode() + b"\n")
    except OSError as error:
        raise CommandFailed(f"cannot create {generate}", reason=error.strerror, code=ExitCode.USAGE) from error
    try:
        yield secret
    except (BrokerError, CommandFailed, BrokersFailed) as error:
        is_refused = not isinstance(error, BrokersFailed) or (
            not error.done and all(isinstance(each, BrokerError) for each in error.failures.values())
        )
        if is_refused:
            path.unlink(missing_ok=True)
        raise


def _read_secret(user: str, secret_file: str | None) -> str:
    """Return a secret for a user, from a file or, twice, from a prompt.

    Raises:
        CommandFailed: there is neither a file nor a terminal, or it cannot be a secret.
    """
    if secret_file is not None:
        try:
            secret = Path(secret_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise CommandFailed(f"cannot read {secret_file}", reason=reason, code=ExitCode.USAGE) from None
    elif sys.stdin.isatty():
        secret = str(click.prompt(f"new secret of {user}", hide_input=True, confirmation_prompt=True, err=True))
    else:
        raise CommandFailed(
            "there is no secret, and no terminal to ask for it",
            remedy="--new-secret-file FILE, or --generate FILE",
            code=ExitCode.USAGE,
        )
    from reput_protocol.wire.signature import check_new_secret

    try:
        return check_new_secret(secret)
    except ValueError as error:
        raise CommandFailed(str(error), code=ExitCode.USAGE) from None
