"""`python tests/sweep/run.py`: can a user without rights on others' topics, groups and clients do anything to them?

Others have topics with messages, delayed, popped, prepared and dead ones, groups, members and locks. A stranger puts
their names into each field of each request that names something (by the table of requests) and into each property that
the broker acts on (by the list of properties), in every type of header. Then delays elapse, the stranger gives up its
own messages, the administrator replays the dead letters, and the broker is killed and started again. Fails if anything
of others has changed, if they are told from what does not exist, or if a field is not refused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from reput_protocol.wire.header import HeaderType
from sweep.course import sweep


def main() -> int:
    """Parse the arguments, sweep, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reput-sweep-") as directory:
        wrong = 0
        for text in sweep(Path(directory), tuple(HeaderType), tuple(HeaderType)):
            wrong += 1
            print(f"WRONG: {text[:1500]}", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
