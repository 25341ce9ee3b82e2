"""`reput dlq replay`: send dead letters back to the topics that they came from.

The client sends each as a new message (`Admin.replay_dead_letter`), and finds what an earlier replay has sent, of
another selection or before it was killed. The progress is committed under a system group after the broker has flushed a
batch.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from shlex import quote
from types import FrameType
from typing import Any

import click

from reput_cli.completion import GROUP, TOPIC
from reput_cli.dlq.letters import chosen_by, filter_option, letters_of, read, within, without_origin
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_cli.positions import Position, RangeType
from reput_client.admin_dead_letters import DeadLetter, Replayed, replay_group
from reput_client.blocking import Admin
from reput_protocol.errors import TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import check_send_topic
from reput_protocol.printable import counted

_BATCH = 32
_BATCH_S = 0.25
"""With --rate, seconds of sending per batch, so that progress is committed several times a second."""


@dataclass(slots=True)
class Outcome:
    """Numbers of dead letters."""

    sent: Counter[str] = field(default_factory=Counter)
    """By topic."""
    passed_over: int = 0
    """Not matched by the filter."""
    sent_before: int = 0
    """Not sent: an earlier replay has."""
    without_origin: int = 0
    """Not sent: no origin topic."""
    interrupted: bool = False


_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_SLEEP_S = 0.1
"""Longest sleep between two checks for Ctrl-C."""


class RateType(click.ParamType[float]):
    """A rate such as `100/s`, `30/m` or `1000/h`; the value is in messages per second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return messages per second."""
        if isinstance(value, float):
            return value
        match = _RATE.fullmatch(str(value))
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is not a rate: write 100/s, 30/m or 1000/h", param, ctx)
        return float(match[1]) / _SECONDS[match[2]]


class Pace:
    """Spaces messages evenly at a rate per second. After a delay, at most one message is sent early to catch up."""

    def __init__(self, rate: float | None) -> None:
        self._gap_s = 0.0 if rate is None else 1.0 / rate
        self._next_at: float | None = None

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Sleep until the next message may be sent, or `is_over` returns true."""
        if self._next_at is None:
            self._next_at = time.monotonic()
        while (ahead_s := self._next_at - time.monotonic()) > 0 and not is_over():
            time.sleep(min(ahead_s, _SLEEP_S))
        self._next_at = max(self._next_at, time.monotonic() - self._gap_s) + self._gap_s


