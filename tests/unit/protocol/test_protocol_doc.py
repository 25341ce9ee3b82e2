"""The tables of docs/protocol.md match the code."""

from __future__ import annotations

import re
from pathlib import Path

from reput_protocol.codes import ResponseCode
from reput_protocol.errors import ErrorCode, error_from_response

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_the_table_of_refusals_is_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\d+) (\w+) \| (yes|no) \| `(\w+)` \|", PAGE, re.MULTILINE)
    expected = [
        (
            str(error.number),
            error.name,
            str(int(error.response_code)),
            error.response_code.name,
            "yes" if error.retryable else "no",
            type(error_from_response(error.response_code, f"{error.name}: text", {})).__name__,
        )
        for error in ErrorCode
    ]
    assert rows == expected


def test_every_response_code_is_listed() -> None:
    listed = re.findall(r"`(\d+)`\s(\w+)", PAGE.split("## Response codes")[1].split("## JSON bodies")[0])
    assert listed == [(str(int(code)), code.name) for code in ResponseCode]
