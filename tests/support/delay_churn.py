"""Delayed delivery under kills, stops, clock changes and lost files, and its invariants.

A run sends delayed messages, cancels some, lists what waits, sets the clock, kills the broker, stops it, takes its
derived files away. A ledger keeps what was promised. What must hold at the end: every message came once and not too
early, but for those of which a cancellation said that they would not.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import trio

from support.delayed import DelayBench
from support.stores import flip_bit

LEVELS_S = (1, 5, 10, 30)
KEYS = 12
FAR_MS = 400_000
"""More than the window in which a message waits in one place."""
_JUMPS_MS = (-90_000, -3_000, -1, 700, 5_000, 45_000)
_TIMER_FILES = ("timerwheel", "timerlog", "config/timercheck")


@dataclass(slots=True)
class Later:
    """One delayed message."""

    due_ms: int
    """By the wall clock as it was then."""
    sent_at: float
    delay_s: float
    level: bool
    key: str
    sent_by: int = 0
    """When the broker had taken it, in the run's own count (see `Churn.now`)."""
    cancel_began_by: int | None = None
    cancelled_by: int | None = None
    """When its cancellation was acknowledged."""


@dataclass(slots=True)
class Ledger:
    """What was promised, and what was seen to be broken on the way."""

    later: dict[bytes, Later] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


