"""The user of a command, and secrets: from files and prompts, never from the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from reput_cli.failures import CommandFailed
from reput_protocol.exit_codes import ExitCode

_USER, _SECRET, _SECRET_FILE = "REPUT_USER", "REPUT_SECRET", "REPUT_SECRET_FILE"


def put_user_into_environment(
    user: str | None, secret_file: str | None, of_context: Mapping[str, str], *, may_ask: bool = True
) -> None:
    """Set the user of this process, which all its clients and the processes that it starts find in the environment.

    Args:
        user, secret_file: of the options; the environment comes next, then the context.
        of_context: the values of the context.
        may_ask: whether to ask on a terminal for a secret that is nowhere else.

    Raises:
        CommandFailed: a user has no secret, or the file cannot be read.
    """
    environ = os.environ
    if user is None and secret_file is not None and not environ.get(_USER):
        raise CommandFailed(
            "--secret-file has no user", remedy="--user NAME --secret-file FILE", code=ExitCode.USAGE
        )
    if user is None and not environ.get(_USER) and "user" in of_context and "secret_file" in of_context:
        user, secret_file = of_context["user"], of_context["secret_file"]
    if user is not None:
        if secret_file is None and environ.get(_USER) not in (None, "", user):
            environ.pop(_SECRET, None)  # that of another user
            environ.pop(_SECRET_FILE, None)
        environ[_USER] = user
    if secret_file is not None:
        environ.pop(_SECRET, None)
        environ[_SECRET_FILE] = secret_file
    if environ.get(_USER) and not environ.get(_SECRET) and not environ.get(_SECRET_FILE):
        environ[_SECRET] = _asked(environ[_USER], may_ask)
    if not environ.get(_USER) and not environ.get(_SECRET) and not environ.get(_SECRET_FILE):
        return
    from reput_client.security import from_environment

    try:
        from_environment(environ)
    except ValueError as error:
        raise CommandFailed(str(error), code=ExitCode.NOT_AUTHORISED) from None


def _asked(user: str, may_ask: bool) -> str:
    if not may_ask or not sys.stdin.isatty():
        raise CommandFailed(
            f"user {user!r} has no secret",
            remedy="--secret-file FILE, or REPUT_SECRET_FILE",
            code=ExitCode.NOT_AUTHORISED,
        )
    return str(click.prompt(f"secret of {user}", hide_input=True, err=True))


def new_secret(user: str, secret_file: str | None) -> str:
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
        secret = str(
            click.prompt(f"new secret of {user}", hide_input=True, confirmation_prompt=True, err=True)
        )
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
