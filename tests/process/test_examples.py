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
    for order in ("order-0000 . paid", "order-0002 . declined . given up", "order-0003 . sold out . no such order"):
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
def test_the_typed_orders_are_billed_and_the_other_is_set_aside(broker: BrokerProcess, with_registry: bool) -> None:
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


def test_the_celery_program_bills_and_reminds(broker: BrokerProcess, tmp_path: Path) -> None:
    environment = {**os.environ, "CELERY_URL": f"reput://{broker.address}//"}
    command = [sys.executable, "-m", "celery", "--workdir", str(EXAMPLES), "-A", "celery_shop", "worker"]
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen([*command, "-P", "threads"], env=environment, stdout=log, stderr=log)
    try:
        program = [sys.executable, str(EXAMPLES / "celery_shop.py")]
        ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr + (tmp_path / "worker.log").read_text()
        assert ended.stdout.splitlines() == ["billed 3003 cents", "order 1 is paid", "order 7 is not paid"]
    finally:
        worker.terminate()
        assert worker.wait(30.0) == 0


def test_the_fastapi_service_has_its_invoices_printed_by_workers(broker: BrokerProcess) -> None:
    environment = {**os.environ, "BROKER": broker.address}
    url = f"http://127.0.0.1:{free_port()}"
    places = ["--app-dir", str(EXAMPLES)]
    commands = [
        ["uvicorn", *places, "--port", url.rpartition(":")[2], "fastapi_tasks:app"],
        ["taskiq", "worker", *places, "--workers", "1", "fastapi_tasks:broker"],
    ]
    running = [subprocess.Popen([sys.executable, "-m", *each], env=environment) for each in commands]

    def asked(path: str, method: str) -> str | None:
        with suppress(URLError):  # until it has started, or the invoice is printed
            return str(json.load(urlopen(Request(f"{url}/{path}", method=method), timeout=10.0)))
        return None

    try:
        task_id = wait_until(lambda: asked("invoices/7?delay_s=0.5", "POST"))
        assert wait_until(lambda: asked(f"invoices/{task_id}", "GET")) == "invoice-7.pdf"
    finally:
        for each in running:
            each.terminate()
        ended = [each.wait(30.0) for each in running]
    assert set(ended) <= {0, -signal.SIGTERM}


def test_the_django_shop_confirms_an_order(broker: BrokerProcess, tmp_path: Path) -> None:
    port = free_port()
    environment = {
        **os.environ,
        "SHOP_SERVER": broker.address,
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
        "DJANGO_SETTINGS_MODULE": "webshop.settings",
    }
    manage = [sys.executable, str(EXAMPLES / "django_shop/manage.py")]
    subprocess.run([*manage, "migrate", "--verbosity", "0"], env=environment, check=True, timeout=60)
    commands = (["reput_worker"], ["runserver", "--noreload", f"127.0.0.1:{port}"])
    started = [
        subprocess.Popen([*manage, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    orders = f"http://127.0.0.1:{port}/orders/"

    def answer(request: str | Request) -> dict[str, object]:
        with suppress(URLError), urlopen(request, timeout=5) as response:
            found: dict[str, object] = json.load(response)
            return found
        return {}

    try:
        wait_until(lambda: answer(Request(orders, b"product=lamp")) == {"order": 1})
        expected = {"product": "lamp", "confirmed": True, "task": "SUCCESSFUL", "says": "lamp is on its way"}
        wait_until(lambda: answer(f"{orders}1/") == expected)
        started[0].send_signal(signal.SIGTERM)
        assert started[0].wait(20) == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
