"""Filters match an independent evaluation; `make soak KIND=filters` does the same ten thousand times."""

from pathlib import Path

import pytest

from filters.check import check_store, check_values


@pytest.mark.parametrize("seed", range(4))
def test_expressions_have_the_value_of_the_tree_they_were_written_from(seed: int) -> None:
    assert check_values(seed, 250).total() == 250


@pytest.mark.parametrize("seed", range(3))
def test_a_filtered_get_finds_what_the_messages_say(tmp_path: Path, seed: int) -> None:
    check_store(seed, tmp_path / "s", 400, 12)
