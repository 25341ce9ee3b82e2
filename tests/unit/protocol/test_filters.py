"""Tag filters by text, by hash, and by whole columns of hashes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filters import TagFilter
from reput_protocol.hashing import tags_code


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything(expression: str | None) -> None:
    tag_filter = TagFilter.parse(expression)
    assert tag_filter.matches_all
    assert tag_filter.matches_tag(None)
    assert tag_filter.matches_code(0)
    assert tag_filter.mask(np.array([0, 1, -1])).all()


def test_tags_are_split_and_trimmed() -> None:
    tag_filter = TagFilter.parse(" TagA||  order-created ||")
    assert tag_filter.tags == {"TagA", "order-created"}
    assert tag_filter.codes == {2598919, -392709271}
    assert not tag_filter.matches_tag(None)
    assert not tag_filter.matches_tag("TagB")


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_separators_only_are_an_error(expression: str) -> None:
    with pytest.raises(FilterSyntaxError, match="names no tag"):
        TagFilter.parse(expression)


@pytest.mark.parametrize("expression", [" ", " || "])
def test_blanks_match_nothing(expression: str) -> None:
    tag_filter = TagFilter.parse(expression)
    assert not tag_filter.matches_tag("")
    assert not tag_filter.matches_code(0)
    assert not tag_filter.mask(np.array([0, 1])).any()


def test_equal_hashes_are_told_apart_by_text_only() -> None:
    tag_filter = TagFilter.parse("AaAa")
    assert tag_filter.matches_code(tags_code("BBBB"))
    assert not tag_filter.matches_tag("BBBB")


@pytest.mark.parametrize("dtype", ["<i8", ">i8"])
@pytest.mark.parametrize("count", [1, 3, 40])
@given(noise=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_the_mask_says_what_matches_code_says(dtype: str, count: int, noise: list[int]) -> None:
    tags = [f"tag-{number}" for number in range(count)] + ["order-created"]
    tag_filter = TagFilter.parse("||".join(tags))
    codes = noise + [tags_code(tag) for tag in tags] + [tags_code(tags[0]) & 0xFFFFFFFF]
    mask = tag_filter.mask(np.array(codes, dtype=dtype))
    assert mask.tolist() == [tag_filter.matches_code(code) for code in codes]


def test_the_wire_half_loads_no_numpy() -> None:
    code = (
        "import sys, reput_protocol.frames, reput_protocol.commands, reput_protocol.bodies, reput_protocol.filters;"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
