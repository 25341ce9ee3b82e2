"""The real broker, started by the crash harness: it shadows every sync, and may carry one planted bug.

Usage: `python instrumented_broker.py --shadow DIR [--bug NAME] serve --data-dir DIR ...`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash.planted import BUGS
from crash.sync_shadow import DurableInFiles, SyncShadow


def main() -> None:
    """Install the shadow and the bug, then run the `reput` command with what is left of the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shadow", type=Path, required=True)
    parser.add_argument("--bug", choices=list(BUGS))
    arguments, command = parser.parse_known_args()
    data_dir = Path(command[command.index("--data-dir") + 1])
    SyncShadow(data_dir, DurableInFiles(arguments.shadow)).install()
    if arguments.bug:
        BUGS[arguments.bug].plant()
    sys.argv = ["reput", *command]
    from reput_cli.main import main as reput

    reput()


if __name__ == "__main__":
    main()
