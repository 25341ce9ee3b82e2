"""The real broker that kills itself at one step of staging or committing a batch.

Usage: `python sink_broker.py STEP[:N] serve --data-dir DIR ...`; STEP is one of `STEPS`, N says at which time of it.
`@FILE` in place of a step reads it from a file each time, so that a running broker can be told where to die; there it
lives on for a moment, in which slaves get what the log has.
"""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from reput_broker.staging import committer
from reput_broker.staging.batches import CommittedBatches
from reput_broker.staging.committer import Committer
from reput_broker.staging.publisher import Publisher
from reput_broker.staging.staging_file import StagingFile

COPIED_WITHIN_S = 0.5


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
        for name in STEPS:
            _plant(name, _named_in(Path(step[1:]), name), COPIED_WITHIN_S)
        return
    name, _, number = step.partition(":")
    wanted, times = int(number or 1), itertools.count(1)
    _plant(name, lambda: next(times) == wanted)


def _named_in(file: Path, step: str) -> Callable[[], bool]:
    times = itertools.count(1)

    def is_due() -> bool:
        name, _, number = file.read_text().partition(":")
        return name == step and next(times) == int(number or 1)

    return is_due


def _plant(step: str, is_due: Callable[[], bool], lives_on_s: float = 0.0) -> None:
    owner, attribute, after = STEPS[step]
    inner: Callable[..., Any] = getattr(owner, attribute)

    if inspect.iscoroutinefunction(inner):

        async def waiting(*arguments: Any, **named: Any) -> Any:
            due = is_due()
            if due and not after:
                die()
            result = await inner(*arguments, **named)
            if due:
                await trio.sleep(lives_on_s)
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
