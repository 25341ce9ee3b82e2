"""Log messages of the pipeline, on stderr, which Spark keeps in the logs of driver and executors."""

from __future__ import annotations

import sys

from reput_protocol.printable import printable


def note(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"reput: {printable(text)}\n")
    sys.stderr.flush()
