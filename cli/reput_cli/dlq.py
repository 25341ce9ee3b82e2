"""`reput dlq list | peek | replay | purge`: the dead letters of groups.

The brokers send dead letters back to the topics that they came from. A broker sends each once and knows which it has
sent (`Admin.replay_dead_letters`), so a replay that was interrupted is simply started again.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from shlex import quote
from types import FrameType
from typing import TypeAlias

import click

from reput_cli import rendering
from reput_cli.completion import GROUP, TOPIC
from reput_cli.failures import CommandFailed, not_found_as
from reput_cli.options import RATE, Settings, shared_options
from reput_cli.output import Printer, ago_text, rfc3339, write_message
from reput_cli.positions import RangeType
from reput_cli.preview import confirm, dry_run_option
from reput_client.admin.undelivered import DeadLetter, DeadLetters
from reput_client.blocking import Admin
from reput_client.positions import Position
from reput_protocol import properties as names
from reput_protocol.commands.dead_letters import (
    REPLAYED_AT_ONCE_MAX,
    LetterPlace,
    Replay,
    ReplayedLetter,
    ReplayOutcome,
    Replays,
)
from reput_protocol.errors import BrokerError, PermissionDenied, TopicNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.names import DLQ_PREFIX, check_send_topic, dlq_topic
from reput_protocol.printable import counted, printable, printable_json
from reput_protocol.properties import encode_properties

_COLUMNS = ("group", "messages", "replayed", "oldest", "newest", "origins", "reasons", "attempts")
ATTEMPTS = "ATTEMPTS"
"""Property for filters: the number of delivery attempts."""
_GROUP = "reput-cli"

Chosen: TypeAlias = Callable[["DeadLetter"], bool]

filter_option = click.option(
    "--filter",
    "expression",
    metavar="SQL",
    help=f"Only those whose properties match, such as \"RETRY_TOPIC = 'orders' AND {ATTEMPTS} > 3\".",
)
_BATCH = 128
_BATCH_S = 0.1
"""With --rate, seconds of sending per batch."""
_SENT = ReplayOutcome.SENT
_SLEEP_S = 0.1
"""Longest sleep between two checks for Ctrl-C."""
_STAY = {
    ReplayOutcome.NO_TOPIC: "since topic {} does not exist any more; reput topic create {}, or --to ANOTHER_TOPIC",
    ReplayOutcome.NO_PERMISSION: "since the user may not send to topic {}: reput acl allow USER write topic:{}",
    ReplayOutcome.REFUSED: "since topic {} takes no messages: reput topic alter {} --permission rw",
    ReplayOutcome.DAMAGED: "since their records are damaged: reput store verify",
}
"""Why letters stay that another run of the command may send."""


@click.group()
def command() -> None:
    """List, show, replay and purge dead letters: messages that a consumer group could not handle.

    The dead letters of a consumer group GROUP are in the topic %DLQ%GROUP, and expire like all messages.
    """


def chosen_by(expression: str | None) -> Chosen:
    """Return a predicate of dead letters for an expression; None matches all.

    Raises:
        FilterSyntaxError: the expression is invalid.
    """
    if expression is None:
        return lambda _: True
    wanted = SqlFilter.parse(expression)
    return lambda letter: wanted.matches(encode_properties({**letter.properties, ATTEMPTS: str(letter.attempts)}))


def without_origin(expression: str | None) -> str:
    """Return the expression for the matching dead letters of which a broker need not know where they came from."""
    nowhere = f"{names.DLQ_REASON} IS NULL OR {names.RETRY_TOPIC} IS NULL"
    return nowhere if expression is None else f"({expression}) AND ({nowhere})"


def letters_of(admin: Admin, group: str) -> DeadLetters:
    """Return the dead letters of a group.

    Raises:
        CommandFailed: there are none.
    """
    why = f"there is no topic {dlq_topic(group)}"
    with not_found_as(TopicNotFound, f"group {group} has no dead letters", reason=why, remedy="reput dlq list"):
        return admin.dead_letters(group)


def within(admin: Admin, letters: DeadLetters, first: Position, last: Position | None) -> DeadLetters:
    """Return those between two positions, which are looked up in each queue."""
    spans = {}
    for name, (_, end) in letters.spans.items():
        until = end if last is None else min(end, last.resolve(admin, letters.topic, 0, name))
        spans[name] = (min(first.resolve(admin, letters.topic, 0, name), until), until)
    return DeadLetters(letters.topic, spans)


@dataclass(eq=False, repr=False)
class Replayed:
    """Which dead letters of a group were replayed, asked of the brokers in parts.

    Attributes:
        is_known: whether the brokers can tell; if one cannot, the reason is printed once.
    """

    _admin: Admin
    _group: str
    _printer: Printer
    _parts: dict[str, tuple[int, int, dict[int, Replay]]] = field(default_factory=dict, init=False)
    is_known: bool = field(default=True, init=False)

    def of(self, letter: DeadLetter) -> Replay | None:
        """Return the message as which a letter was replayed; None if it was not, or if that is not known."""
        name, offset = letter.message.broker_name, letter.message.queue_offset
        begin, end, found = self._parts.get(name, (0, 0, {}))
        if not begin <= offset < end:
            answer = self._ask(name, offset, offset + REPLAYED_AT_ONCE_MAX)
            if answer is None:
                return None
            found = {replay.letter_offset: replay for replay in answer.replays}
            self._parts[name] = offset, max(offset + 1, answer.next_offset), found
        return found.get(offset)

    def total(self, letters: DeadLetters) -> int | None:
        """Return how many of all letters were replayed; None if that is not known."""
        answers = [self._ask(name) for name in letters.spans]
        return sum(answer.replayed for answer in answers if answer is not None) if self.is_known else None

    def _ask(self, broker_name: str, begin: int = 0, end: int = 0) -> Replays | None:
        if not self.is_known:
            return None
        try:
            return self._admin.replays(self._group, begin, end, broker_name=broker_name)
        except PermissionDenied:
            raise
        except BrokerError as error:
            self.is_known = False
            self._printer.note(f"which dead letters of {self._group} were replayed is not known: {error}")
            return None


def read(admin: Admin, letters: DeadLetters) -> Iterator[DeadLetter]:
    """Yield them, oldest first, without those that expire meanwhile."""
    queues = [read_queue(admin, letters.topic, name, *span) for name, span in letters.spans.items()]
    return merge(*queues, key=lambda letter: letter.message.store_timestamp_ms)


def read_queue(admin: Admin, topic: str, broker_name: str, offset: int, end: int) -> Iterator[DeadLetter]:
    """Yield those of one broker at `[offset, end)`, without those that expire meanwhile."""
    while offset < end:
        found = admin.fetch_messages(topic, 0, offset, end, broker_name=broker_name, group=_GROUP)
        for message in found.messages:
            if message.queue_offset < end:
                yield DeadLetter(message)
        if found.next_offset <= offset:
            return
        offset = found.next_offset


@dataclass(slots=True)
class Summary:
    """Counts and ages of the dead letters of one group."""

    group: str
    messages: int = 0
    replayed: int | None = None
    """None if it is not known."""
    oldest_ms: int | None = None
    newest_ms: int | None = None
    origins: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)

    def add(self, letter: DeadLetter) -> None:
        """Count one."""
        stored_ms = letter.message.store_timestamp_ms
        self.messages += 1
        self.oldest_ms = stored_ms if self.oldest_ms is None else min(self.oldest_ms, stored_ms)
        self.newest_ms = stored_ms if self.newest_ms is None else max(self.newest_ms, stored_ms)
        self.origins[letter.origin.topic or "unknown"] += 1
        self.reasons[letter.origin.reason] += 1
        self.attempts[letter.attempts] += 1

    def row(self, printer: Printer) -> tuple[object, ...]:
        """Return a row of the list: times are ages in a table, and counts are objects in JSON."""
        text = ago_text if printer.is_table else rfc3339
        oldest, newest = (None if ms is None else text(ms) for ms in (self.oldest_ms, self.newest_ms))
        head = (self.group, self.messages, self.replayed, oldest, newest)
        if printer.is_json:
            attempts = {str(number): count for number, count in sorted(self.attempts.items())}
            return (*head, dict(self.origins.most_common()), dict(self.reasons.most_common()), attempts)
        return (*head, _counted(self.origins), _counted(self.reasons), _span(self.attempts))


@command.command(name="list")
@click.argument("group", required=False, type=GROUP)
@filter_option
@shared_options
def list_dead_letters(settings: Settings, group: str | None, expression: str | None) -> int:
    """List the groups with dead letters, or only GROUP: their number, how many of them were replayed, origin topics,
    reasons and attempts.

    Reads every dead letter.
    """
    printer, chosen = Printer(settings), chosen_by(expression)
    with settings.admin() as admin:
        groups = [group] if group is not None else _groups(admin)
        summaries = [_summary(admin, name, chosen, Replayed(admin, name, printer)) for name in groups]
    printer.rows(_COLUMNS, [summary.row(printer) for summary in summaries if summary.messages or group])
    return ExitCode.DONE


def _groups(admin: Admin) -> list[str]:
    return [topic.removeprefix(DLQ_PREFIX) for topic in admin.list_topics() if topic.startswith(DLQ_PREFIX)]


def _summary(admin: Admin, group: str, chosen: Chosen, replayed: Replayed) -> Summary:
    summary = Summary(group)
    count = 0
    for letter in read(admin, letters_of(admin, group)):
        if chosen(letter):
            summary.add(letter)
            count += replayed.of(letter) is not None
    summary.replayed = count if replayed.is_known else None
    return summary


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in numbers.most_common()) or "-"


def _span(attempts: Counter[int]) -> str:
    if not attempts:
        return "-"
    low, high = min(attempts), max(attempts)
    return str(low) if low == high else f"{low}-{high}"


@command.command()
@click.argument("group", type=GROUP)
@click.option(
    "-o", "--from", "span", type=RangeType(), default="earliest", show_default=True, metavar="START[:END]",
    help="earliest, an offset, -N for the last N (of each broker), @TIME, @-15m, or a range of these.",
)  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(min=1), default=10, show_default=True, help="At most this many.")
@click.option("-f", "--format", "text", help="Percent escapes, as for reput consume.")
@filter_option
@shared_options
def peek(
    settings: Settings,
    group: str,
    span: tuple[Position, Position | None],
    count: int,
    text: str | None,
    expression: str | None,
) -> int:
    """Show dead letters of GROUP, oldest first: the message, its origin topic, the reason, the attempts, and when and
    to where it was replayed.
    """
    chosen = chosen_by(expression)
    with settings.admin() as admin:
        render = _renderer(settings, text, Replayed(admin, group, Printer(settings)))
        left = count
        for letter in read(admin, within(admin, letters_of(admin, group), *span)):
            if not chosen(letter):
                continue
            write_message(render(letter))
            left -= 1
            if not left:
                break
    return ExitCode.DONE


def _renderer(settings: Settings, text: str | None, replayed: Replayed) -> Callable[[DeadLetter], str]:
    if text is not None:
        of_message = rendering.compile_format(text)
        return lambda letter: of_message(letter.message)
    form = settings.output or ("table" if sys.stdout.isatty() else "json")
    render = _block if form == "table" else _plain if form == "plain" else _json_line
    return lambda letter: render(letter, replayed.of(letter))


def _json_line(letter: DeadLetter, replay: Replay | None) -> str:
    origin = letter.origin
    fields = {
        "origin_topic": origin.topic,
        "origin_message_id": origin.message_id,
        "attempts": letter.attempts,
        "reason": origin.reason,
        "cause": origin.cause,
        "replayed_at": None if replay is None else rfc3339(replay.replay_timestamp),
        "replayed_to": None if replay is None else replay.topic,
        "replayed_message_id": None if replay is None else replay.offset_message_id,
    }
    return printable_json({**json.loads(rendering.json_line(letter.message)), **fields})


def _plain(letter: DeadLetter, replay: Replay | None) -> str:
    sent = ("-", "-") if replay is None else (rfc3339(replay.replay_timestamp), replay.topic)
    origin = letter.origin
    head = (letter.message.queue_offset, origin.topic or "-", letter.attempts, origin.reason, *sent)
    # Without queue id and offset: the queue of dead letters is always 0.
    _, _, rest = rendering.plain(letter.message).split("\t", 2)
    return "\t".join([*(printable(str(value)) for value in head), rest])


def _block(letter: DeadLetter, replay: Replay | None) -> str:
    line = f"  from {letter.origin.topic or 'unknown'}  attempts {letter.attempts}  reason {letter.origin.reason}"
    if letter.origin.cause:
        line += f"  cause {letter.origin.cause}"
    lines = [printable(line)]
    if replay is not None:
        lines.append(printable(f"  replayed {rfc3339(replay.replay_timestamp)} to {replay.topic}"))
    head, _, body = rendering.block(letter.message).partition("\n")
    return "\n".join([head, *lines, body])


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


@command.command()
@click.argument("group", type=GROUP)
@click.option("--rate", type=RATE, help="Highest rate, such as 100/s or 30/m.  [default: unlimited]")
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
    work = _Replay(settings, group, rate, expression, count, target, again, dry_run)
    with settings.admin() as admin:
        outcome = work.run(admin, span)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return ExitCode.DONE if outcome.is_whole else ExitCode.PARTIAL


@dataclass
class _Replay:
    """A run of the command: what was given, and the outcome so far."""

    settings: Settings
    group: str
    rate: float | None
    expression: str | None
    left: int | None
    target: str | None
    again: bool
    dry_run: bool
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        rate = self.rate
        self._printer = Printer(self.settings)
        self._pace = None if rate is None else Pace(rate)
        self._batch = _BATCH if rate is None else max(1, min(_BATCH, int(rate * _BATCH_S)))
        self._chosen = chosen_by(self.expression)

    def run(self, admin: Admin, span: tuple[Position, Position | None]) -> Outcome:
        """Replay and return the outcome."""
        outcome = self.outcome
        all_letters = letters_of(admin, self.group)
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
        if self.settings.yes or self.dry_run or not number:
            return
        replayed = 0 if self.again else Replayed(admin, self.group, self._printer).total(all_letters) or 0
        if replayed >= len(all_letters):
            return
        which = " that match" if self.expression else ""
        to = f"topic {self.target}" if self.target else "the topics that they came from"
        was = f"; {replayed} of the group's were replayed before" if replayed else ""
        self._printer.note(f"up to {counted(number, 'dead letter')} of {self.group}{which} will be sent to {to}{was}")
        confirm(
            self.settings,
            self.group,
            "type the group's name to send them",
            f"the dead letters of {self.group} were not sent",
            needs_terminal=True,
        )

    @property
    def _is_over(self) -> bool:
        return self.outcome.interrupted or self.left == 0

    @property
    def _room(self) -> int:
        """How many letters may be sent together now."""
        return self._batch if self.left is None else min(self._batch, self.left)

    def _places(self, admin: Admin, topic: str, name: str, start: int, end: int) -> Iterator[LetterPlace]:
        """Yield the places of a broker's letters, of those that the filter chooses."""
        if self.expression is None:
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
        if self.dry_run or self._pace is None:
            return self._replay(admin, name, places, dry_run=self.dry_run)
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

    def _replay(self, admin: Admin, name: str, places: list[LetterPlace], *, dry_run: bool) -> list[ReplayedLetter]:
        try:
            found = admin.replay_dead_letters(
                self.group, places, broker_name=name, target=self.target, again=self.again, dry_run=dry_run
            )
        except TopicNotFound as error:
            if self.target is None:
                raise
            raise CommandFailed(
                f"topic {self.target} does not exist at broker {name}, which has dead letters of {self.group}",
                remedy=f"reput topic create {self.target}",
                code=ExitCode.NOT_FOUND,
            ) from error
        if self.left is not None and dry_run is self.dry_run:
            self.left -= sum(letter.outcome is _SENT for letter in found)
        return found

    def _report(self, left: int) -> None:
        outcome, printer = self.outcome, self._printer
        verb = "would be sent" if self.dry_run else "sent"
        for topic, number in sorted(outcome.sent.items()):
            printer.note(f"{counted(number, 'dead letter')} of {self.group} {verb} to {topic}")
        if not outcome.sent:
            printer.note(f"no dead letter of {self.group} {verb}")
        if outcome.passed_over:
            printer.note(f"{outcome.passed_over} skipped by the filter")
        before = outcome.of[ReplayOutcome.SENT_BEFORE]
        if before:
            printer.note(
                f"{counted(before, 'was', 'were')} replayed before; reput dlq peek {self.group} shows when and to "
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
            chosen = quote(without_origin(self.expression))
            printer.note(
                f"{counted(unproven, 'was', 'were')} left, not proven to come from the topic that they name, since no "
                f"broker has stored {_them(unproven)} there; try: reput dlq replay {self.group} --filter {chosen} "
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


@command.command()
@click.argument("group", type=GROUP)
@dry_run_option
@shared_options
def purge(settings: Settings, group: str, dry_run: bool) -> int:
    """Delete all dead letters of GROUP. Asks for the group's name unless --yes is given.

    A log cannot delete single messages, so this deletes the topic %DLQ%GROUP with all dead letters, replayed or not.
    The group's next dead letter creates the topic again. Nothing is deleted if dead letters have been added since they
    were counted.
    """
    printer = Printer(settings)
    with settings.admin() as admin:
        letters = letters_of(admin, group)
        replayed = Replayed(admin, group, printer).total(letters)
        left = "" if replayed is None else f", {len(letters) - replayed} not replayed yet"
        printer.note(f"topic {letters.topic}: {counted(len(letters), 'dead letter')}{left}")
        if dry_run:
            return ExitCode.DONE
        confirm(
            settings,
            group,
            "type the group's name to delete them",
            f"the dead letters of {group} were not deleted",
            needs_terminal=True,
        )
        now = letters_of(admin, group)
        more = len(now.after({name: end for name, (_, end) in letters.spans.items()}))
        if more:
            raise CommandFailed(
                f"the dead letters of {group} were not deleted",
                reason=f"{counted(more, 'more has', 'more have')} been added since they were counted",
                remedy=f"reput dlq peek {group} -o -{more}, then purge again",
            )
        admin.delete_topic(letters.topic)
    printer.note(f"topic {letters.topic} deleted")
    return ExitCode.DONE
