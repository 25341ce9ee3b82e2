"""Ctrl-C while the command line is still importing ends it with 130 and without output."""

from __future__ import annotations

import subprocess
import sys

import pytest

_INTERRUPTED_IN_IMPORT = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["reput", "topic", "list"]
from reput_cli.main import main
main()
"""


@pytest.mark.parametrize("module", ["click", "reput_cli.failures", "reput_cli.topic", "reput_client.blocking"])
def test_an_interrupt_during_an_import(module: str) -> None:
    program = _INTERRUPTED_IN_IMPORT.format(module=module)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "")
