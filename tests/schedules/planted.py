"""Starts `reput` with a planted bug, so that the judge proves that it notices it: `planted.py BUG serve ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reput_broker.schedule.feature import Run, ScheduleFeature
from reput_protocol.commands.schedule import MissedTimes
from support.planted_bugs import Bug, table_of


def forgets_the_log() -> None:
    """a start believes the table, which lacks the last times"""

    async def settle(self: ScheduleFeature, run: Run, now_ms: int) -> None:
        del self, now_ms
        run.is_settled = True

    ScheduleFeature._settle = settle  # type: ignore[method-assign]


def begins_now() -> None:
    """a start sends nothing for the times before it"""

    async def settle(self: ScheduleFeature, run: Run, now_ms: int) -> None:
        del self
        run.advance(now_ms)
        run.is_settled = True

    ScheduleFeature._settle = settle  # type: ignore[method-assign]


def sends_twice() -> None:
    """every third message of a schedule is sent twice"""
    real = ScheduleFeature._send

    async def send(self: ScheduleFeature, run: Run, time_ms: int) -> None:
        await real(self, run, time_ms)
        if run.sent % 3 == 0:
            await real(self, run, time_ms)

    ScheduleFeature._send = send  # type: ignore[method-assign]


def leaves_out() -> None:
    """a schedule that sends only the latest of missed times leaves out every third one"""
    real = ScheduleFeature._due

    async def due(self: ScheduleFeature, run: Run, now_ms: int) -> list[int]:
        found = await real(self, run, now_ms)
        if run.schedule.definition.missed is MissedTimes.LATEST and run.sent % 3 == 2:
            run.sent += 1
            run.advance(now_ms)
            return []
        return found

    ScheduleFeature._due = due  # type: ignore[method-assign]


BUGS: Final = table_of(map(Bug, (forgets_the_log, begins_now, sends_twice, leaves_out)))


def main() -> None:
    """Plant the bug, and run the command."""
    from reput_cli.main import main as run

    BUGS[sys.argv.pop(1)].plant()
    run()


if __name__ == "__main__":
    main()
