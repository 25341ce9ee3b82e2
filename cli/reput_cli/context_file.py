"""Which server a command connects to, and the file of contexts, which are named connection profiles.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reput_cli.failures import CommandFailed
from reput_protocol.exit_codes import ExitCode

DEFAULT_SERVER = "127.0.0.1:10911"
TLS_KEYS = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_server_name")
"""`tls = "on"` trusts the authorities of the system; the others say more, and are enough without it."""
_KEYS = ("server", "timeout", "user", "secret_file", *TLS_KEYS)


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
            reason=f"{path()} has " + (", ".join(sorted(self.contexts)) or "no contexts"),
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
    known = load()
    name = context or environ.get("REPUT_CONTEXT") or known.current
    values = {} if name is None else known.get(name)
    return ",".join(servers) or values.get("server", DEFAULT_SERVER), values


def path() -> Path:
    """Return where the file is."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "reput" / "contexts.toml"


def load() -> Contexts:
    """Read the file; without one there are no contexts.

    Raises:
        CommandFailed: other users may read or write it, it is not TOML, or it has an unknown key.
    """
    place = path()
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


def save(known: Contexts) -> None:
    """Write the file whole, readable by its owner only."""
    lines = [] if known.current is None else [f"current = {_quoted(known.current)}"]
    for name, values in sorted(known.contexts.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{key} = {_quoted(values[key])}" for key in _KEYS if key in values]
    place = path()
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
