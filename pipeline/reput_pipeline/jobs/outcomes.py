"""Outcomes of jobs: errors, exit codes and texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click

from reput_client.errors import (
    BrokerNotFound,
    BucketRefused,
    BucketUnavailable,
    ConnectFailed,
    ConnectionLost,
    NotAStore,
    NotMaster,
    RequestTimeout,
    TlsRefused,
)
from reput_pipeline.spark.errors import DamagedStore, NoSuchTopic, NotAnArchive, cause_in
from reput_pipeline.spark.java import JavaMissing
from reput_pipeline.spark.option_reader import OptionError, with_tls_options
from reput_protocol.errors import GroupNotFound, NotFound, PermissionDenied, TopicNotFound
from reput_protocol.exit_codes import ExitCode

ARGUMENT_OF: Final = {
    "nameServer": "--server",
    "path": "--path",
    "subscribe": "--topic",
    "subscribePattern": "--topics",
}
"""Options of the source that are arguments of jobs; others take --option."""
_OPTION_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(ARGUMENT_OF, key=len, reverse=True))})\b")
_TEXT_MAX: Final = 2000


STATUS: Final = {code: code.name.lower() for code in ExitCode} | {ExitCode.DAMAGE: "findings"}
"""The `status` of each exit code in the last line."""


@dataclass(frozen=True)
class Outcome:
    """The exit code of a job, and members of its last line."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    code: ExitCode = ExitCode.DONE


class ArgumentError(ValueError):
    """An argument is wrong. Nothing was read or written."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(f"{argument}: {reason}")
        self.argument = argument


class JobFailed(Exception):
    """A job cannot continue; the text is for the user."""

    def __init__(self, what: str, *, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class Failure:
    """A failure as it is printed: exit code, text, and the wrong argument, if any."""

    code: ExitCode
    text: str
    argument: str | None = None


_CODES: Final[Mapping[str, ExitCode]] = {
    "OptionError": ExitCode.USAGE,
    "SchemaError": ExitCode.USAGE,
    "NotAStore": ExitCode.NOT_FOUND,
    "NoSuchTopic": ExitCode.NOT_FOUND,
    "DamagedStore": ExitCode.DAMAGE,
    "TlsRefused": ExitCode.CANNOT_CONNECT,
    "BrokerNotFound": ExitCode.CANNOT_CONNECT,
    "BucketRefused": ExitCode.NOT_AUTHORISED,
    "BucketUnavailable": ExitCode.CANNOT_CONNECT,
    "ConnectFailed": ExitCode.CANNOT_CONNECT,
    "ConnectionLost": ExitCode.CANNOT_CONNECT,
    "NotMaster": ExitCode.CANNOT_CONNECT,
    "PermissionDenied": ExitCode.NOT_AUTHORISED,
    "RequestTimeout": ExitCode.TIMEOUT,
}
"""Exit codes by class name, for errors that Spark sends back as text; others have FAILED."""


def failure_of(error: BaseException) -> Failure:
    """Return the exit code and text of an error, and the wrong argument, if any."""
    if isinstance(error, OptionError):
        argument = ARGUMENT_OF.get(error.option, f"--option {error.option}")
        return Failure(
            ExitCode.USAGE, f"{argument}: {_OPTION_NAMES.sub(_as_argument, error.reason)}", argument
        )
    if isinstance(error, ArgumentError):
        return Failure(ExitCode.USAGE, str(error), error.argument)
    if isinstance(error, click.ClickException):
        return Failure(ExitCode.USAGE, error.format_message(), _argument_of(error))
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Failure(ExitCode.INTERRUPTED, "interrupted")
    if isinstance(error, JobFailed):
        return Failure(error.code, str(error))
    if isinstance(error, TlsRefused):
        error = with_tls_options(error)
    for kinds, code in (
        ((NotAStore, NotAnArchive, NoSuchTopic, NotFound, TopicNotFound, GroupNotFound), ExitCode.NOT_FOUND),
        (DamagedStore, ExitCode.DAMAGE),
        (
            (BrokerNotFound, BucketUnavailable, ConnectFailed, ConnectionLost, NotMaster),
            ExitCode.CANNOT_CONNECT,
        ),
        (RequestTimeout, ExitCode.TIMEOUT),
        ((BucketRefused, PermissionDenied), ExitCode.NOT_AUTHORISED),
        (JavaMissing, ExitCode.FAILED),
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
    """Find the text of one of our errors in Spark's, which has a Java and a Python traceback."""
    cause = cause_in(error)
    if cause is not None:
        return Failure(_CODES.get(cause.name, ExitCode.FAILED), cause.text[:_TEXT_MAX])
    text = str(error)
    if type(error).__name__ in ("PythonException", "Py4JJavaError", "StreamingQueryException"):
        lines = [line.strip() for line in text.splitlines()]
        ends = [line for line in lines if re.match(r"^[\w.]*(?:Error|Exception|\w+Failed)\b: ", line)]
        python = [line for line in ends if not line.startswith(("org.apache.", "java."))]
        return Failure(ExitCode.FAILED, (python or ends or lines or [type(error).__name__])[-1][:_TEXT_MAX])
    return Failure(ExitCode.FAILED, (text or type(error).__name__)[:_TEXT_MAX])
