"""--dry-run of the commands that change something, and the commands for open transactions and connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reput_broker.background import BackgroundBroker
from reput_cli.failures import CommandFailed
from reput_cli.output import rfc3339
from reput_cli.root import root
from reput_client.blocking import Admin, Message, Producer, PullConsumer, TransactionProducer
from reput_client.errors import TransactionEnded
from reput_protocol.codes import TransactionState
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.errors import NotFound


@pytest.fixture
def admin(reput_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Admin]:
    monkeypatch.setenv("REPUT_SERVER", reput_broker.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with Admin(reput_broker.address) as admin:
        yield admin


def run(command: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(root, command.split(), input=typed, catch_exceptions=False)


def said(command: str) -> str:
    done = run(command)
    assert done.exit_code == 0, done.output
    return done.stderr


def test_a_dry_run_says_what_would_change_and_changes_nothing(admin: Admin) -> None:
    admin.create_topic("orders", queues=4)
    admin.put_group(SubscriptionGroupConfig("billing"))
    before = (admin.topic_configs("orders"), admin.group_configs(), admin.list_topics())
    for command, text in (
        ("topic create invoices --queues 3", "topic invoices is created with 3 queues, permission rw"),
        ("topic create orders --queues 4", "topic orders already exists with these settings"),
        ("topic alter orders --queues 2", "queues 2 to 3 of orders can then no longer be read"),
        ("topic alter orders --permission r", "producers can send nothing to it any more"),
        ("topic delete orders", "topic orders: 4 queues with 0 messages"),
        ("group create shipping --retry-max 3", "group shipping is created: enabled, at most 3 retries"),
        ("group alter billing --disable", "group billing: disabled"),
        ("group alter billing --orderly", "are delivered in order to members that consume by POP"),
        ("group alter billing --not-orderly", "group billing has these settings already"),
        ("group alter billing --retry-max 16", "group billing has these settings already"),
        ("group delete billing", "group billing: 0 members online"),
        ("group reset billing orders --to earliest", "group billing continues at another offset in 4 queues"),
        ("broker readonly", "is read-only from now on; before, it takes messages"),
        ("broker drain --off", "takes messages already"),
        ("broker promote 2", "has no election"),
    ):
        assert text in said(f"{command} --dry-run"), command
    assert (admin.topic_configs("orders"), admin.group_configs(), admin.list_topics()) == before
    assert admin.describe_broker()["checks"].get("intake", {"ok": True})["ok"]


def test_a_topic_with_other_settings_is_not_created_again(admin: Admin) -> None:
    admin.create_topic("orders", queues=4)
    with pytest.raises(CommandFailed, match="exists with other settings") as failed:
        run("topic create orders --queues 5")
    assert failed.value.reason == "4 queues, permission rw, type not set"
    assert failed.value.remedy == "reput topic alter orders --queues 5 --permission rw"
    assert "can then no longer be read. Continue?" in run("topic alter orders --queues 2", typed="n\n").stderr
    assert admin.topic_config("orders").read_queue_nums == 4
    assert said("topic alter orders --queues 6 --permission r") == "topic orders has 6 queues, permission r\n"


@pytest.mark.usefixtures("admin")
def test_a_system_topic_is_neither_made_nor_changed() -> None:
    for topic in ("TBW102", "rmq_sys_new", "DefaultCluster", "broker-a"):
        for verb in ("create", "alter --queues 1", "delete"):
            with pytest.raises(CommandFailed, match=f"topic {topic} belongs to the broker") as failed:
                run(f"topic {verb} {topic}")
            assert "alter" not in str(failed.value.remedy)


def test_offsets_are_reset_to_a_message(admin: Admin, reput_broker: BackgroundBroker) -> None:
    admin.create_topic("orders", queues=2)
    admin.create_topic("other", queues=1)
    with Producer(reput_broker.address) as producer:
        ids = [producer.send(Message("orders", b"x"), queue_id=1).offset_message_id for _ in range(4)]
    admin.put_group(SubscriptionGroupConfig("billing"))
    admin.commit_offset("billing", "orders", 1, 4)
    shown = said(f"group reset billing orders --message {ids[1]} --dry-run")
    assert "3 messages delivered again" in shown
    said(f"group reset billing orders --message {ids[1]} --yes")
    assert admin.committed_offset("billing", "orders", 1) == 1
    assert admin.committed_offset("billing", "orders", 0) is None
    with pytest.raises(Exception, match="is in topic orders, not in other"):
        run(f"group reset billing other --message {ids[1]}")


def test_open_transactions_are_listed_and_ended(
    admin: Admin, reput_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("orders", queues=1)
    with TransactionProducer(
        reput_broker.address, group="tellers", check=lambda _: TransactionState.UNKNOWN
    ) as producer:
        ids = [
            producer.send_in_transaction(
                Message("orders", b"%d" % number, keys=[f"o-{number}"]), lambda _: TransactionState.UNKNOWN
            ).transaction_id
            for number in range(3)
        ]
    assert [found.unique_id for found in admin.list_transactions(topic="orders")] == ids
    (found,) = admin.list_transactions(key="o-1")
    assert (found.producer_group, found.topic, found.keys, found.size) == ("tellers", "orders", ["o-1"], 1)
    page = admin.transaction_page(max_transactions=2)
    assert (len(page.transactions), page.open) == (2, 3)
    assert page.cursor is not None
    rest = admin.transaction_page(cursor=page.cursor)
    assert ([each.unique_id for each in rest.transactions], rest.cursor) == (ids[2:], None)
    assert "is delivered to consumers of orders" in said(f"transaction commit orders {ids[0]} --dry-run")
    assert len(admin.list_transactions()) == 3
    monkeypatch.setenv("COLUMNS", "200")
    header, _, row, *_ = run("transaction list --key o-1 -O table").stdout.splitlines()
    assert (header.split()[0], row.split()[0]) == ("STORED_AT", rfc3339(found.store_timestamp))
    assert f'"stored_ms": {found.store_timestamp}' in run("transaction list --key o-1 -O json").stdout
    assert said(f"transaction commit orders {ids[0]}").endswith(f"transaction {ids[0]} committed\n")
    with pytest.raises(CommandFailed, match="was not ended"):
        run(f"transaction rollback orders {ids[1]}", typed="no\n")
    assert run(f"transaction rollback orders {ids[1]}", typed="orders\n").exit_code == 0
    assert [each.unique_id for each in admin.list_transactions()] == ids[2:]
    with PullConsumer(reput_broker.address, group="g") as consumer:
        assert [each.body for each in consumer.pull("orders", 0, 0, wait_s=10.0).messages] == [b"0"]
    with pytest.raises(CommandFailed, match="is open"):
        run(f"transaction commit orders {ids[1]}")
    with pytest.raises(TransactionEnded, match="has been rolled back"):
        admin.end_transaction(found, commit=True)


def test_a_client_is_disconnected_and_connects_again(admin: Admin, reput_broker: BackgroundBroker) -> None:
    with Producer(reput_broker.address) as producer:
        producer.send(Message("orders", b"before"))
        (address,) = [client.address for client in admin.list_clients() if client.role == "producer"]
        assert f"the connection of the producer at {address}" in said(f"client disconnect {address} --dry-run")
        assert said(f"client disconnect {address}") == f"connection of {address} closed\n"
        assert address not in [client.address for client in admin.list_clients()]
        producer.send(Message("orders", b"after"))
    with pytest.raises(NotFound, match="no client is connected"):
        admin.disconnect_client(address)
