"""The real broker, started by a history: it records when it was suspended, and may have one planted bug.

Usage: `python broker_entry.py --history FILE [--bug NAME] serve --data-dir DIR ...`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from histories import planted, terms
from histories.history import Pulse, Recorder
from support.short_locks import shorten_in_broker

_SCAN_S = 0.5


def main() -> None:
    """Install pulse and bug, then run the `reput` command with what is left of the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--bug", choices=[*planted.BUGS])
    arguments, command = parser.parse_known_args()
    Pulse(Recorder(arguments.history, "broker"))
    from reput_broker.groups import membership

    membership._SCAN_S = _SCAN_S
    shorten_in_broker(terms.LOCK_TIMEOUT_S)
    if arguments.bug:
        planted.BUGS[arguments.bug].in_broker()
    sys.argv = ["reput", *command]
    from reput_cli.main import main as reput

    reput()


if __name__ == "__main__":
    main()
