"""Makes the access control that the configuration asks for, when a broker or name server starts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from reput_broker.access.control import AccessControl
from reput_broker.access.model import User, Users
from reput_broker.access.requests import Audited, requirement_of
from reput_broker.access.user_file import UserFile, write_private
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import AccessConfig
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Refusal, Request
from reput_protocol.errors import ErrorCode, ReputError
from reput_protocol.wire.header import Value

log = structlog.get_logger(__name__)


class InsecureAccess:
    """Refuses administrative requests of other machines, and logs those of this one."""

    def authenticate(self, request: Request) -> None:
        """Do nothing: requests have no user."""

    def challenge(self, request: Request) -> Mapping[str, Value]:
        """Return no fields: requests need no signatures."""
        del request
        return {}

    def authorize(self, request: Request) -> None:
        """Check that an administrative request comes from this machine.

        Raises:
            Refusal: NO_PERMISSION.
        """
        if request.principal is not None or not requirement_of(request.header.code).is_administrative:
            return
        request.traffic = Audited(request, "")
        if not request.client.is_local:
            raise Refusal(
                ErrorCode.NO_PERMISSION,
                "this broker takes administrative requests from its own machine only, because access control is off; "
                "send it from there, or set access.enabled there and sign the request as an administrator",
            )


Access: TypeAlias = AccessControl | InsecureAccess | None
"""What checks the requests of a broker; None: nothing, since only this machine can connect."""

SECRET_FILE: Final = "admin.secret"
"""Next to the file with the users: the secret of the administrator that was made by itself."""


class NoUsers(ReputError):
    """Access control is on and there is no user. Nothing was changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"access.enabled is on, but {path} has no users and access.admin_secret is empty; put the secret of an "
            "administrator into a file that REPUT_ACCESS__ADMIN_SECRET_FILE names, or run "
            f"`reput user create admin --admin --file {path}`"
        )
        self.path = path


def user_file_of(config: BrokerConfig) -> UserFile:
    """Return the file with the users: that of `access.file`, or the one in the data directory. Reads nothing."""
    return UserFile(
        Path(config.access.file) if config.access.file else config.data_dir / "access" / "users.json"
    )


def check_users(config: BrokerConfig) -> None:
    """Check that a start with access control would have a user. Blocks, and changes nothing.

    Raises:
        NoUsers: it would have none.
        UserFileRefused: the file with the users cannot be used.
    """
    if config.access.enabled:
        file = user_file_of(config)
        _require_user(config.access, file, file.load())


def open_access(config: BrokerConfig, counters: Counters) -> Access:
    """Return what checks the requests; None if nothing does, because only this machine can connect. Blocks.

    Raises:
        NoUsers: there is no user.
        UserFileRefused: the file with the users cannot be used.
    """
    options = config.access
    if not options.enabled:
        return InsecureAccess() if config.is_reachable else None
    file = user_file_of(config)
    users, seen = file.read()
    _require_user(options, file, users)
    if not options.admin_secret and not users.users and options.generate_admin:
        _generate(file, options.admin_user)
        users, seen = file.read()
    return AccessControl(file, users, seen, options, counters)


def _require_user(options: AccessConfig, file: UserFile, users: Users) -> None:
    """Raise NoUsers if there is no enabled user and none will be made."""
    is_generated = options.generate_admin and not users.users
    if not (options.admin_secret or is_generated or any(user.is_enabled for user in users.users.values())):
        raise NoUsers(file.path)


def _generate(file: UserFile, name: str) -> None:
    """Make an administrator with a new secret, and write that into a file of its own."""
    secret = secrets.token_hex(32)
    path = file.path.with_name(SECRET_FILE)
    file.change(lambda users: users.with_user(User(name, secret, is_admin=True)))
    path.unlink(missing_ok=True)
    write_private(path, secret.encode() + b"\n")
    log.info(
        "administrator_made", user=name, secret_file=str(path), hint="only the owner of the file can read it"
    )
