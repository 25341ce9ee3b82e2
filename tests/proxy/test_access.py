"""Users of the proxy: signatures are checked here, and rights by the broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client import TLS
from reput_protocol.errors import ReputError
from reput_protocol.proxy_process import ProxySpan
from reput_proxy import messaging_pb2 as pb
from reput_proxy.rejections import Rejected
from reput_proxy.server import ProxyOptions, serving
from reput_proxy.spans import Spans
from reput_proxy.upstream import BrokerOptions
from reput_proxy.users import Users, UsersUnreadable
from support.broker_process import free_port
from support.grpc_client import (
    Code,
    Telemetry,
    client_of,
    consumer_settings,
    in_asyncio,
    message,
    producer_settings,
    proxy_of,
    signed_by,
)
from support.tls_files import make_tls_files
from support.waiting import until

ALICE, BOB = "the-secret-of-alice", "the-secret-of-bob"


def rule(resource: str, *rights: str) -> dict[str, object]:
    return {"resource": resource, "rights": [*rights]}


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    path = tmp_path / "users.json"
    users = {
        "alice": {"secret": ALICE, "rules": [rule("topic:orders", "read", "write"), rule("group:billing", "read"),
                  rule("group:secret", "read"), rule("group:secret", "describe") | {"deny": True}]},
        "bob": {"secret": BOB, "rules": [rule("topic:orders", "read")]},
        "carol": {"secret": ALICE, "enabled": False},
    }  # fmt: skip
    path.write_text(json.dumps({"version": 1, "users": users, "groups": {}}))
    path.chmod(0o600)
    return path


@pytest.fixture
def guarded(tmp_path: Path, users_file: Path) -> Any:
    config = BrokerConfig.model_validate(
        {
            "data_dir": tmp_path / "data",
            "port": 0,
            "http_port": None,
            "access": {"enabled": True, "file": str(users_file)},
            "transactions": {"timeout": "1s", "check_interval": "500ms"},
        }
    )
    with BackgroundBroker(config) as broker:
        yield broker.address


def change_secret_of_alice(path: Path, secret: str) -> None:
    path.write_text(path.read_text().replace(f'"{ALICE}"', f'"{secret}"', 1))


def remove_alice(path: Path) -> None:
    path.write_text(path.read_text().replace('"alice"', '"alina"', 1))


def send_request(topic: str) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(messages=[message(topic, b"x", "ID")])


@in_asyncio
async def test_a_call_without_a_valid_signature_makes_no_span(guarded: str, users_file: Path) -> None:
    """Its client could otherwise fill traces: a sampled context counts whatever the ratio is."""
    found: list[ProxySpan] = []
    sampled = {"traceparent": f"00-{32 * 'a'}-{16 * 'b'}-01"}
    async with (
        proxy_of(guarded, users=users_file, spans=Spans(found.append, 1.0)) as running,
        client_of(running.address, metadata=sampled) as nameless,
        client_of(running.address, metadata={**sampled, **signed_by("alice", BOB)}) as wrong,
        client_of(running.address, metadata={**sampled, **signed_by("alice", ALICE)}) as alice,
    ):
        for client in (nameless, wrong):
            sent = await client.call("SendMessage", send_request("orders"))
            assert sent.status.code == Code.UNAUTHORIZED
            status, _ = await client.receive("orders", "billing")
            assert status.code == Code.UNAUTHORIZED
        assert found == []
        await alice.call("SendMessage", send_request("orders"))
        assert len(found) == 1


@in_asyncio
async def test_each_request_has_the_rights_of_its_user(guarded: str, users_file: Path) -> None:
    async with (
        proxy_of(guarded, users=users_file) as running,
        client_of(running.address, metadata=signed_by("alice", ALICE)) as alice,
        client_of(running.address, metadata=signed_by("bob", BOB)) as bob,
    ):
        assert (await alice.call("SendMessage", send_request("orders"))).status.code == Code.OK
        assert (await bob.call("SendMessage", send_request("orders"))).status.code == Code.FORBIDDEN
        assert (await alice.call("SendMessage", send_request("other"))).status.code == Code.FORBIDDEN
        [got] = await alice.receive_all("orders", "billing", 1)
        status, _ = await bob.receive("orders", "billing")
        assert status.code == Code.FORBIDDEN
        # A handle is no right: bob has it, and may still not settle the message.
        answer = await bob.ack("billing", got)
        assert answer.status.code == Code.FORBIDDEN
        assert (await alice.ack("billing", got)).status.code == Code.OK
        # Whether this group consumes in order is not told, and must not be guessed.
        status, _ = await alice.receive("orders", "secret")
        assert status.code == Code.FORBIDDEN


@in_asyncio
async def test_another_user_with_the_same_client_id_has_no_part_in_its_messages(guarded: str, users_file: Path) -> None:
    async with (
        proxy_of(guarded, users=users_file) as running,
        client_of(running.address, metadata=signed_by("alice", ALICE)) as alice,
        client_of(running.address, metadata=signed_by("bob", BOB)) as bob,
    ):
        stream = Telemetry(alice)
        await stream.settle(consumer_settings("billing", "orders"))
        await alice.call("SendMessage", send_request("orders"))
        [got] = await alice.receive_all("orders", "billing", 1, auto_renew=True)
        await bob.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
        await bob.ack("billing", got)
        assert len(running.proxy.renewals) == 1
        assert (await alice.ack("billing", got)).status.code == Code.OK


@in_asyncio
async def test_it_is_ready_while_a_broker_answers_one_of_its_users(guarded: str, users_file: Path) -> None:
    async with proxy_of(guarded, users=users_file) as running:
        assert await running.proxy.is_ready()
    async with proxy_of(f"127.0.0.1:{free_port()}", users=users_file) as running:
        with pytest.raises(ReputError):
            await running.proxy.is_ready()


@in_asyncio
async def test_a_transaction_is_begun_and_ended_with_the_rights_of_its_user(guarded: str, users_file: Path) -> None:
    async with (
        proxy_of(guarded, users=users_file) as running,
        client_of(running.address, metadata=signed_by("alice", ALICE)) as alice,
        client_of(running.address, metadata=signed_by("bob", BOB)) as bob,
    ):
        [half] = await alice.send(message("orders", b"x", "ID", message_type=pb.TRANSACTION))
        given = pb.SendMessageRequest(messages=[message("orders", b"x", "ID2", message_type=pb.TRANSACTION)])
        assert (await bob.call("SendMessage", given)).status.code == Code.FORBIDDEN
        request = pb.EndTransactionRequest(
            topic=pb.Resource(name="orders"), transaction_id=half.transaction_id, resolution=pb.COMMIT
        )
        assert (await bob.call("EndTransaction", request)).status.code == Code.FORBIDDEN
        assert (await alice.call("EndTransaction", request)).status.code == Code.OK
        await alice.receive_all("orders", "billing", 1)


@in_asyncio
async def test_a_new_secret_does_not_end_what_its_user_has_under_way(guarded: str, users_file: Path) -> None:
    """Messages were not renewed any more, and open transactions not checked, until the next one was sent."""
    secret = "the-new-secret-of-alice"
    async with (
        proxy_of(guarded, users=users_file) as running,
        client_of(running.address, metadata=signed_by("alice", ALICE)) as before,
        client_of(running.address, "client-2", metadata=signed_by("alice", secret)) as after,
    ):
        renewals = running.proxy.renewals
        renewals._invisible_s, renewals._ahead_s, renewals.invisible_ms = 6.0, 5.8, 6000
        await Telemetry(before).settle(consumer_settings("billing", "orders"))
        await before.send(message("orders", b"x", "ID"))
        await before.receive_all("orders", "billing", 1, auto_renew=True)
        await before.send(message("orders", b"open", "ID2", message_type=pb.TRANSACTION))
        change_secret_of_alice(users_file, secret)
        assert running.proxy.users is not None
        running.proxy.users.refresh()
        old = running.proxy.upstream("alice", ALICE)
        producer = Telemetry(after)
        await producer.settle(producer_settings("orders"))
        assert running.proxy.upstream("alice", secret) is not old
        await until(lambda: not old.transactions.topics)
        [held] = renewals._held.values()
        handle = held.delivery.receipt_handle
        await until(lambda: held.delivery.receipt_handle != handle)
        assert (await producer.read()).recover_orphaned_transaction_command.message.body == b"open"


@in_asyncio
async def test_a_user_that_is_gone_leaves_its_brokers(
    guarded: str, users_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its transactions sent heartbeats for ever, which the broker rejected; it delays an address with so many."""
    async with (
        proxy_of(guarded, users=users_file) as running,
        client_of(running.address, metadata=signed_by("alice", ALICE)) as alice,
    ):
        renewals = running.proxy.renewals
        renewals._invisible_s, renewals._ahead_s, renewals.invisible_ms = 6.0, 5.0, 6000
        await Telemetry(alice).settle(consumer_settings("billing", "orders"))
        await alice.send(message("orders", b"x", "ID"))
        await alice.receive_all("orders", "billing", 1, auto_renew=True)
        await alice.send(message("orders", b"open", "ID2", message_type=pb.TRANSACTION))
        old = running.proxy.upstream("alice", ALICE)
        remove_alice(users_file)
        await until(lambda: old.session.closed)
        assert not old.transactions.topics
        await until(lambda: not renewals)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@in_asyncio
