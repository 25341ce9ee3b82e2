"""docs/protocol.md lists the codes."""

from __future__ import annotations

import re
from pathlib import Path

from reput_protocol.codes import ResponseCode

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_every_response_code_is_listed() -> None:
    listed = re.findall(r"`(\d+)`\s(\w+)", PAGE.split("## Response codes")[1].split("## JSON bodies")[0])
    assert listed == [(str(int(code)), code.name) for code in ResponseCode]
