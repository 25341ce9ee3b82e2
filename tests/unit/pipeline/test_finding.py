"""The conditions of the job `find`: text, patterns and case in bodies of any bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from reput_broker.store.base.results import Block
from reput_pipeline.jobs.find import Conditions
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.pipeline_jobs import Run
from support.stores import BORN_HOST, T0, dispatch_all, opened, small_options

BODIES = ["Müller".encode(), "MÜLLER & Söhne".encode(), b"M\xfcller", b"\xff\xfe M\xc3\xbcller", b"", "Ωμ".encode()]
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


def test_a_born_time_after_the_year_9999_is_a_number(run: Run, tmp_path: Path) -> None:
    """One such message ended the job."""
    store = opened(small_options(tmp_path / "s"))
    for born_ms in (T0 + 1, T0 * 1000):
        block = bytearray(encode_put_block([Message("T", b"x")], "T", 0, born_ms))
        store.put_one(Block(block, "T", 0, 1, BORN_HOST))
    dispatch_all(store)
    assert store.close()
    ran = run("find", "--path", tmp_path / "s", "--text", "x", "--master", "none")
    assert ran.code == 0, ran.err
    assert [json.loads(line)["bornTimestamp"] for line in ran.lines] == [T0 + 1, T0 * 1000]
