"""Options for tags of `reput produce` and `reput consume`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from reput_cli.consume import command as consume
from reput_cli.produce import command as produce
from reput_protocol.errors import InvalidMessage


@pytest.mark.parametrize("tags", ["a ||", "|| a", "a || || b", " ", ""])
def test_a_subscription_that_leaves_out_a_tag_is_refused(tags: str) -> None:
    result = CliRunner().invoke(consume, ["orders", "--tag", tags])
    assert result.exit_code == 2
    assert "has an empty tag; write tags joined by ||, such as 'a || b'" in result.stderr


def test_a_message_has_one_tag() -> None:
    failed = CliRunner().invoke(produce, ["orders", "body", "--tag", "a ||"]).exception
    assert isinstance(failed, InvalidMessage)
    assert "a message has one tag" in str(failed)
