"""What pages presume of the broker before their commands run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Final

from reput_client import ClientClosed
from reput_client.blocking import Admin, Consumer, Message, Producer, TransactionProducer, TransactionState
from support.dead_letters import give_up
from support.waiting import wait_until

PUT_ASIDE: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "docs/groups.md": {"groups": {"lag_refresh_interval": "1s"}},
    "docs/transactions.md": {"transactions": {"timeout": "1ms", "check_interval": "10ms", "check_max": 1}},
}
"""By page: options of the broker."""


@contextmanager
def delays(address: str, number: int) -> Iterator[None]:
    with Producer(address) as producer:
        for key in ("o-42", "o-43"):
            producer.send(Message("reminders", b"...", delay_s=3600.0, keys=[key]))
    yield


@contextmanager
def groups(address: str, number: int) -> Iterator[None]:
    if number > 0:  # offsets are set while no member is online
        yield
        return
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topic("orders", queues=1)
        producer.send_many("orders", [b"%d" % order for order in range(10)])
        with Consumer(address, group="billing", topic="orders", start="earliest") as member:
            for _ in zip(range(4), member, strict=False):
                pass
        with ExitStack() as stack:
            for _ in range(2):
                member = stack.enter_context(Consumer(address, group="billing", topic="orders"))
                threading.Thread(target=_receive_one, args=(member,)).start()
            wait_until(lambda: all(queue.client_id for queue in admin.describe_group("billing", "orders").queues))
            wait_until(lambda: all(group.lag_age_millis > 0 for group in admin.list_groups()))
            yield


@contextmanager
def transactions(address: str, number: int) -> Iterator[None]:
    def undecided(_message: object) -> TransactionState:
        return TransactionState.UNKNOWN

    with Admin(address) as admin, TransactionProducer(address, group="shop", check=undecided) as producer:
        producer.send_in_transaction(Message("orders", b"42"), undecided)
        wait_until(lambda: PUT_ASIDE in admin.list_topics())
    yield


def _receive_one(member: Consumer) -> None:
    with suppress(ClientClosed):
        next(iter(member), None)


@contextmanager
def retry(address: str, number: int) -> Iterator[None]:
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topic("orders", queues=1)
        admin.create_topic("orders-again", queues=1)
        for order in range(4):
            producer.send(Message("orders", b"%d" % order))
    give_up(address, "billing", "orders", reason="TimeoutError: bank")
    yield


SCENES: Final[dict[str, Callable[[str, int], AbstractContextManager[None]]]] = {
    "docs/delays.md": delays,
    "docs/groups.md": groups,
    "docs/retry.md": retry,
    "docs/transactions.md": transactions,
}
"""By page: called with the broker's address and the number of the block."""
