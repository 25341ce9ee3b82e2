"""The example applications work as documented."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from support.broker_process import BrokerProcess, free_port
from support.schema_registry import schema_registry
from support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.process


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "store") as process:
        yield process


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


def test_a_shop_uses_the_given_broker(broker: BrokerProcess) -> None:
    # Without the story for which the broker has to ask about a transaction: that takes its defaults half a minute.
    shop = _run("--orders", "4", "--server", broker.address)
    assert shop.returncode == 0, shop.stdout + shop.stderr


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "order_service"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=170)


def test_the_faststream_application_posts_each_bill(broker: BrokerProcess) -> None:
    command = [sys.executable, str(EXAMPLES / "faststream_app.py")]
    environment = {**os.environ, "BROKER": broker.address}
    application = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert application.returncode == 0, application.stdout + application.stderr
    posted = [line.split(", message ")[0] for line in application.stdout.splitlines() if ", message " in line]
    assert sorted(posted) == ["order 1: 19.99 EUR", "order 2: 39.98 EUR", "order 3: 59.97 EUR"]


@pytest.mark.parametrize("with_registry", [False, True], ids=["a schema", "a registry"])
def test_the_typed_orders_are_billed_and_the_other_is_set_aside(
    broker: BrokerProcess, with_registry: bool
) -> None:
    with schema_registry() as registry:
        environment = {**os.environ, "BROKER": broker.address}
        if with_registry:
            environment["REGISTRY"] = registry.url
        command = [sys.executable, str(EXAMPLES / "typed_values.py")]
        application = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert application.returncode == 0, application.stdout + application.stderr
    billed, _, tables = application.stdout.partition("customer, orders, EUR:\n")
    assert len(billed.splitlines()) == 3
    by_customer, _, others = tables.partition("not orders:\n")
    assert by_customer.splitlines() == ["Ada, 2, 20.0", "Alan, 1, 3.0"]
    assert len(others.splitlines()) == 1


def test_the_fastapi_application_bills_what_is_ordered(broker: BrokerProcess) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    port = url.rpartition(":")[2]
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", port, "fastapi_app:app"]

    def bills() -> object:
        with suppress(URLError):  # until it has started
            return json.load(urlopen(f"{url}/bills", timeout=10.0))
        return None

    for number in (7, 8):  # the second time, what was billed the first time is not billed again
        application = subprocess.Popen(command, env={**os.environ, "BROKER": broker.address})
        try:
            wait_until(lambda: bills() == {})
            order = f'{{"number": {number}, "cents": 1999}}'.encode()
            json_body = {"Content-Type": "application/json"}
            with urlopen(Request(f"{url}/orders", order, json_body), timeout=10.0) as answer:
                assert answer.status == 202
                assert len(json.load(answer)) == 32
            wait_until(bills)
            assert bills() == {str(number): "19.99 EUR"}
        finally:
            application.terminate()
            status = application.wait(30.0)
        assert status in (0, -signal.SIGTERM)