class Churn:
    """One run.

    Args:
        bench: of the first start.
        seed: decides everything.
        now: counts whatever a later judge goes by.
        jumps: whether the clock is set.
        loses_files: whether derived files are taken away or damaged between a kill and the next start.
    """

    def __init__(
        self,
        bench: DelayBench,
        seed: int,
        *,
        now: Callable[[], int] = lambda: 0,
        jumps: bool = False,
        loses_files: bool = False,
    ) -> None:
        self.bench = bench
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.now = now
        self._jumps = jumps
        self._loses_files = loses_files
        self.clock: list[tuple[int, int]] = []
        """The wall clock over time; see `now`."""
        self._number = 0
        self._clock_was_set = False

    async def run(self, turns: int) -> Ledger:
        """Do so many starts, each but the last ended in one way or another."""
        for turn in range(turns):
            async with self.bench.running():
                for _ in range(self.rng.randrange(1, 12)):
                    await self._act()
            if turn < turns - 1:
                await self._end()
        return self.ledger

    async def finish(self) -> list[str]:
        """Wait for everything that is still to come, and judge."""
        async with self.bench.running():
            came = -1
            while self._open(delivered := self.bench.delivered()) and not (self._all_due() and len(delivered) == came):
                came = len(delivered)
                await trio.sleep(5)
            await trio.sleep(5)
        return self.ledger.violations + judge(self.bench, self.ledger, clock_was_set=self._clock_was_set)

    # -- steps ---------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        self.clock.append((self.now(), self.bench.clock_ms()))
        actions: list[tuple[Callable[[], object], int]] = [
            (self._send, 10),
            (self._cancel, 4),
            (self._list, 2),
            (self._wait, 8),
            (self._set_clock, 2 if self._jumps else 0),
        ]
        act = self.rng.choices([action for action, _ in actions], [weight for _, weight in actions])[0]
        result = act()
        if result is not None:
            await result  # type: ignore[misc]

    def _send(self) -> None:
        rng, bench = self.rng, self.bench
        for _ in range(rng.choice((1, 1, 5, 25))):
            body, key = b"%d" % self._number, f"k{rng.randrange(KEYS)}"
            self._number += 1
            at, queue_id = trio.current_time(), rng.randrange(4)
            if rng.random() < 0.4:
                level = rng.randrange(len(LEVELS_S))
                due_ms, delay_s = bench.level(body, level + 1, queue_id, KEYS=key), float(LEVELS_S[level])
                later = Later(due_ms, at, delay_s, True, key)
            else:
                most = rng.choice((3_000, 20_000, 20_000, FAR_MS))
                delay_ms = rng.choice((rng.randrange(1, most), 1000 * rng.randrange(1, most // 1000)))
                due_ms = bench.timed(body, delay_ms, queue_id, KEYS=key)
                later = Later(due_ms, at, delay_ms / 1000, False, key)
            later.sent_by = self.now()
            self.ledger.later[body] = later

    async def _wait(self) -> None:
        await trio.sleep(self.rng.choice((0.0, 0.001, self.rng.uniform(0, 2.0), self.rng.uniform(0, 30.0))))

    def _set_clock(self) -> None:
        self.bench.offset_ms += self.rng.choice(_JUMPS_MS)
        self._clock_was_set = True

    async def _cancel(self) -> None:
        """Cancel by a unique id, or by a key that several messages have; the answers must be true."""
        if not self.ledger.later:
            return
        body = self.rng.choice([*self.ledger.later])
        key = f"ID-{body.decode()}" if self.rng.random() < 0.6 else self.ledger.later[body].key
        meant = {
            other: later for other, later in self.ledger.later.items() if key in (f"ID-{other.decode()}", later.key)
        }
        for later in meant.values():
            later.cancel_began_by = self.now() if later.cancel_began_by is None else later.cancel_began_by
        answers = await self.bench.cancelled(key)
        came = self.bench.delivered()
        for other, later in meant.items():
            self._check_answer(other, later, answers.pop(other, None), other in came)
        if answers:
            self.ledger.violations.append(f"cancelling {key} named {sorted(answers)}, which nobody sent")

    def _check_answer(self, body: bytes, later: Later, outcome: str | None, came: bool) -> None:
        if outcome == "DELIVERED":
            wrong = not came
        elif outcome == "CANCELLED":
            wrong = came or later.cancelled_by is not None
        elif outcome == "ALREADY_CANCELLED":
            wrong = came or later.cancelled_by is None
        else:
            wrong = True
        if wrong:
            self.ledger.violations.append(
                f"cancelling {body!r} said {outcome}; it had {'' if came else 'not '}come, "
                f"and was {'' if later.cancelled_by is not None else 'not '}cancelled before"
            )
        if outcome in ("CANCELLED", "ALREADY_CANCELLED"):
            later.cancelled_by = self.now() if later.cancelled_by is None else later.cancelled_by

    async def _list(self) -> None:
        """Everything that waits all along is listed once, and nothing that is cancelled or came before."""
        waited = {body for body, later in self.ledger.later.items() if later.cancelled_by is None}
        waited -= self.bench.delivered().keys()
        listed = await self.bench.listed(self.rng.choice((1, 7, 64)))
        waits = waited - self.bench.delivered().keys()
        if len(set(listed)) < len(listed) or not waits <= set(listed) <= waited:
            twice = {body for body in listed if listed.count(body) > 1}
            self.ledger.violations.append(
                f"listed twice {sorted(twice)}, not {sorted(waits - set(listed))}, "
                f"wrongly {sorted(set(listed) - waited)}"
            )

    # -- ends ----------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            self.bench = self.bench.restart()
        else:
            self.bench.abandon()
            if self._loses_files and rng.random() < 0.6:
                self._lose_files()
            self.bench = self.bench.go_on()
        await trio.sleep(rng.choice((0.0, 0.0, rng.uniform(0, 1.0), rng.uniform(0, 40.0))))

    def _lose_files(self) -> None:
        root, rng = self.bench.options.data_dir, self.rng
        path = root / rng.choice((*_TIMER_FILES, "config/delayOffset.json"))
        if path.is_dir() and rng.random() < 0.6:
            path = rng.choice([*sorted(path.iterdir())] or [path])
        if path.is_file() and path.suffix != ".json" and path.stat().st_size and rng.random() < 0.6:
            flip_bit(path, rng.randrange(path.stat().st_size), rng.randrange(8))
            return
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if path.suffix == ".json":
            Path(f"{path}.bak").unlink(missing_ok=True)

    # -- judging -------------------------------------------------------------------------------------------

    def _open(self, came: Collection[bytes]) -> bool:
        return any(later.cancelled_by is None and body not in came for body, later in self.ledger.later.items())

    def _all_due(self) -> bool:
        now_ms = self.bench.clock_ms()
        return all(later.due_ms + 10_000 < now_ms for later in self.ledger.later.values())


def judge(bench: DelayBench, ledger: Ledger, *, clock_was_set: bool, at: int | None = None) -> list[str]:
    """Say what is wrong with what came. With `at`, only what had been promised by then counts as promised."""
    found: list[str] = []
    came = bench.delivered()
    for body, later in ledger.later.items():
        times = came.pop(body, [])
        promised = at is None or later.sent_by <= at
        cancelled = later.cancelled_by is not None and (at is None or later.cancelled_by <= at)
        maybe = later.cancel_began_by is not None and (at is None or later.cancel_began_by <= at) and at is not None
        if len(times) > 1:
            found.append(f"{body!r} came {len(times)} times")
        if cancelled and times:
            found.append(f"{body!r} came although it was cancelled")
        if promised and not cancelled and not maybe and not times:
            found.append(f"{body!r} never came; it was due at {later.due_ms}")
        if any(time < later.due_ms for time in times) and not (later.level and clock_was_set):
            found.append(f"{body!r} came {later.due_ms - min(times)} ms too early")
    found += [f"{body!r} came, which nobody sent" for body in came]
    return found
