"""Each promise of the pages about security and clusters names tests, and these exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISES = [
    (page, promise.strip(), tests)
    for page in ("security.md", "cluster.md")
    for promise, tests in re.findall(
        r"(?m)^\| ([^|]+) \| (`tests/[^|]+) \|$", (ROOT / "docs" / page).read_text(encoding="utf-8")
    )
]


@cache
def names_in(path: str) -> set[str]:
    """Return the names of the tests of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


@pytest.mark.parametrize(("page", "promise", "tests"), PROMISES, ids=lambda text: text[:60])
def test_a_promise_names_tests_that_exist(page: str, promise: str, tests: str) -> None:
    del page, promise
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert len(named) == tests.count("`") / 2
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []


@pytest.mark.parametrize("page", ["security.md", "cluster.md"])
def test_every_row_of_the_tables_is_read(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (?!Promise|---).*\|$", text[text.index("## What keeps these promises") :])
    assert len(rows) == sum(known == page for known, _, _ in PROMISES) > 10
