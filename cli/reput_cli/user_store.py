"""Where `reput user` and `reput acl` find the users: at the brokers of a cluster, or in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_broker.access.model import Users
    from reput_broker.access.user_file import UserFile
    from reput_client.blocking import Admin
    from reput_client.users import UserTable
    from reput_protocol.rights import Rule

RulesChange: TypeAlias = "Callable[[tuple[Rule, ...]], tuple[Rule, ...]]"
UserStore: TypeAlias = "Admin | UsersInFile"
_Command = TypeVar("_Command", bound=Callable[..., Any])
_OF_A_FILE = ("path", "config", "data_dir")


def user_store_options(command: _Command) -> _Command:
    """Add the shared options, and those that name a file in place of a broker; the command receives `store`."""

    @click.option(
        "--data-dir",
        metavar="DIR",
        help="Edit the file of the broker that has this data directory; the broker need not run.",
    )
    @click.option("-c", "--config", metavar="FILE", help="Edit the file of the broker that has this configuration.")
    @click.option("--file", "path", metavar="FILE", help="Edit this file, access.file of a broker.")
    @wraps(command)
    def with_store(
        settings: Settings, path: str | None, config: str | None, data_dir: str | None, **arguments: Any
    ) -> Any:
        if path is None and config is None and data_dir is None:
            with settings.admin() as admin, _remedy_without_users():
                return command(settings=settings, store=admin, **arguments)
        return command(settings=settings, store=UsersInFile(_file(path, config, data_dir)), **arguments)

    return shared_options(with_store, offline=_OF_A_FILE)  # type: ignore[return-value]


def _file(path: str | None, config: str | None, data_dir: str | None) -> UserFile:
    from reput_broker.access.control import user_file_of
    from reput_broker.access.user_file import UserFile
    from reput_broker.config.loading import load_config

    if path is not None:
        if config is not None or data_dir is not None:
            raise click.UsageError("--file names the file; it cannot be given with --config or --data-dir")
        return UserFile(Path(path))
    place = None if config is None else Path(config)
    return user_file_of(load_config(place, os.environ, {"data_dir": data_dir}))


@contextmanager
def _remedy_without_users() -> Iterator[None]:
    """Say what helps at brokers that have no users; the text of the error tells why they have none."""
    from reput_protocol.errors import RequestNotSupported

    try:
        yield
    except RequestNotSupported as error:
        raise CommandFailed(
            str(error),
            remedy="access.enabled = true at the broker (docs/security.md); --data-dir DIR or --file FILE makes users "
            "before that",
        ) from error


@dataclass(eq=False, repr=False)
class UsersInFile:
    """The users in the file of a broker, which notices within seconds that it has changed.

    It has the methods of `Admin` that the commands call, which raise CommandFailed here.
    """

    _file: UserFile

    def list_users(self) -> UserTable:
        """Return all users and groups with their rules."""
        from reput_client.users import UserDescription, UserTable

        with self._refusals():
            users = self._file.load()
        return UserTable(
            {
                user.name: UserDescription(user.name, user.is_admin, user.is_enabled, user.groups, user.rules)
                for user in users.users.values()
            },
            users.groups,
        )

    def create_user(self, name: str, secret: str, *, is_admin: bool, groups: Iterable[str]) -> None:
        """Create a user."""
        from reput_broker.access.model import User, with_new_user

        user = User(name, secret, is_admin=is_admin, groups=tuple(groups))
        self._change(lambda users: with_new_user(users, user))

    def alter_user(
        self,
        name: str,
        *,
        secret: str | None,
        is_admin: bool | None,
        is_enabled: bool | None,
        groups: Iterable[str] | None,
    ) -> None:
        """Alter a user; what is None stays as it is."""
        from reput_broker.access.model import with_altered_user

        self._change(
            lambda users: with_altered_user(
                users, name, secret=secret, is_admin=is_admin, is_enabled=is_enabled, groups=groups
            )
        )

    def delete_user(self, name: str) -> None:
        """Delete a user with its rules."""
        self._change(lambda users: users.without_user(name))

    def add_rules(self, subject: str, rules: Collection[Rule]) -> None:
        """Give a user or group more rules."""
        from reput_client.users import with_rules

        self._change_rules(subject, lambda before: with_rules(before, rules))

    def remove_rules(self, subject: str, resources: Collection[str]) -> None:
        """Remove rules at once, as the function `remove_rules`."""
        self._change_rules(
            subject, lambda rules: tuple(rule for rule in rules if resources and rule.resource not in resources)
        )

    def _change_rules(self, subject: str, change: RulesChange) -> None:
        from reput_broker.access.model import with_changed_rules

        self._change(lambda users: with_changed_rules(users, subject, change))

    def _change(self, change: Callable[[Users], Users]) -> None:
        with self._refusals():
            self._file.change(change)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        from reput_broker.access.user_file import UserFileRefused

        try:
            yield
        except UserFileRefused as error:
            raise CommandFailed(f"{error.path} cannot be used", reason=error.reason) from error
        except ValueError as error:
            raise CommandFailed(str(error), reason="nothing was changed", code=ExitCode.USAGE) from error


def remove_rules(store: UserStore, subject: str, resources: Collection[str]) -> None:
    """Remove the rules of a user or group about resources, or all if there are none of these."""
    if isinstance(store, UsersInFile):
        store.remove_rules(subject, resources)
    elif not resources:
        store.delete_rules(subject)
    else:
        for resource in sorted(resources):
            store.delete_rules(subject, resource)


def check_known(table: UserTable, name: str) -> None:
    """Raise CommandFailed if there is no user of this name."""
    if name not in table.users:
        raise CommandFailed(f"there is no user {name!r}", remedy="reput user list", code=ExitCode.NOT_FOUND)


def note_differences(printer: Printer, table: UserTable) -> ExitCode:
    """Name the brokers that have other users or rules, or have not answered; return the exit code of the list."""
    for subject, places in sorted(table.differing.items()):
        printer.note(f"{subject} is missing or differs at {'; '.join(places)}")
    for place, error in sorted(table.unreached.items()):
        printer.note(f"no response from {place}: {error}".splitlines()[0])
    return ExitCode.PARTIAL if table.unreached else ExitCode.DONE
