"""The state of a group in `reput group list` and `describe`."""

from __future__ import annotations

import pytest

from reput_cli.group import _state
from reput_protocol.commands.group_description import GroupSummary


@pytest.mark.parametrize(
    ("group", "state"),
    [
        (GroupSummary("g", members=1, lag=6), "ok"),
        (GroupSummary("g"), "ok"),
        (GroupSummary("g", lag=6), "empty"),
        (GroupSummary("g", lag=6, consume_enable=False), "disabled"),
        (GroupSummary("g", lag=6, exists=False), "undefined"),
        (GroupSummary("g", members=2, has_conflict=True), "conflict"),
    ],
)
def test_states(group: GroupSummary, state: str) -> None:
    assert _state(group) == state
