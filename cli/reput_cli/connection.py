"""How a command connects: to which server, encrypted or not, as which user; and the file of contexts.

Contexts are named connection profiles. The user is in the environment of this process, where all its clients and the
processes that it starts find the name. Secrets come from files and prompts, never from the command line.

The file is `reput/contexts.toml` in the user's configuration directory:

    current = "prod"

    [contexts.prod]
    server = "broker1:10911,broker2:10911"
    timeout = "10s"
    tls_ca = "/etc/reput/ca.pem"
    user = "alice"
    secret_file = "/home/alice/.reput-secret"

Only its owner may read and write it: another user who can write it redirects every command.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reput_cli.failures import CommandFailed
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_client.security import TLS

DEFAULT_SERVER = "127.0.0.1:10911"
TLS_KEYS = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_server_name")
"""`tls = "on"` trusts the authorities of the system; the others say more, and are enough without it."""
_KEYS = ("server", "timeout", "user", "secret_file", *TLS_KEYS)
_Command = TypeVar("_Command", bound=Callable[..., Any])
_USER, _SECRET, _SECRET_FILE = "REPUT_USER", "REPUT_SECRET", "REPUT_SECRET_FILE"


@dataclass(slots=True)
class Contexts:
    """The contexts by name, and the one that is used without --context."""

    current: str | None = None
    contexts: dict[str, dict[str, str]] = field(default_factory=dict)

    def get(self, name: str) -> dict[str, str]:
        """Return a context; an unknown name is refused with the nearest one."""
        found = self.contexts.get(name)
        if found is not None:
            return found
        from difflib import get_close_matches

        near = get_close_matches(name, self.contexts, n=1)
        raise CommandFailed(
            f"there is no context {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            reason=f"{contexts_path()} has " + (", ".join(sorted(self.contexts)) or "no contexts"),
            remedy=f"reput context add {name} --server HOST:PORT",
            code=ExitCode.USAGE,
        )


def chosen_server(
    servers: tuple[str, ...], context: str | None, environ: Mapping[str, str]
) -> tuple[str, Mapping[str, str]]:
    """Return the server to connect to, and the values of the context that it comes from, none without one.

    Args:
        servers: of --server; it takes precedence.
        context: of --context; then REPUT_SERVER, REPUT_CONTEXT, and the context in use.

    Raises:
        CommandFailed: the context does not exist, or the file of contexts is refused.
    """
    in_environment = environ.get("REPUT_SERVER")
    if not servers and context is None and in_environment:
        servers = (in_environment,)
    if servers and context is None:
        return ",".join(servers), {}
    known = load_contexts()
    name = context or environ.get("REPUT_CONTEXT") or known.current
    values = {} if name is None else known.get(name)
    return ",".join(servers) or values.get("server", DEFAULT_SERVER), values


def contexts_path() -> Path:
    """Return where the file is."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "reput" / "contexts.toml"


def load_contexts() -> Contexts:
    """Read the file; without one there are no contexts.

    Raises:
        CommandFailed: other users may read or write it, it is not TOML, or it has an unknown key.
    """
    place = contexts_path()
    try:
        with place.open("rb") as file:
            _check_rights(place, os.fstat(file.fileno()))
            text = file.read()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CommandFailed(f"cannot read {place}", reason=error.strerror, code=ExitCode.USAGE) from error
    import tomllib

    try:
        return _contexts(tomllib.loads(text.decode()))
    except ValueError as error:  # also of TOML and UTF-8
        raise CommandFailed(f"{place} is not valid", reason=str(error), code=ExitCode.USAGE) from error


def save_contexts(known: Contexts) -> None:
    """Write the file whole, readable by its owner only."""
    lines = [] if known.current is None else [f"current = {_quoted(known.current)}"]
    for name, values in sorted(known.contexts.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{key} = {_quoted(values[key])}" for key in _KEYS if key in values]
    place = contexts_path()
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write("\n".join(lines).lstrip("\n") + "\n")
            fresh.replace(place)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(f"cannot write {place}", reason=error.strerror) from error


def _check_rights(place: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        reason = f"it belongs to user id {status.st_uid}, and you are {os.geteuid()}"
    elif mode & 0o077:
        reason = f"its rights are {mode:04o}: other users may read or change where your commands connect"
    else:
        return
    raise CommandFailed(
        f"{place} is rejected", reason=reason, remedy=f"chmod 600 {place}", code=ExitCode.NOT_AUTHORISED
    )


def _contexts(tables: dict[str, Any]) -> Contexts:
    contexts = tables.pop("contexts", {})
    current = tables.pop("current", None)
    if tables:
        raise ValueError(f"unknown key {next(iter(tables))!r}; it has `current` and tables `[contexts.NAME]`")
    if current is not None and not isinstance(current, str):
        raise ValueError("`current` is the name of a context")
    from difflib import get_close_matches

    if not isinstance(contexts, dict):
        raise ValueError("`contexts` is a table of tables")
    for name, values in contexts.items():
        if not isinstance(values, dict):
            raise ValueError(f"context {name!r} is a table")
        for key, value in values.items():
            if key not in _KEYS:
                near = get_close_matches(key, _KEYS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(_KEYS)}"
                raise ValueError(f"context {name!r} has the unknown key {key!r}{hint}")
            if not isinstance(value, str):
                raise ValueError(f"{key} of context {name!r} is a text in quotes")
    return Contexts(current, contexts)


def _quoted(text: str) -> str:
    import json

    return json.dumps(text)  # a JSON string is a TOML string


def tls_of(given: Mapping[str, Any], context: Mapping[str, str]) -> TLS | None:
    """Return how to encrypt; None for not at all.

    Args:
        given: the options; they take precedence.
        context: the values of the context in use.

    Raises:
        click.UsageError: there is a key without a certificate.
    """
    values = {key: given.get(key) or context.get(key) or None for key in TLS_KEYS}
    if values["tls"] == "off":  # of a context
        values["tls"] = None
    if not any(values.values()):
        return None
    from reput_client.security import TLS

    try:
        return TLS(
            ca=values["tls_ca"], cert=values["tls_cert"], key=values["tls_key"], server_name=values["tls_server_name"]
        )
    except ValueError:
        raise click.UsageError("--tls-key is the key of --tls-cert, which is not given") from None


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
        raise CommandFailed("--secret-file has no user", remedy="--user NAME --secret-file FILE", code=ExitCode.USAGE)
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
