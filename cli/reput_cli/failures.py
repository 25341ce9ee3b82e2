"""Turn an exception into an exit code and at most three lines: what failed, why, and what to do.

A traceback follows with -vv, and after an unexpected error of a command that has no option -v.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import click

from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable, printable_lines

if TYPE_CHECKING:
    from reput_client.errors import SendOutcomeUnknown
    from reput_protocol.errors import BrokerError


@dataclass
class Verbosity:
    """How often the command line has -v; None: its command has no such option."""

    level: int | None = None


class CommandFailed(Exception):
    """A failure as the user sees it, with its exit code.

    Attributes:
        is_expected: whether it is a failure that the command knows; another one is a defect.
    """

    def __init__(
        self,
        what: str,
        *,
        reason: str | None = None,
        remedy: str | None = None,
        code: ExitCode = ExitCode.FAILED,
        is_expected: bool = True,
    ) -> None:
        super().__init__(what)
        self.is_expected = is_expected
        self.what, self.reason, self.remedy, self.code = what, reason, remedy, code


@contextlib.contextmanager
def not_found_as(
    kind: type[Exception], what: str, *, remedy: str, reason: str | None = None, says_why: bool = False
) -> Iterator[None]:
    """Fail with `what` if the block raises an error of a kind; with `says_why` its text is the reason."""
    try:
        yield
    except kind as error:
        why = str(error) if says_why else reason
        raise CommandFailed(what, reason=why, remedy=remedy, code=ExitCode.NOT_FOUND) from error


def report_failure(error: BaseException, verbosity: int | None = None) -> int:
    """Print `error` on stderr and return its exit code.

    Args:
        verbosity: see `Verbosity`.
    """
    if isinstance(error, BaseExceptionGroup):
        from reput_protocol.errors import leaves

        # Of tasks that failed together, report the first.
        found = leaves(error)
        pipes = [leaf for leaf in found if isinstance(leaf, BrokenPipeError)]
        return report_failure((pipes or found)[0], verbosity)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.Abort):
        print(file=sys.stderr)  # ends the line of the unanswered prompt
        if isinstance(error.__context__, EOFError) and not sys.stdin.isatty():
            print("error: there is no terminal to ask for confirmation\n  try:    --yes", file=sys.stderr)
            return ExitCode.USAGE
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show(sys.stderr)
        return ExitCode.USAGE
    if isinstance(error, click.ClickException):
        _print_refusal(error)
        return ExitCode.USAGE
    if isinstance(error, BrokenPipeError):
        _close_stdout()
        return ExitCode.DONE
    failure = worded(error)
    print(f"error: {printable_lines(failure.what)}", file=sys.stderr)
    if failure.reason:
        lines = [line.removeprefix("  ") for line in printable_lines(failure.reason).splitlines()]
        # Aligned: the second line of a syntax error points into the first.
        print("  reason: " + "\n          ".join(lines), file=sys.stderr)
    remedy = failure.remedy
    if not failure.is_expected and verbosity is not None and verbosity < 2:
        remedy = "the same command with -vv shows where"
    if remedy:
        print(f"  try:    {printable(remedy)}", file=sys.stderr)
    has_traceback = verbosity >= 2 if verbosity is not None else not failure.is_expected
    if has_traceback:
        print(printable_lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    return failure.code


def _print_refusal(error: click.ClickException) -> None:
    """Print why a line is refused, the line that was probably meant, and where the help is."""
    print(f"error: {printable_lines(error.format_message())}", file=sys.stderr)
    for name, label in (("remedy", "try:    "), ("example", "example: "), ("help", "help:   ")):
        text = getattr(error, name, None)
        if text:
            print(f"  {label}{printable(text)}", file=sys.stderr)


def _close_stdout() -> None:
    """Close stdout, so that the interpreter does not report the broken pipe at exit."""
    with contextlib.suppress(OSError):
        sys.stdout.close()


def _topic_remedy(text: str) -> str:
    """Return the remedy for a missing topic; system topics are created by the broker only."""
    from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

    name = re.search(r"topic '([^']+)'", text)
    if name is None:
        return "reput topic list"
    if is_system_topic(name[1]) or name[1].startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return "reput topic list --all"
    return f"reput topic list, or reput topic create {name[1]}"


def _outcome_remedy(error: SendOutcomeUnknown) -> str:
    """Return how to see whether messages were stored; those of one send are, or are not, together."""
    ids = error.message_ids
    look = f"message find {error.topic} {ids[0]}" if ids else f"consume {error.topic} -o -10"
    return f"reput {look} to see whether it was stored"


def _partly(error: BaseException) -> ExitCode:
    """Return the exit code of a change that some brokers have not made."""
    return ExitCode.PARTIAL if getattr(error, "done", None) else ExitCode.FAILED


def _user_remedy(error: BrokerError) -> str | None:
    """Return how to name a user, if none was proven; a refusal of a right has its own remedy."""
    from reput_protocol.errors import ErrorCode

    if error.error is not ErrorCode.UNAUTHENTICATED:
        return None
    return "--user NAME --secret-file FILE, or REPUT_USER and REPUT_SECRET_FILE"


def worded(error: BaseException) -> CommandFailed:
    """Return any error as a `CommandFailed`."""
    if isinstance(error, CommandFailed):
        return error
    from reput_client import errors as client_errors
    from reput_protocol import errors as protocol_errors

    table: list[tuple[type[BaseException], ExitCode, Callable[[], str | None]]] = [
        # Before its base class; its text has the remedy.
        (client_errors.TlsRefused, ExitCode.CANNOT_CONNECT, lambda: None),
        (client_errors.ConnectFailed, ExitCode.CANNOT_CONNECT, lambda: "reput serve, or another --server HOST:PORT"),
        (
            client_errors.BrokerNotFound,
            ExitCode.CANNOT_CONNECT,
            lambda: "reput topic route TOPIC, and the `advertise` option of the broker",
        ),
        (client_errors.ConnectionLost, ExitCode.CANNOT_CONNECT, lambda: "reput health, then the same command again"),
        (
            client_errors.SendOutcomeUnknown,
            ExitCode.TIMEOUT,
            lambda: _outcome_remedy(cast("client_errors.SendOutcomeUnknown", error)),
        ),
        (
            client_errors.BrokersFailed,
            _partly(error),
            lambda: "the same command again once they run: reput cluster status",
        ),
        (client_errors.AckNotReached, ExitCode.TIMEOUT, lambda: "reput broker status"),
        (client_errors.RegistryUnavailable, ExitCode.CANNOT_CONNECT, lambda: None),  # its text has the remedy
        (client_errors.RequestTimeout, ExitCode.TIMEOUT, lambda: "a longer --timeout"),
        (
            client_errors.ReplyTimeout,
            ExitCode.TIMEOUT,
            lambda: "a longer --timeout, or a consumer that replies: reput group list",
        ),
        (protocol_errors.TopicNotFound, ExitCode.NOT_FOUND, lambda: _topic_remedy(str(error))),
        (protocol_errors.GroupNotFound, ExitCode.NOT_FOUND, lambda: "reput group list, or reput group create NAME"),
        (
            protocol_errors.RequestNotSupported,
            ExitCode.FAILED,
            lambda: "--server of a Reput broker, or --broker NAME: reput cluster status lists them",
        ),
        (protocol_errors.NotFound, ExitCode.NOT_FOUND, lambda: None),
        (
            protocol_errors.PermissionDenied,
            ExitCode.NOT_AUTHORISED,
            lambda: _user_remedy(cast("protocol_errors.BrokerError", error)),
        ),
        (protocol_errors.InvalidMessage, ExitCode.USAGE, lambda: None),
        (protocol_errors.FilterSyntaxError, ExitCode.USAGE, lambda: None),
        (protocol_errors.FilterRefused, ExitCode.USAGE, lambda: None),
    ]
    for kind, code, remedy in table:
        if isinstance(error, kind):
            what, _, reason = str(error).partition("\n")
            return CommandFailed(what, reason=reason or None, remedy=remedy(), code=code)
    if isinstance(error, protocol_errors.ReputError):
        return CommandFailed(str(error))
    if isinstance(error, OSError):
        return CommandFailed(str(error))
    return CommandFailed(f"{type(error).__name__}: {error}", is_expected=False)
