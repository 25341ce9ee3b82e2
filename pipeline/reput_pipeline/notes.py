"""Words for who looks into the logs of a driver or an executor: Spark keeps what their Pythons write to stderr."""

from __future__ import annotations

import sys


def note(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"reput: {text}\n")
    sys.stderr.flush()