@click.command()
@click.argument("group", type=GROUP)
@click.option("--rate", type=RateType(), help="Highest rate, such as 100/s or 30/m.  [default: unlimited]")
@filter_option
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many.")
@click.option(
    "-o", "--from", "span", type=RangeType(), metavar="START[:END]",
    help="earliest, an offset, -N (of each broker), @TIME, or a range.  [default: where the same replay stopped]",
)  # fmt: skip
@click.option(
    "--to", "target", type=TOPIC, help="Send them to this topic, not to the ones that they came from."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be sent.")
@shared_options
def replay(
    settings: Settings,
    group: str,
    rate: float | None,
    expression: str | None,
    count: int | None,
    span: tuple[Position, Position | None] | None,
    target: str | None,
    dry_run: bool,
) -> int:
    """Send the dead letters of GROUP back to the topics that they came from, as new messages.

    Asks for the group's name unless --yes is given. The dead letters stay in their topic. Progress is kept for each
    filter and target: an interrupted replay continues when the same command is given again. What another replay has
    sent to the same topic is left out, except with --from. Each copy has the property DLQ_ORIGIN_MESSAGE_ID.
    """
    if target is not None:
        check_send_topic(target)
    work = _Replay(settings, group, rate, expression, count, target, dry_run, sends_again=span is not None)
    with settings.admin() as admin:
        outcome = work.run(admin, span)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return ExitCode.PARTIAL if outcome.without_origin else ExitCode.DONE


class _Replay:
    def __init__(
        self,
        settings: Settings,
        group: str,
        rate: float | None,
        expression: str | None,
        count: int | None,
        target: str | None,
        dry_run: bool,
        *,
        sends_again: bool,
    ) -> None:
        self._yes = settings.yes or dry_run
        self._sends_again = sends_again
        self._printer = Printer(settings)
        self._group = group
        self._pace = Pace(rate)
        self._batch = _BATCH if rate is None else max(1, min(_BATCH, int(rate * _BATCH_S)))
        self._expression = expression
        self._chosen = chosen_by(expression)
        self._left = count
        self._target = target
        self._dry_run = dry_run
        self._progress_group = replay_group(expression, target)
        self.outcome = Outcome()

    def run(self, admin: Admin, span: tuple[Position, Position | None] | None) -> Outcome:
        """Replay and return the outcome."""
        letters = letters_of(admin, self._group)
        if span is not None:
            letters = within(admin, letters, *span)
        else:
            before = len(letters)
            letters = letters.after(admin.replay_progress(letters, self._progress_group))
            if len(letters) < before:
                number = counted(before - len(letters), "dead letter was", "dead letters were")
                self._printer.note(
                    f"{number} replayed or skipped before; -o earliest starts at the beginning"
                )
        self._ask(len(letters))
        done: dict[str, int] = {}  # by broker: what is not committed yet
        seen = 0
        with _until_interrupted(self.outcome), self._printer.counting("dead letters") as add:
            try:
                for letter in read(admin, letters):
                    if not self._replay(admin, letter):
                        break
                    add(1)
                    done[letter.message.broker_name] = letter.message.queue_offset + 1
                    letters = letters.after(done)
                    seen += 1
                    if seen % self._batch == 0:
                        self._commit(admin, letters.topic, done)
                    if self._left == 0 or self.outcome.interrupted:
                        break
            finally:
                self._commit(admin, letters.topic, done)
        self._report(len(letters))
        return self.outcome

    def _ask(self, number: int) -> None:
        """Have the user confirm; messages that were sent cannot be taken back."""
        if not number or self._yes:
            return
        which = " that match" if self._expression else ""
        to = f"topic {self._target}" if self._target else "the topics that they came from"
        self._printer.note(
            f"up to {counted(number, 'dead letter')} of {self._group}{which} will be sent to {to}"
        )
        if click.prompt("type the group's name to send them", err=True) != self._group:
            raise CommandFailed(
                f"the dead letters of {self._group} were not sent", reason="the name was not typed"
            )

    def _commit(self, admin: Admin, topic: str, done: dict[str, int]) -> None:
        while done:
            name, offset = done.popitem()
            if not self._dry_run:
                admin.commit_offset(self._progress_group, topic, 0, offset, broker_name=name)

    def _replay(self, admin: Admin, letter: DeadLetter) -> bool:
        """Send or skip one; return False if Ctrl-C came first."""
        outcome = self.outcome
        if not self._chosen(letter):
            outcome.passed_over += 1
            return True
        try:
            replayed, topic = admin.replay_dead_letter(
                letter, self._target, sends_again=self._sends_again, dry_run=True
            )
            if replayed is Replayed.SENT and not self._dry_run:
                self._pace.wait(lambda: outcome.interrupted)
                if outcome.interrupted:
                    return False
                admin.replay_dead_letter(letter, self._target, sends_again=True)
        except TopicNotFound as error:
            topic = self._target or letter.origin.topic or ""
            raise CommandFailed(
                f"topic {topic}, from which dead letters of {self._group} came, no longer exists",
                remedy=f"reput topic create {topic}, or --to ANOTHER_TOPIC",
                code=ExitCode.NOT_FOUND,
            ) from error
        if replayed is Replayed.WITHOUT_ORIGIN:
            outcome.without_origin += 1
        elif replayed is Replayed.SENT_BEFORE:
            outcome.sent_before += 1
        else:
            outcome.sent[topic] += 1
            if self._left is not None:
                self._left -= 1
        return True

    def _report(self, left: int) -> None:
        outcome, printer = self.outcome, self._printer
        verb = "would be sent" if self._dry_run else "sent"
        for topic, number in sorted(outcome.sent.items()):
            printer.note(f"{counted(number, 'dead letter')} of {self._group} {verb} to {topic}")
        if not outcome.sent:
            printer.note(f"no dead letter of {self._group} {verb}")
        if outcome.passed_over:
            printer.note(f"{outcome.passed_over} skipped by the filter")
        if outcome.sent_before:
            were = counted(outcome.sent_before, "was", "were")
            printer.note(f"{were} sent by another replay before; -o earliest sends them again")
        if outcome.without_origin:
            printer.note(
                f"{counted(outcome.without_origin, 'was', 'were')} left without a topic to return to; try: "
                f"reput dlq replay {self._group} --filter {quote(without_origin(self._expression))} --to TOPIC"
            )
        if left and (outcome.interrupted or self._left == 0):
            printer.note(f"{left} not read yet: the same command continues there")


@contextmanager
def _until_interrupted(outcome: Outcome) -> Iterator[None]:
    """Record Ctrl-C instead of raising: the current message is still sent and the progress committed."""

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        outcome.interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
