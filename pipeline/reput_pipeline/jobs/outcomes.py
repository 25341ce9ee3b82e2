"""How a job can end, and in which words it says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import click

from reput_client.errors import ConnectFailed, ConnectionLost, RequestTimeout
from reput_pipeline.errors import DamagedStore, NoSuchTopic, NotAnArchive, NotAStore
from reput_pipeline.java import JavaMissing
from reput_pipeline.known_options import OptionError
from reput_protocol.errors import NotFound, PermissionDenied, TopicNotFound

ARGUMENT_OF: Final = {
    "nameServer": "--server",
    "path": "--path",
    "subscribe": "--topic",
    "subscribePattern": "--topics",
}
"""The arguments that stand for options of the source; the others are given with --option."""
_OPTION_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(ARGUMENT_OF, key=len, reverse=True))})\b")
_REMOTE = re.compile(r"^(?:[\w.]*\.)?(\w+): (.+)$")
_TEXT_MAX: Final = 2000


class Exit(IntEnum):
    """Exit codes, those of every `reput` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    NOT_AUTHORISED = 4
    NOT_FOUND = 5
    PARTIAL = 6
    FINDINGS = 7
    INTERRUPTED = 130


STATUS: Final = {
    Exit.DONE: "done",
    Exit.FAILED: "failed",
    Exit.USAGE: "usage",
    Exit.CANNOT_CONNECT: "cannot_connect",
    Exit.NOT_AUTHORISED: "not_authorised",
    Exit.NOT_FOUND: "not_found",
    Exit.PARTIAL: "partial",
    Exit.FINDINGS: "findings",
    Exit.INTERRUPTED: "interrupted",
}
"""What the last line calls each exit code."""


@dataclass(frozen=True)
class Outcome:
    """What a job found or did: the members of the last line of its output."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    code: Exit = Exit.DONE


class ArgumentError(ValueError):
    """An argument is wrong. Nothing was read or written."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(f"{argument}: {reason}")
        self.argument = argument


class JobFailed(Exception):
    """A job cannot go on, in its own words."""

    def __init__(self, what: str, *, code: Exit = Exit.FAILED) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class Failure:
    """What went wrong, for the person and for the last line."""

    code: Exit
    text: str
    argument: str | None = None


_CODES: Final[Mapping[str, Exit]] = {
    "OptionError": Exit.USAGE,
    "SchemaError": Exit.USAGE,
    "NotAStore": Exit.NOT_FOUND,
    "NoSuchTopic": Exit.NOT_FOUND,
    "DamagedStore": Exit.FINDINGS,
    "DataLost": Exit.FAILED,
    "TooManyPartitions": Exit.USAGE,
    "ConnectFailed": Exit.CANNOT_CONNECT,
    "ConnectionLost": Exit.CANNOT_CONNECT,
    "RequestTimeout": Exit.PARTIAL,
}
"""Errors that come back from Spark's planner and workers as text, by their class."""


def failure_of(error: BaseException) -> Failure:
    """Say what an error means: its exit code, its words, and the argument that is to blame if one is."""
    if isinstance(error, OptionError):
        argument = ARGUMENT_OF.get(error.option, f"--option {error.option}")
        return Failure(Exit.USAGE, f"{argument}: {_OPTION_NAMES.sub(_as_argument, error.reason)}", argument)
    if isinstance(error, ArgumentError):
        return Failure(Exit.USAGE, str(error), error.argument)
    if isinstance(error, click.ClickException):
        return Failure(Exit.USAGE, error.format_message(), _argument_of(error))
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Failure(Exit.INTERRUPTED, "interrupted")
    if isinstance(error, JobFailed):
        return Failure(error.code, str(error))
    for kinds, code in (
        ((NotAStore, NotAnArchive, NoSuchTopic, NotFound, TopicNotFound), Exit.NOT_FOUND),
        (DamagedStore, Exit.FINDINGS),
        ((ConnectFailed, ConnectionLost), Exit.CANNOT_CONNECT),
        (RequestTimeout, Exit.PARTIAL),
        (PermissionDenied, Exit.NOT_AUTHORISED),
        (JavaMissing, Exit.FAILED),
    ):
        if isinstance(error, kinds):
            return Failure(code, str(error))
    return _remote_failure(error)


def _as_argument(found: re.Match[str]) -> str:
    return ARGUMENT_OF[found[0]]


def _argument_of(error: click.ClickException) -> str | None:
    name = getattr(error, "option_name", None)  # NoSuchOption, BadOptionUsage
    if isinstance(name, str):
        return name
    hint = getattr(error, "param_hint", None)
    if isinstance(hint, str):
        return hint
    param = getattr(error, "param", None)
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    extra = re.search(r"unexpected extra arguments? \((\S+)", error.format_message())
    if extra is not None:
        return extra[1].removesuffix(")")
    return param.human_readable_name if isinstance(param, click.Parameter) else None


def _remote_failure(error: BaseException) -> Failure:
    """Find the words of one of our errors in what Spark makes of it: a trace of two languages."""
    text = str(error)
    for line in reversed(text.splitlines()):
        found = _REMOTE.match(line.strip())
        if found and found[1] in _CODES:
            return Failure(_CODES[found[1]], found[2])
    if type(error).__name__ in ("PythonException", "Py4JJavaError", "StreamingQueryException"):
        lines = [line.strip() for line in text.splitlines()]
        ends = [line for line in lines if re.match(r"^[\w.]*(?:Error|Exception|\w+Failed)\b: ", line)]
        python = [line for line in ends if not line.startswith(("org.apache.", "java."))]
        return Failure(Exit.FAILED, (python or ends or lines or [type(error).__name__])[-1][:_TEXT_MAX])
    return Failure(Exit.FAILED, (text or type(error).__name__)[:_TEXT_MAX])
