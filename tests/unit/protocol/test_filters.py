"""Tag filters by text and by hash."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.tags import TAGS_MAX, TagFilter, tag_hash
from reput_protocol.record.layout import tags_code


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything(expression: str | None) -> None:
    tag_filter = TagFilter.parse(expression)
    assert tag_filter.matches_all
    assert tag_filter.matches_tag(None)


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
    assert not tag_filter.codes


def test_equal_hashes_are_told_apart_by_text_only() -> None:
    tag_filter = TagFilter.parse("AaAa")
    assert tags_code("BBBB") in tag_filter.codes
    assert not tag_filter.matches_tag("BBBB")


@given(noise=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_the_low_32_bits_of_a_code_are_the_hash(noise: list[int]) -> None:
    tag_filter = TagFilter.parse("tag||order-created")
    hashes = {tags_code("tag") & 0xFFFF_FFFF, tags_code("order-created") & 0xFFFF_FFFF}
    for code in [*noise, *hashes, tags_code("order-created")]:
        assert (tag_hash(code) in tag_filter.codes) == (code & 0xFFFF_FFFF in hashes)


def test_the_wire_half_loads_no_numpy() -> None:
    code = (
        "import sys, reput_protocol.wire.frames, reput_protocol.commands.group, reput_protocol.filter.tags;"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_expression_has_a_bounded_number_of_tags() -> None:
    tags = [f"t{number}" for number in range(TAGS_MAX)]
    assert len(TagFilter.parse("||".join(tags)).tags) == TAGS_MAX
    with pytest.raises(FilterSyntaxError, match=f"{TAGS_MAX} are allowed"):
        TagFilter.parse("||".join([*tags, "one more"]))
