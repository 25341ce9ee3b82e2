"""What a command imports, which is most of the time that a short one takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "anyio", "asyncio", "h11", "lark", "numpy", "prometheus_client", "pydantic", "rich", "starlette", "structlog",
    "trio", "urllib.request",
}  # fmt: skip
PROGRAM = """
import sys
before = set(sys.modules)
sys.argv = ["reput", *sys.argv[1:]]
from reput_cli.main import main
try:
    main()
except SystemExit:
    pass
loaded = set(sys.modules) - before
print("MODULES", len([name for name in loaded if name.startswith("reput")]), *sorted(loaded & set({heavy!r})))
"""


def imported(*arguments: str) -> tuple[int, set[str]]:
    """Return the number of Reput's modules that a command imports, and the heavy libraries among the others."""
    program = PROGRAM.replace("{heavy!r}", repr(sorted(HEAVY)))
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MODULES")]
    _, count, *heavy = line.split()
    return int(count), set(heavy)


@pytest.mark.parametrize(
    ("command", "most"),
    [
        ("--version", 10),
        ("--help", 10),
        ("topic list --server 127.0.0.1:1", 121),
        ("group describe g --server 127.0.0.1:1", 123),
        ("broker status --server 127.0.0.1:1", 121),
        ("client list --server 127.0.0.1:1", 121),
        ("message get 00 --server 127.0.0.1:1", 125),
        ("produce t x --server 127.0.0.1:1", 125),
        ("context list", 20),
        ("generate alerts", 19),
    ],
)
def test_a_simple_command_imports_little(command: str, most: int) -> None:
    count, heavy = imported(*command.split())
    assert heavy == set()
    assert count <= most
