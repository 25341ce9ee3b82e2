"""Producers with default settings, under trio, asyncio and blocking, survive the end of their broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from outages.scenes import fail_over, stop_or_kill
from support.etcd_process import MISSING

pytestmark = pytest.mark.process


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_no_program_notices_that_its_broker_was_away(tmp_path: Path, how: str) -> None:
    stored, wrong = stop_or_kill(tmp_path, how, 3)
    assert not wrong
    assert stored > 300


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_nor_that_another_broker_is_the_master(tmp_path: Path) -> None:
    stored, wrong = fail_over(tmp_path, 1)
    assert not wrong
    assert stored > 300
