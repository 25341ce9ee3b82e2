"""The fixtures that other projects' tests use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client import blocking
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_client.errors import ConnectFailed
from reput_protocol.errors import ReputError

USER_TEST = """
import pytest
from reput_client.blocking import Message, Producer

numbers = []

@pytest.mark.parametrize("n", range(3))
def test_each_has_a_broker_of_its_own(reput_broker, n):
    with Producer(reput_broker.address) as producer:
        assert producer.send(Message("orders", b"42"), queue_id=0).queue_offset == 0
    numbers.append(reput_broker.address)
    assert len(set(numbers)) == n + 1 or n > 0

def test_one_that_fails(reput_broker):
    assert False, "on purpose"

def test_and_the_next_test_has_a_broker_too(reput_broker):
    assert reput_broker.is_running
"""


def test_messages_go_in_and_out(reput_broker: BackgroundBroker) -> None:
    with Producer(reput_broker.address) as producer:
        receipt = producer.send(Message("orders", b"42"))
    with PullConsumer(reput_broker.address, group="g") as consumer:
        (message,) = consumer.pull("orders", receipt.queue_id, 0).messages
    assert message.body == b"42"
    assert reput_broker.http_address is None


@pytest.mark.trio
async def test_under_trio(reput_broker: BackgroundBroker) -> None:
    from reput_client import Producer

    async with Producer(reput_broker.address) as producer:
        assert (await producer.send(Message("orders", b"42"))).queue_offset == 0


def test_it_is_stopped_and_started_again(reput_broker: BackgroundBroker) -> None:
    with Producer(reput_broker.address) as producer:
        producer.send(Message("orders", b"42"), queue_id=0)
    address = reput_broker.address
    reput_broker.stop()
    assert not reput_broker.is_running
    with pytest.raises(ConnectFailed), Admin(address, timeout_s=0.5, connect_timeout_s=0.5):
        pass
    reput_broker.start()
    assert reput_broker.address == address
    with Admin(address) as admin:
        assert admin.max_offset("orders", 0) == 1
    with pytest.raises(RuntimeError, match="runs already"):
        reput_broker.start()


NewBroker = Callable[..., BackgroundBroker]


def test_more_than_one(new_reput_broker: NewBroker) -> None:
    first, second = new_reput_broker(), new_reput_broker(broker_name="broker-b", http_port=0)
    assert first.address != second.address
    assert first.data_dir != second.data_dir
    assert second.http_address is not None
    with Admin(second.address) as admin:
        assert "broker-b" in str(admin.cluster_info())


def test_one_directory_after_another(new_reput_broker: NewBroker) -> None:
    first = new_reput_broker()
    with pytest.raises(ReputError, match="in use"):
        new_reput_broker(data_dir=first.data_dir)
    with Producer(first.address) as producer:
        producer.send(Message("orders", b"42"), queue_id=0)
    first.stop()
    with Admin(new_reput_broker(data_dir=first.data_dir).address) as admin:
        assert admin.max_offset("orders", 0) == 1


class TestOptions:
    """A class of tests may have its own options."""

    @pytest.fixture
    def reput_broker_config(self) -> dict[str, Any]:
        return {"store": {"flush": "sync"}, "topics": {"default_queues": 7}}

    def test_are_those_of_the_configuration_file(self, reput_broker: BackgroundBroker) -> None:
        assert reput_broker.config.store.flush == "sync"
        assert reput_broker.config.store.commit_log_file_size == 16 << 20, "and the others stay"
        with blocking.Producer(reput_broker.address) as producer, Admin(reput_broker.address) as admin:
            producer.send(Message("orders", b"42"))
            assert admin.topic_config("orders").write_queue_nums == 7


def test_a_mistake_in_an_option_is_named(new_reput_broker: NewBroker) -> None:
    with pytest.raises(ValueError, match="flush"):
        new_reput_broker(store={"flush": "sometimes"})


def test_in_another_project(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(USER_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t")]
    result = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "4 passed" in result.stdout, result.stdout + result.stderr
    assert "1 failed" in result.stdout
    assert "on purpose" in result.stdout


def test_it_costs_nothing_where_nobody_asks(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n    assert not {'trio', 'numpy', 'pydantic'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:trio"]
    command += ["-p", "no:hypothesispytest", "-p", "no:anyio"]
    result = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in result.stdout, result.stdout + result.stderr
