"""`reput user ...`: the users of access control."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, output_options
from reput_cli.output import Printer
from reput_cli.secret import new_secret
from reput_protocol.exit_codes import ExitCode
from reput_protocol.signature import check_user_name

if TYPE_CHECKING:
    from reput_broker.access.model import User, Users
    from reput_broker.access.user_file import UserFile

_Command = TypeVar("_Command", bound=Callable[..., Any])


def user_file_options(command: _Command) -> _Command:
    """Add the options that name the file with the users; the command receives it as `file`."""

    @click.option(
        "--file", "path", metavar="FILE", help="The file with the users: access.file of the broker."
    )
    @click.option(
        "-c",
        "--config",
        metavar="FILE",
        help="The broker's configuration, which names the file.  [default: none]",
    )
    @click.option("--data-dir", metavar="DIR", help="The broker's data directory, which has the file.")
    @wraps(command)
    def with_file(path: str | None, config: str | None, data_dir: str | None, **arguments: Any) -> Any:
        return command(file=_file(path, config, data_dir), **arguments)

    return with_file  # type: ignore[return-value]


def _file(path: str | None, config: str | None, data_dir: str | None) -> UserFile:
    from reput_broker.access.opening import user_file_of
    from reput_broker.access.user_file import UserFile
    from reput_broker.config.loading import load_config

    if path is not None:
        return UserFile(Path(path))
    place = None if config is None else Path(config)
    return user_file_of(load_config(place, os.environ, {"data_dir": data_dir}))


def changed(file: UserFile, change: Callable[[Users], Users]) -> Users:
    """Change the users in the file. Raises CommandFailed."""
    from reput_broker.access.user_file import UserFileRefused

    try:
        return file.change(change)
    except UserFileRefused as error:
        raise CommandFailed(f"{file.path} was not changed", reason=error.reason) from error
    except ValueError as error:
        raise CommandFailed(str(error), reason="nothing was changed", code=ExitCode.USAGE) from error


def loaded(file: UserFile) -> Users:
    """Return the users in the file. Raises CommandFailed."""
    from reput_broker.access.user_file import UserFileRefused

    try:
        return file.load()
    except UserFileRefused as error:
        raise CommandFailed(f"{file.path} cannot be used", reason=error.reason) from error


def known(users: Users, name: str) -> User:
    """Return a user. Raises CommandFailed if there is none of this name."""
    found = users.users.get(name)
    if found is None:
        raise CommandFailed(f"there is no user {name!r}", remedy="reput user list", code=ExitCode.NOT_FOUND)
    return found


@click.group()
def command() -> None:
    """List, create, alter and delete the users of access control.

    The users are in a file of the broker or name server, which notices within seconds that it has changed. Every broker
    of a cluster has its own file. `reput acl` says what the users may do.
    """


@command.command(name="list")
@user_file_options
@output_options
def list_users(settings: Settings, file: UserFile) -> int:
    """List the users, without their secrets."""
    users = loaded(file)
    Printer(settings).rows(
        ["user", "admin", "enabled", "groups", "rules"],
        [
            (
                user.name,
                user.is_admin,
                user.is_enabled,
                " ".join(user.groups) or None,
                len(users.rules_of(user)),
            )
            for user in sorted(users.users.values(), key=lambda user: user.name)
        ],
    )
    return ExitCode.DONE


@command.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="It may do everything.")
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="A group of rules that it has. Repeatable."
)
@click.option("--secret-file", metavar="FILE", help="File with its secret.  [default: a prompt]")
@click.option("--generate", metavar="FILE", help="Make a secret, and write it into this new file.")
@user_file_options
@output_options
def create(
    settings: Settings,
    file: UserFile,
    name: str,
    admin: bool,
    groups: tuple[str, ...],
    secret_file: str | None,
    generate: str | None,
) -> int:
    """Create the user NAME.

    Without --admin it may do nothing before `reput acl allow` permits it.
    """
    from reput_broker.access.model import User

    _check_name(name)
    if secret_file is not None and generate is not None:
        raise CommandFailed(
            "--secret-file and --generate are both given", remedy="give one of them", code=ExitCode.USAGE
        )
    if name in loaded(file).users:
        raise CommandFailed(
            f"there is a user {name!r} already", remedy=f"reput user alter {name}", code=ExitCode.FAILED
        )
    secret = new_secret(name, secret_file) if generate is None else _generated(generate)

    def add(users: Users) -> Users:
        if name in users.users:
            raise ValueError(f"there is a user {name!r} already")
        return users.with_user(User(name, secret, is_admin=admin, groups=groups))

    changed(file, add)
    Printer(settings).note(f"created user {name} in {file.path}")
    return ExitCode.DONE


@command.command()
@click.argument("name")
@click.option("--admin/--no-admin", default=None, help="Whether it may do everything.")
@click.option("--enable/--disable", default=None, help="Whether its requests are accepted.")
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="The groups of rules that it has. Repeatable."
)
@click.option("--no-groups", is_flag=True, help="It has no group of rules any more.")
@click.option("--secret-file", metavar="FILE", help="File with its new secret.")
@user_file_options
@output_options
def alter(
    settings: Settings,
    file: UserFile,
    name: str,
    admin: bool | None,
    enable: bool | None,
    groups: tuple[str, ...],
    no_groups: bool,
    secret_file: str | None,
) -> int:
    """Alter the user NAME."""
    secret = None if secret_file is None else new_secret(name, secret_file)

    def alter_it(users: Users) -> Users:
        user = known(users, name)
        altered = replace(
            user,
            secret=user.secret if secret is None else secret,
            is_admin=user.is_admin if admin is None else admin,
            is_enabled=user.is_enabled if enable is None else enable,
            groups=() if no_groups else groups or user.groups,
        )
        return users.with_user(altered)

    changed(file, alter_it)
    Printer(settings).note(f"altered user {name} in {file.path}")
    return ExitCode.DONE


@command.command()
@click.argument("name")
@user_file_options
@output_options
def delete(settings: Settings, file: UserFile, name: str) -> int:
    """Delete the user NAME, with its rules."""
    known(loaded(file), name)
    changed(file, lambda users: users.without_user(name))
    Printer(settings).note(f"deleted user {name} from {file.path}")
    return ExitCode.DONE


def _check_name(name: str) -> None:
    try:
        check_user_name(name)
    except ValueError as error:
        raise CommandFailed(str(error), code=ExitCode.USAGE) from None


def _generated(path: str) -> str:
    from reput_broker.access.user_file import write_private

    secret = secrets.token_hex(32)
    try:
        write_private(Path(path), secret.encode() + b"\n")
    except OSError as error:
        raise CommandFailed(f"cannot create {path}", reason=error.strerror, code=ExitCode.USAGE) from error
    return secret
