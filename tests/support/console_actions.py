"""A broker with access control for tests of the console's actions, and a case for each row of the table of actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from reput_broker.access.model import User, Users
from reput_broker.access.user_file import UserFile
from reput_broker.background import BackgroundBroker
from reput_broker.config.model import BrokerConfig
from reput_broker.console.actions import ACTIONS
from reput_client.blocking import Admin, Credentials, Message, Producer, TransactionProducer
from reput_protocol.codes import TransactionState
from reput_protocol.errors import GroupNotFound, TopicNotFound
from reput_protocol.rights import rule_of
from support.browser import Page
from support.console_scene import STORE
from support.dead_letters import send_and_give_up

SECRET: Final = "a-secret-of-a-test-0123"
MAY: Final = User(
    "may",
    SECRET,
    rules=(
        rule_of("topic:*", ["read", "write", "admin"]),
        rule_of("group:*", ["read", "admin"]),
        rule_of("cluster", ["admin", "describe"]),
    ),
)
"""Has every right that an action needs, but changes no users."""
SEES: Final = User(
    "sees",
    SECRET,
    rules=(rule_of("topic:*", ["read"]), rule_of("group:*", ["describe"]), rule_of("cluster", ["describe"])),
)
"""Sees everything and changes nothing."""
NOTHING: Final = User("nothing", SECRET)
ADMINISTRATOR: Final = "admin"
"""The administrator of the configuration, who changes users."""


class World:
    """The broker, a client of it that may everything, and what was made in it."""

    def __init__(self, broker: BackgroundBroker, admin: Admin, stranger: Producer) -> None:
        assert broker.http_address is not None
        self.broker = broker
        self.http_address = broker.http_address
        self.admin = admin
        self.stranger = stranger
        self.transactions: dict[str, str] = {}
        self.message_id = ""
        self.delayed_id = ""

    def address_of_stranger(self) -> str:
        """Return the address of the only connection of a producer."""
        (client,) = [client for client in self.admin.list_clients() if client.role == "producer"]
        return client.address


class Case(NamedTuple):
    """One action.

    Attributes:
        values: what its form is filled with; functions are called with the world.
        page: of the browser, with its button.
        preview: a part of what the dry run says.
        done: a part of what is said after it; "" if there is an obstacle, which `preview` is then a part of.
        happened: whether it was done; called before and after.
        row: a text of the row with its button, on pages with a button in each row.
        leads_to: the page that is shown afterwards, if it is another one.
    """

    values: Mapping[str, Any]
    page: str
    preview: str
    done: str
    happened: Callable[[World], bool]
    row: str = ""
    leads_to: str = ""

    def values_in(self, world: World) -> dict[str, Any]:
        """Return the values."""
        return {name: value(world) if callable(value) else value for name, value in self.values.items()}


def _has_topic(name: str, queues: int | None = None) -> Callable[[World], bool]:
    def has(world: World) -> bool:
        try:
            config = world.admin.topic_config(name)
        except TopicNotFound:
            return False
        return queues is None or config.read_queue_nums == queues

    return has


def _has_group(name: str) -> Callable[[World], bool]:
    def has(world: World) -> bool:
        try:
            world.admin.group_config(name)
        except GroupNotFound:
            return False
        return True

    return has


def _is_at(queue_id: int, offset: int) -> Callable[[World], bool]:
    return lambda world: world.admin.committed_offset("billing", "orders", queue_id) == offset


def _no(check: Callable[[World], bool]) -> Callable[[World], bool]:
    return lambda world: not check(world)


def _rules(subject: str, text: str) -> Callable[[World], bool]:
    from reput_client.users import rule_text

    return lambda world: text in map(rule_text, world.admin.list_users().rules_of(subject) or ())


def _intake(world: World) -> bool:
    return not world.admin.describe_broker()["checks"].get("intake", {"ok": True})["ok"]


def _is_open(topic: str) -> Callable[[World], bool]:
    return lambda world: bool(world.admin.list_transactions(topic=topic))


def _stranger_is_gone(world: World) -> bool:
    return not any(client.role == "producer" for client in world.admin.list_clients())


_ORDERS = "topics/orders"
_BILLING = "groups/billing"
CASES: Final[Mapping[str, Case]] = {
    "create-topic": Case(
        {"topic": "invoices", "queues": "3", "permission": "rw"}, "topics",
        "topic invoices is created with 3 queues", "topic invoices is there", _has_topic("invoices", 3),
    ),
    "send-message": Case(
        {"topic": "orders", "body": "by hand\n", "tag": "paid", "keys": "hand-1 hand-2", "properties": "a=1\nb=2",
         "queue": "3"}, _ORDERS,
        "a message of 8 bytes is sent to orders, queue 3", "is stored: queue 3, offset 4",
        lambda world: [(found.raw_body, found.tag, found.keys, found.get_property("b"))
                       for found in world.admin.find_messages("orders", "hand-2").messages]
        == [(b"by hand\n", "paid", ("hand-1", "hand-2"), "2")],
    ),
    "alter-topic": Case(
        {"topic": "orders", "queues": "6"}, _ORDERS,
        "topic orders: 4 queues become 6", "topic orders is changed", _has_topic("orders", 6),
    ),
    "delete-topic": Case(
        {"topic": "old"}, "topics/old",
        "topic old: 2 queues with 1 message", "topic old is deleted", _no(_has_topic("old")), leads_to="topics",
    ),
    "create-group": Case(
        {"group": "shipping", "retry_max": "3"}, "groups",
        "group shipping is created: enabled, at most 3 retries", "group shipping is created", _has_group("shipping"),
    ),
    "reset-group": Case(
        {"group": "billing", "topic": "orders", "to": "2", "queue": "0"}, _BILLING,
        "1 message delivered again", "group billing continues there, in 1 queue of orders", _is_at(0, 2),
    ),
    "rewind-group": Case(
        {"group": "billing", "topic": "orders", "message": lambda world: world.message_id}, _BILLING,
        "3 messages delivered again", "group billing continues there", _is_at(1, 0),
    ),
    "skip-group": Case(
        {"group": "billing", "topic": "orders", "queue": "2", "count": "1"}, _BILLING,
        "1 message skipped", "group billing continues there", _is_at(2, 4),
    ),
    "alter-group": Case(
        {"group": "billing", "retry_max": "5", "consume": "no"}, _BILLING,
        "group billing: disabled, at most 5 retries", "group billing is changed",
        lambda world: world.admin.group_config("billing").retry_max_times == 5,
    ),
    "delete-group": Case(
        {"group": "old"}, "groups/old",
        "group old: 0 members online", "group old is deleted", _no(_has_group("old")), leads_to="groups",
    ),
    "replay-dead-letters": Case(
        {"group": "failing", "offsets": "0"}, "dead-letters/failing",
        "1 dead letter is sent: 1 to failed", "1 dead letter was sent: 1 to failed",
        lambda world: world.admin.replays("failing").replayed == 1,
    ),
    "cancel-delayed": Case(
        {"topic": "emails", "key": lambda world: world.delayed_id}, "delayed",
        "1 delayed message for emails", "1 cancelled", lambda world: not world.admin.list_delayed(topic="emails"),
        row="emails",
    ),
    "commit-transaction": Case(
        {"topic": "paid", "transaction": lambda world: world.transactions["paid"]}, "transactions",
        "is delivered to consumers of paid", "is committed", _no(_is_open("paid")), row="paid",
    ),
    "roll-back-transaction": Case(
        {"topic": "lost", "transaction": lambda world: world.transactions["lost"]}, "transactions",
        "is never delivered to consumers of lost", "is rolled back", _no(_is_open("lost")), row="lost",
    ),
    "disconnect-client": Case(
        {"address": World.address_of_stranger}, "clients",
        "the connection of the producer at", "is closed", _stranger_is_gone, row="producer",
    ),
    "set-intake": Case(
        {"intake": "readonly"}, "cluster",
        "is read-only from now on", "the broker is read-only", _intake,
    ),
    "promote-broker": Case(
        {"broker_id": "1"}, "cluster", "has no election", "", lambda _: False,
    ),
    "create-user": Case(
        {"user": "carol", "secret": SECRET, "groups": "readers"}, "users",
        "user carol is created, and has the rules of readers", "user carol is created",
        lambda world: "carol" in world.admin.list_users().users,
    ),
    "alter-user": Case(
        {"user": "bob", "enabled": "no"}, "users",
        "user bob is disabled", "user bob is changed",
        lambda world: not world.admin.list_users().users["bob"].is_enabled, row="bob",
    ),
    "delete-user": Case(
        {"user": "gone"}, "users",
        "user gone is deleted with 0 rules", "user gone is deleted",
        lambda world: "gone" not in world.admin.list_users().users, row="gone",
    ),
    "allow": Case(
        {"subject": "bob", "rights": "read,write", "resource": "topic:bobs*"}, "users",
        "bob: allow read, write on topic:bobs*", "the rules of bob are changed",
        _rules("bob", "allow read, write on topic:bobs*"),
    ),
    "deny": Case(
        {"subject": "@readers", "rights": "read", "resource": "topic:secret", "sources": "10.0.0.0/8"}, "users",
        "deny read on topic:secret from 10.0.0.0/8", "the rules of @readers are changed",
        _rules("@readers", "deny read on topic:secret from 10.0.0.0/8"),
    ),
    "remove-rules": Case(
        {"subject": "dave", "resource": "group:daves"}, "users",
        "1 rule of dave is removed", "rules of dave are removed", _no(_rules("dave", "allow read on group:daves")),
    ),
}  # fmt: skip
assert CASES.keys() == ACTIONS.keys(), "each action has a case"


def log_in(page: Page, user: str, secret: str = SECRET) -> None:
    """Fill the form of the page of the login, and send it."""
    page.until("!document.getElementById('submit').disabled")
    page.run(f"document.getElementById('user').value = {json.dumps(user)}")
    page.run(f"document.getElementById('secret').value = {json.dumps(secret)}")
    page.click("#submit")


def user_of(name: str) -> str:
    """Return the user who may do an action."""
    return ADMINISTRATOR if ACTIONS[name].is_of_users else MAY.name


@contextmanager
def world(data_dir: Path) -> Iterator[World]:
    """A broker with users, topics, groups, a delayed message, two open transactions and a connected producer."""
    file = UserFile(data_dir / "access" / "users.json")
    dave = User("dave", SECRET, rules=(rule_of("group:daves", ["read"]),))
    file.change(lambda users: users.with_group("readers", [rule_of("topic:*", ["read"])]))
    for user in (MAY, SEES, NOTHING, dave, User("bob", SECRET), User("gone", SECRET)):
        file.change(partial(Users.with_user, user=user))
    config = BrokerConfig(
        data_dir=data_dir, port=0, http_port=0, store=STORE, access={"enabled": True, "admin_secret": SECRET}
    )
    credentials = Credentials(ADMINISTRATOR, SECRET)
    with (
        BackgroundBroker(config) as broker,
        Admin(broker.address, credentials=credentials) as admin,
        Producer(broker.address, group="shop", credentials=credentials) as stranger,
    ):
        found = World(broker, admin, stranger)
        _fill(found, credentials)
        yield found


def _fill(world: World, credentials: Credentials) -> None:
    admin = world.admin
    for topic, queues in (("orders", 4), ("old", 2), ("emails", 1), ("paid", 1), ("lost", 1), ("kept", 1)):
        admin.create_topic(topic, queues=queues)
    for group in ("billing", "old"):
        admin.put_group(_config(group))
    with TransactionProducer(
        world.broker.address, group="tellers", check=lambda _: TransactionState.UNKNOWN, credentials=credentials
    ) as producer:
        for queue_id in range(4):
            for number in range(4):
                sent = producer.send(Message("orders", b"%d" % number), queue_id=queue_id)
                if (queue_id, number) == (1, 0):
                    world.message_id = sent.offset_message_id
            admin.commit_offset("billing", "orders", queue_id, 3)
        producer.send(Message("old", b"x"))
        world.delayed_id = producer.send(Message("emails", b"later", keys=["mail-1"], delay_s=3600.0)).message_id
        producer.send(Message("kept", b"later", keys=["mail-2"], delay_s=3600.0))
        for topic in ("paid", "lost", "kept"):
            half = producer.send_in_transaction(Message(topic, b"half"), lambda _: TransactionState.UNKNOWN)
            world.transactions[topic] = half.transaction_id
    world.stranger.send(Message("emails", b"now"))
    with as_user(credentials):
        send_and_give_up(world.broker.address, "failing", "failed", [b"x"])


@contextmanager
def as_user(credentials: Credentials) -> Iterator[None]:
    """Have clients without a user of their own use this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPUT_USER", credentials.user)
        patch.setenv("REPUT_SECRET", SECRET)
        yield


def _config(group: str) -> Any:
    from reput_protocol.commands.group import SubscriptionGroupConfig

    return SubscriptionGroupConfig(group)