async def test_a_request_that_is_not_signed_by_a_user_is_rejected(guarded: str, users_file: Path) -> None:
    async with proxy_of(guarded, users=users_file) as running:
        for metadata in (
            {},
            signed_by("alice", BOB),
            signed_by("nobody", ALICE),
            signed_by("carol", ALICE),
            {**signed_by("alice", ALICE), "x-mq-date-time": "another"},
            {"authorization": "Basic abc", "x-mq-date-time": "now"},
        ):
            async with client_of(running.address, metadata=metadata) as client:
                answer = await client.call("SendMessage", send_request("orders"))
                assert answer.status.code == Code.UNAUTHORIZED
                status, _ = await client.receive("orders", "billing")
                assert status.code == Code.UNAUTHORIZED
                stream = Telemetry(client)
                with pytest.raises(grpc.aio.AioRpcError):
                    await stream.settle(producer_settings("orders"))
                # The error is that of the write if the proxy has ended the call before it.
                assert await stream.call.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_new_secret_counts_without_a_restart(tmp_path: Path, users_file: Path) -> None:
    users = Users(users_file)
    signed = signed_by("alice", "another-secret-of-alice")
    with pytest.raises(Rejected):
        users.check(signed["authorization"], signed["x-mq-date-time"])
    users_file.write_text(users_file.read_text().replace(ALICE, "another-secret-of-alice"))
    users.refresh()
    assert users.check(signed["authorization"], signed["x-mq-date-time"])[0] == "alice"


def test_a_file_that_others_may_read_or_that_is_not_valid_is_an_error(users_file: Path) -> None:
    users_file.chmod(0o644)
    with pytest.raises(UsersUnreadable, match="chmod 600"):
        Users(users_file)
    users_file.chmod(0o600)
    users_file.write_text("{")
    with pytest.raises(UsersUnreadable, match="not a file of users"):
        Users(users_file)


def test_tls_on_both_sides(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    config = BrokerConfig.model_validate(
        {
            "data_dir": tmp_path / "data",
            "port": 0,
            "http_port": None,
            "tls": {"mode": "required", "cert": str(files.broker)},
        }
    )

    async def work(address: str) -> None:
        options = ProxyOptions(
            brokers=BrokerOptions(address, TLS(ca=str(files.ca))), port=0, tls_cert=files.broker, tls_key=files.broker
        )
        trusting = grpc.ssl_channel_credentials(files.ca.read_bytes())
        async with serving(options) as running, client_of(running.address, credentials=trusting) as client:
            assert (await client.call("SendMessage", send_request("orders"))).status.code == Code.OK

    with BackgroundBroker(config) as broker:
        asyncio.run(work(broker.address))
