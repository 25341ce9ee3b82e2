"""The real broker that kills itself at one step of staging or committing a batch.

Usage: `python sink_broker.py STEP[:N] serve --data-dir DIR ...`; STEP is one of `STEPS`, N says at which time of it.
`@FILE` in place of a step reads it from a file each time, so that a running broker can be told where to die. There it
first waits, at a step that can wait, until the in-sync set has all of its log, so that the next master finds what it
has done; at `STEP!` it dies at once, and the next master lacks what no sync has followed.
"""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from reput_broker.remoting.request import Refusal
from reput_broker.staging import committer
from reput_broker.staging.batches import CommittedBatches, Publisher, StagingState
from reput_broker.staging.committer import Committer
from reput_broker.staging.staging_file import StagingFile
from reput_broker.tenure.core import Core

COPIED_WITHIN_S = 10.0
"""The in-sync set may be unable to copy the log, if the network is broken."""
_AT_ONCE, _ONCE_COPIED = "at once", "once copied"
_cores: list[Core] = []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


STEPS: dict[str, tuple[Any, str, bool]] = {
    # step: (owner of the function, its name, whether to die after it instead of before)
    "creating": (StagingFile, "append", False),
    "staged": (StagingFile, "append", True),
    "ending": (StagingFile, "end", False),
    "ended": (StagingFile, "end", True),
    "committing": (Committer, "commit", False),
    "deciding": (Committer, "_begin", False),
    "decided": (Committer, "_begin", True),
    "piece": (Publisher, "_put", True),
    "marking": (Committer, "_close", False),
    "marked": (Committer, "_close", True),
    "flushed": (CommittedBatches, "note", False),
    "noted": (CommittedBatches, "note", True),
    "dropped": (committer, "remove", True),
}


def plant(step: str) -> None:
    """Have this process die at a step, or with `@FILE` at the one that the file names at the time."""
    if step.startswith("@"):
        _keep_cores()
        for name in STEPS:
            _plant(name, _named_in(Path(step[1:]), name))
        return
    name, _, number = step.partition(":")
    wanted, times = int(number or 1), itertools.count(1)
    _plant(name, lambda: _AT_ONCE if next(times) == wanted else "")


def _named_in(file: Path, step: str) -> Callable[[], str]:
    times = itertools.count(1)

    def due() -> str:
        text = file.read_text()
        name, _, number = text.removesuffix("!").partition(":")
        if name != step or next(times) != int(number or 1):
            return ""
        return _AT_ONCE if text.endswith("!") else _ONCE_COPIED

    return due


def _keep_cores() -> None:
    """Keep the core of the latest tenure."""
    begin = Committer.__init__

    def begin_and_keep(self: Committer, core: Core, state: StagingState) -> None:
        begin(self, core, state)
        _cores[:] = [core]

    Committer.__init__ = begin_and_keep  # type: ignore[method-assign]


async def _copied() -> None:
    """Wait until the in-sync set has the whole log, also while the tenure is being ended."""
    (core,) = _cores
    progress, end = core.puts.progress, core.store.max_physical_offset
    with trio.move_on_after(COPIED_WITHIN_S, shield=True), suppress(Refusal):
        await progress.flushed.reached(end)
        await progress.confirmed.reached(end)


def _plant(step: str, is_due: Callable[[], str]) -> None:
    owner, attribute, after = STEPS[step]
    inner: Callable[..., Any] = getattr(owner, attribute)

    if inspect.iscoroutinefunction(inner):

        async def waiting(*arguments: Any, **named: Any) -> Any:
            due = is_due()
            result = await inner(*arguments, **named) if after or not due else None
            if due == _ONCE_COPIED:
                await _copied()
            if due:
                die()
            return result

        setattr(owner, attribute, waiting)
        return

    def direct(*arguments: Any, **named: Any) -> Any:
        due = is_due()
        if due and not after:
            die()
        result = inner(*arguments, **named)
        if due:
            die()
        return result

    setattr(owner, attribute, direct)


def main() -> None:
    """Plant the step and run the command with what is left of the arguments."""
    step, *command = sys.argv[1:]
    plant(step)
    sys.argv = ["reput", *command]
    from reput_cli.main import main as reput

    reput()


if __name__ == "__main__":
    main()
