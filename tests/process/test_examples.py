"""The example applications work as documented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker_process import BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.process


def test_every_order_of_the_shop_ends_as_it_should() -> None:
    shop = _run("--orders", "6", "--remind-after", "1")
    assert shop.returncode == 0, shop.stdout + shop.stderr
    assert "every order ended as it should" in shop.stdout
    for order in (
        "order-0000 . paid",
        "order-0002 . declined . given up",
        "order-0003 . sold out . no such order",
    ):
        words = order.split(" . ")
        assert any(all(word in line for word in words) for line in shop.stdout.splitlines()), order


def test_a_shop_uses_the_given_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as broker:
        # Without the story for which the broker has to ask about a transaction: that takes its defaults half a minute.
        shop = _run("--orders", "4", "--server", broker.address)
    assert shop.returncode == 0, shop.stdout + shop.stderr


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "order_service"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=170)
