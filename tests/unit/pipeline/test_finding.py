"""The conditions of the job `find`: text, patterns and case in bodies of any bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from reput_pipeline.jobs.find import Conditions

BODIES = [
    "Müller".encode(),
    "MÜLLER & Söhne".encode(),
    b"M\xfcller",
    b"\xff\xfe M\xc3\xbcller",
    b"",
    "Ωμ".encode(),
]
TABLE = pa.table({"body": pa.array(BODIES, pa.binary())})


@pytest.mark.parametrize(
    ("text", "is_pattern", "ignore_case", "rows"),
    [
        ("M.ller", True, False, [0, 3]),  # a dot is a letter of any number of bytes
        ("^m.ller", True, True, [0, 1]),
        ("MÜLLER", False, False, [1]),
        ("MÜLLER", False, True, [0, 1, 3]),
        ("ΩΜ", False, True, [5]),
        (r"^\pL+$", True, False, [0, 5]),
        ("ller", False, False, [0, 2, 3]),
        ("", False, False, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_patterns_and_case_are_of_letters_and_not_of_bytes(
    text: str, is_pattern: bool, ignore_case: bool, rows: list[int]
) -> None:
    found = Conditions(text=text, is_pattern=is_pattern, ignore_case=ignore_case).rows(TABLE)
    assert found["body"].to_pylist() == [BODIES[row] for row in rows]
