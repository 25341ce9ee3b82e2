"""The real broker that kills itself at one step, or has a planted bug.

Usage: `python dying_broker.py STEP[:N] serve --data-dir DIR ...`; STEP is one of the sink's (`sink_broker.STEPS`) or of
`SOURCE_STEPS`, or `none`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from pipeline_faults import planted
from pipeline_faults.steps import SOURCE_STEPS
from support import sink_broker

if __name__ == "__main__":
    planted.plant_of_environment()
    sink_broker.STEPS.update(SOURCE_STEPS)
    if sys.argv[1] == "none":
        del sys.argv[1]
        from reput_cli.main import main as reput

        reput()
    else:
        sink_broker.main()
