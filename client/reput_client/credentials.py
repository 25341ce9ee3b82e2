"""The user whose requests a client sends: given by the application, or found in the environment.

`REPUT_USER` names the user, `REPUT_SECRET_FILE` a file with its secret; `REPUT_SECRET` holds the secret itself.
`REPUT_ROCKETMQ_SIGNATURES` is `Credentials.rocketmq_signatures`, also of users whose secret is in a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from reput_protocol.wire.signature import Credentials

__all__ = ["Credentials", "credentials_of", "from_environment"]

USER: Final = "REPUT_USER"
SECRET: Final = "REPUT_SECRET"
SECRET_FILE: Final = "REPUT_SECRET_FILE"
ROCKETMQ_SIGNATURES: Final = "REPUT_ROCKETMQ_SIGNATURES"


def credentials_of(
    user: str, secret_file: str | os.PathLike[str], environ: Mapping[str, str] = os.environ
) -> Credentials:
    """Return a user with the secret in a file, whose trailing newline is left out.

    Raises:
        ValueError: the file cannot be read, is empty or not text, or the user is empty. The text does not show its
            content. Or `REPUT_ROCKETMQ_SIGNATURES` has another value than true or false.
    """
    try:
        secret = Path(secret_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"the secret of user {user!r} cannot be read from {secret_file}: {reason}") from None
    if not secret:
        raise ValueError(f"{secret_file}, which is to have the secret of user {user!r}, is empty")
    return Credentials(user, secret, rocketmq_signatures=_rocketmq_signatures(environ))


def from_environment(environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return the user that the environment names, or None.

    Raises:
        ValueError: there is a user without a secret, a secret without a user, or a variable or the file cannot be used.
    """
    user, secret, file = (environ.get(name, "") for name in (USER, SECRET, SECRET_FILE))
    if not user and not secret and not file:
        return None
    if not user:
        raise ValueError(
            f"{SECRET if secret else SECRET_FILE} is set, but {USER} is not; set both or neither"
        )
    if secret and file:
        raise ValueError(f"{SECRET} and {SECRET_FILE} are both set; set one of them")
    if secret:
        return Credentials(user, secret, rocketmq_signatures=_rocketmq_signatures(environ))
    if not file:
        raise ValueError(f"{USER} is set, but no secret; set {SECRET_FILE}, or {SECRET}")
    return credentials_of(user, file, environ)


def _rocketmq_signatures(environ: Mapping[str, str]) -> bool:
    value = environ.get(ROCKETMQ_SIGNATURES) or "true"
    if value not in ("true", "false"):
        raise ValueError(f"{ROCKETMQ_SIGNATURES} is {value!r}; set it to true or false")
    return value == "true"
