"""The real broker that kills itself at one step of staging or committing a batch.

Usage: `python sink_broker.py STEP[:N] serve --data-dir DIR ...`; STEP is one of `STEPS`, N says at which time of it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from reput_broker.staging import committer
from reput_broker.staging.batches import CommittedBatches
from reput_broker.staging.committer import Committer
from reput_broker.staging.intent import IntentFile
from reput_broker.staging.publisher import Publisher
from reput_broker.staging.staging_file import StagingFile


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


STEPS: dict[str, tuple[Any, str, bool]] = {
    # step: (owner of the function, its name, whether to die after it instead of before)
    "creating": (StagingFile, "append", False),
    "staged": (StagingFile, "append", True),
    "ending": (StagingFile, "end", False),
    "ended": (StagingFile, "end", True),
    "committing": (Committer, "commit", False),
    "deciding": (IntentFile, "write", False),
    "decided": (IntentFile, "write", True),
    "piece": (Publisher, "_put", True),
    "marking": (Committer, "_append_marker", False),
    "marked": (Committer, "_append_marker", True),
    "flushed": (CommittedBatches, "note", False),
    "closing": (IntentFile, "remove", False),
    "closed": (IntentFile, "remove", True),
    "dropped": (committer, "remove", True),
}


def plant(step: str) -> None:
    """Have this process die at a step."""
    name, _, number = step.partition(":")
    owner, attribute, after = STEPS[name]
    times = itertools.count(1)
    inner: Callable[..., Any] = getattr(owner, attribute)
    wanted = int(number or 1)

    if attribute in ("commit", "_put", "_append_marker"):

        async def waiting(*arguments: Any, **named: Any) -> Any:
            due = next(times) == wanted
            if due and not after:
                die()
            result = await inner(*arguments, **named)
            if due:
                die()
            return result

        setattr(owner, attribute, waiting)
        return

    def direct(*arguments: Any, **named: Any) -> Any:
        due = next(times) == wanted
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
