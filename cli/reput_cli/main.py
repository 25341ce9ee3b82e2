"""Start the command line; Ctrl-C ends it without a traceback, also during imports."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from reput_protocol.exit_codes import ExitCode


def main() -> NoReturn:
    """Run the command line and exit with one of `ExitCode`."""
    try:
        sys.exit(_run())
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


_GC_THRESHOLD = 20_000
"""With Python's threshold, collections cost a tenth of a broker's start, and of its time: they find little."""


def _run() -> int:
    gc.set_threshold(_GC_THRESHOLD)
    # Imported here so that `main` catches an interrupt.
    from reput_cli.failures import Verbosity, report_failure
    from reput_cli.root import root

    verbosity = Verbosity()
    try:
        status = root.main(prog_name="reput", standalone_mode=False, obj=verbosity)
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(error, verbosity.level)
    return status if isinstance(status, int) else 0
