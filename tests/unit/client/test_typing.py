"""A type checker finds typical mistakes with the client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[3]
MISTAKES = ROOT / "tests/support/typing_mistakes.py"
_MARK = re.compile(r"  # type: ignore\[([\w-]+)\]$")


def test_each_typical_mistake_is_an_error(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Without the marks, the checker reports an error of the marked kind at each marked line, and no other."""
    lines = MISTAKES.read_text().splitlines()
    marked = {number: found[1] for number, line in enumerate(lines, 1) if (found := _MARK.search(line))}
    copy = tmp_path / "mistakes.py"
    copy.write_text("\n".join(_MARK.sub("", line) for line in lines))
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("mypy")  # 10 s without it
    config = ROOT / "pyproject.toml"
    output, trouble, _ = api.run(["--strict", f"--cache-dir={cache}", f"--config-file={config}", str(copy)])
    assert not trouble
    errors = re.findall(r"^.*mistakes\.py:(\d+): error: .*\[([\w-]+)\]$", output, re.MULTILINE)
    assert {int(number): kind for number, kind in errors} == marked
    assert len(marked) > 60
