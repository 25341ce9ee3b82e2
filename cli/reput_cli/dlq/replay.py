"""`reput dlq replay`: have the brokers send dead letters back to the topics that they came from.

A broker sends each once and knows which it has sent (`Admin.replay_dead_letters`), so a replay that was interrupted is
simply started again.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from shlex import quote
from types import FrameType
from typing import Any

import click

from reput_cli.completion import GROUP, TOPIC
from reput_cli.dlq.letters import (
    Replayed,
    chosen_by,
    filter_option,
    letters_of,
    read_queue,
    within,
    without_origin,
)
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_cli.positions import RangeType
from reput_cli.preview import confirm, dry_run_option
from reput_client.admin.undelivered import DeadLetters
from reput_client.blocking import Admin
from reput_client.positions import Position
from reput_protocol.commands.dead_letters import LetterPlace, ReplayedLetter, ReplayOutcome
from reput_protocol.errors import TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import check_send_topic
from reput_protocol.printable import counted

_BATCH = 128
_BATCH_S = 0.1
"""With --rate, seconds of sending per batch."""
_SENT = ReplayOutcome.SENT
_STAY = {
    ReplayOutcome.NO_TOPIC: "since topic {} does not exist any more; reput topic create {}, or --to ANOTHER_TOPIC",
    ReplayOutcome.NO_PERMISSION: "since the user may not send to topic {}: reput acl allow USER write topic:{}",
    ReplayOutcome.REFUSED: "since topic {} takes no messages: reput topic alter {} --permission rw",
    ReplayOutcome.DAMAGED: "since their records are damaged: reput store verify",
}
"""Why letters stay that another run of the command may send."""


@dataclass(slots=True)
class Outcome:
    """Numbers of dead letters."""

    sent: Counter[str] = field(default_factory=Counter)
    """By topic."""
    passed_over: int = 0
    """Not matched by the filter."""
    of: Counter[ReplayOutcome] = field(default_factory=Counter)
    stay: Counter[tuple[ReplayOutcome, str]] = field(default_factory=Counter)
    """Not sent, of those in `_STAY`, with the topic that they came from."""
    looked_at: int = 0
    interrupted: bool = False

    def add(self, letter: ReplayedLetter) -> None:
        """Count the outcome for one letter."""
        self.of[letter.outcome] += 1
        if letter.outcome is _SENT:
            self.sent[letter.topic or ""] += 1
        elif letter.outcome in _STAY:
            self.stay[letter.outcome, letter.topic or ""] += 1

    @property
    def is_whole(self) -> bool:
        """Whether all letters that were looked at are sent now, or gone."""
        return not self.stay and not self.of[ReplayOutcome.UNPROVEN]


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
    "-o", "--from", "span", type=RangeType(), default="earliest", show_default=True, metavar="START[:END]",
    help="earliest, an offset, -N (of each broker), @TIME, or a range.",
)  # fmt: skip
@click.option("--to", "target", type=TOPIC, help="Send them to this topic instead of their original topics.")
@click.option("--again", is_flag=True, help="Also send those that were replayed before.")
@dry_run_option
@shared_options
def replay(
    settings: Settings,
    group: str,
    rate: float | None,
    expression: str | None,
    count: int | None,
    span: tuple[Position, Position | None],
    target: str | None,
    again: bool,
    dry_run: bool,
) -> int:
    """Send the dead letters of GROUP as new messages to their original topics.

    Asks for the group's name unless --yes is given. The dead letters stay in their topic. Each is sent once, to
    whichever topic: those that this command, the console or the Spark job have sent before are left out, except with
    --again. Each copy has the property DLQ_ORIGIN_MESSAGE_ID.
    """
    if target is not None:
        check_send_topic(target)
    work = _Replay(settings, group, rate, expression, count, target, again=again, dry_run=dry_run)
    with settings.admin() as admin:
        outcome = work.run(admin, span)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return ExitCode.DONE if outcome.is_whole else ExitCode.PARTIAL


class _Replay:
    def __init__(
        self,
        settings: Settings,
        group: str,
        rate: float | None,
        expression: str | None,
        count: int | None,
        target: str | None,
        *,
        again: bool,
        dry_run: bool,
    ) -> None:
        self._settings = settings
        self._printer = Printer(settings)
        self._group = group
        self._pace = None if rate is None else Pace(rate)
        self._batch = _BATCH if rate is None else max(1, min(_BATCH, int(rate * _BATCH_S)))
        self._expression = expression
        self._chosen = chosen_by(expression)
        self._left = count
        self._target = target
        self._again = again
        self._dry_run = dry_run
        self.outcome = Outcome()

    def run(self, admin: Admin, span: tuple[Position, Position | None]) -> Outcome:
        """Replay and return the outcome."""
        outcome = self.outcome
        all_letters = letters_of(admin, self._group)
        letters = within(admin, all_letters, *span)
        self._ask(admin, letters, all_letters)
        with _until_interrupted(outcome), self._printer.counting("dead letters") as add:
            for name, (start, end) in letters.spans.items():
                places = self._places(admin, letters.topic, name, start, end)
                while not self._is_over and (some := [*islice(places, self._room)]):
                    for letter in self._send(admin, name, some):
                        outcome.add(letter)
                        add(1)
        self._report(len(letters) - outcome.looked_at)
        return outcome

    def _ask(self, admin: Admin, letters: DeadLetters, all_letters: DeadLetters) -> None:
        """Have the user confirm; messages that were sent cannot be taken back."""
        number = len(letters)
        if self._settings.yes or self._dry_run or not number:
            return
        replayed = 0 if self._again else Replayed(admin, self._group, self._printer).total(all_letters) or 0
        if replayed >= len(all_letters):
            return
        which = " that match" if self._expression else ""
        to = f"topic {self._target}" if self._target else "the topics that they came from"
        was = f"; {replayed} of the group's were replayed before" if replayed else ""
        self._printer.note(
            f"up to {counted(number, 'dead letter')} of {self._group}{which} will be sent to {to}{was}"
        )
        confirm(
            self._settings,
            self._group,
            "type the group's name to send them",
            f"the dead letters of {self._group} were not sent",
            needs_terminal=True,
        )

    @property
    def _is_over(self) -> bool:
        return self.outcome.interrupted or self._left == 0

    @property
    def _room(self) -> int:
        """How many letters may be sent together now."""
        return self._batch if self._left is None else min(self._batch, self._left)

    def _places(self, admin: Admin, topic: str, name: str, start: int, end: int) -> Iterator[LetterPlace]:
        """Yield the places of a broker's letters, of those that the filter chooses."""
        if self._expression is None:
            for offset in range(start, end):
                self.outcome.looked_at += 1
                yield LetterPlace(offset)
            return
        for letter in read_queue(admin, topic, name, start, end):
            self.outcome.looked_at += 1
            if self._chosen(letter):
                yield letter.place
            else:
                self.outcome.passed_over += 1

    def _send(self, admin: Admin, name: str, places: list[LetterPlace]) -> list[ReplayedLetter]:
        """Send some letters of a broker, and return what became of them; none that Ctrl-C has left out."""
        if self._dry_run or self._pace is None:
            return self._replay(admin, name, places, dry_run=self._dry_run)
        # Only those that are sent count for the rate.
        found = self._replay(admin, name, places, dry_run=True)
        wanted = {letter.queue_offset for letter in found if letter.outcome is _SENT}
        rest = [letter for letter in found if letter.outcome is not _SENT]
        for _ in wanted:
            self._pace.wait(lambda: self.outcome.interrupted)
        if self.outcome.interrupted or not wanted:
            self.outcome.looked_at -= len(wanted)
            return rest
        sent = [place for place in places if place.queue_offset in wanted]
        return rest + self._replay(admin, name, sent, dry_run=False)

    def _replay(
        self, admin: Admin, name: str, places: list[LetterPlace], *, dry_run: bool
    ) -> list[ReplayedLetter]:
        try:
            found = admin.replay_dead_letters(
                self._group,
                places,
                broker_name=name,
                target=self._target,
                again=self._again,
                dry_run=dry_run,
            )
        except TopicNotFound as error:
            if self._target is None:
                raise
            raise CommandFailed(
                f"topic {self._target} does not exist at broker {name}, which has dead letters of {self._group}",
                remedy=f"reput topic create {self._target}",
                code=ExitCode.NOT_FOUND,
            ) from error
        if self._left is not None and dry_run is self._dry_run:
            self._left -= sum(letter.outcome is _SENT for letter in found)
        return found

    def _report(self, left: int) -> None:
        outcome, printer = self.outcome, self._printer
        verb = "would be sent" if self._dry_run else "sent"
        for topic, number in sorted(outcome.sent.items()):
            printer.note(f"{counted(number, 'dead letter')} of {self._group} {verb} to {topic}")
        if not outcome.sent:
            printer.note(f"no dead letter of {self._group} {verb}")
        if outcome.passed_over:
            printer.note(f"{outcome.passed_over} skipped by the filter")
        before = outcome.of[ReplayOutcome.SENT_BEFORE]
        if before:
            printer.note(
                f"{counted(before, 'was', 'were')} replayed before; reput dlq peek {self._group} shows when and to "
                f"where, --again sends {_them(before)} once more"
            )
        gone = outcome.of[ReplayOutcome.GONE]
        if gone:
            printer.note(f"{counted(gone, 'has', 'have')} expired")
        for (reason, topic), number in sorted(outcome.stay.items()):
            why = _STAY[reason].format(topic, topic)
            printer.note(f"{counted(number, 'was', 'were')} left, {why}")
        unproven = outcome.of[ReplayOutcome.UNPROVEN]
        if unproven:
            chosen = quote(without_origin(self._expression))
            printer.note(
                f"{counted(unproven, 'was', 'were')} left, not proven to come from the topic that they name, since no "
                f"broker has stored {_them(unproven)} there; try: reput dlq replay {self._group} --filter {chosen} "
                "--to TOPIC"
            )
        if left and self._is_over:
            printer.note(f"{left} not looked at: the same command sends them")


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


@contextmanager
def _until_interrupted(outcome: Outcome) -> Iterator[None]:
    """Record Ctrl-C instead of raising: the request that was made is still answered, and its outcome counted."""

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        outcome.interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
