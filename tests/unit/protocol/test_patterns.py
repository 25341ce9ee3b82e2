"""Regular expressions of the packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import reput_broker
import reput_cli
import reput_client
import reput_pipeline
import reput_protocol


@pytest.mark.parametrize("package", [reput_protocol, reput_client, reput_broker, reput_pipeline, reput_cli])
def test_no_group_is_possessive(package: object) -> None:
    """Python 3.11.0 to 3.11.4, Debian 12's among them, matches such groups wrongly (CPython's issue 106052)."""
    (directory,) = package.__path__  # type: ignore[attr-defined]
    files = [*Path(directory).rglob("*.py")]
    assert files
    for path in files:
        assert not re.search(r"\)[*+?]\+(?!=)|\(\?>", path.read_text()), path
