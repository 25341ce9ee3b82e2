"""Clients and brokers that speak TLS, over real sockets."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from faststream.security import BaseSecurity, SASLPlaintext

from reput_broker import Broker, BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_broker.name_server import NameServer
from reput_cli.failures import worded
from reput_client import TLS, Admin, Credentials, Message, Producer, PullConsumer, blocking
from reput_client.errors import ConnectFailed, PermissionDenied, TlsRefused
from reput_client.faststream import ReputBroker
from reput_pipeline.jobs.run import failure_of
from reput_pipeline.sink.options import parse_sink_options
from reput_pipeline.sink.task import brokers_of
from reput_pipeline.source.live import connect, plan_batch
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.source.ranges import NOTHING_NARROWED
from reput_pipeline.spark.option_reader import OptionReader, read_tls
from reput_protocol.exit_codes import ExitCode
from reput_protocol.rights import rule_of
from support.faces import Face, scenario
from support.tls_files import TlsFiles, make_tls_files

SMALL = {"commit_log_file_size": "16MiB", "index": False}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def address(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that serves only clients with a certificate."""
    config = BrokerConfig(
        data_dir=tmp_path_factory.mktemp("broker"),
        port=0,
        store=SMALL,
        tls=files.server_options(client_cert="required"),
    )
    with BackgroundBroker(config) as broker:
        yield broker.address


@scenario
async def test_messages_of_every_size_come_back(face: Face, files: TlsFiles, address: str) -> None:
    tls = TLS(ca=files.ca, cert=files.client)
    bodies = [b"", b"x" * 70_000, bytes(range(256)) * 12_000]

    async with face.Producer(address, tls=tls) as producer, face.PullConsumer(address, group="g", tls=tls) as consumer:
        for body in bodies:
            receipt = await producer.send(Message(face.name, body))
            result = await consumer.pull(face.name, queue_id=receipt.queue_id, offset=receipt.queue_offset)
            assert result.messages[0].body == body


@pytest.mark.parametrize(
    ("ca", "cert", "says"),
    [
        ("other_ca", "client", "signed by an authority that is not trusted; give the file"),
        ("ca", None, "requires a certificate, and none was given; give a certificate"),
        ("ca", "foreign", "does not trust the authority of this side's certificate"),
        ("ca", "expired", "the certificate of this side has expired; renew it"),
    ],
)
@scenario
async def test_a_refusal_names_cause_and_remedy_and_nothing_was_sent(
    face: Face, files: TlsFiles, address: str, ca: str, cert: str | None, says: str
) -> None:
    tls = TLS(ca=getattr(files, ca), cert=None if cert is None else getattr(files, cert))

    with pytest.raises(TlsRefused, match=says):
        async with face.Producer(address, tls=tls) as producer:
            await producer.send(Message("refused", b"x"))


@scenario
async def test_a_client_without_tls_learns_that_it_needs_it(face: Face, address: str) -> None:

    with pytest.raises(TlsRefused, match="takes encrypted connections only; connect with TLS"):
        async with face.Producer(address) as producer:
            await producer.send(Message("refused", b"x"))


def test_the_source_and_the_sink_of_spark(files: TlsFiles, address: str) -> None:
    given = {"nameServer": address, "tlsCa": str(files.ca), "tlsCert": str(files.client)}
    reader = connect(parse_source_options({**given, "subscribe": "t"}, streaming=False))
    assert reader.brokers() == ["broker-a"]
    reader.close()
    assert brokers_of(parse_sink_options(given, streaming=False)) == ["broker-a"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tlsCa": "other_ca", "tlsCert": "client"}, "not trusted; set the option tlsCa to the file of"),
        ({"tlsCa": "ca"}, "none was given; set the options tlsCert and tlsKey to"),
        ({"tlsCa": "ca", "tlsCert": "foreign"}, "does not trust .*; set the options tlsCert and tlsKey to"),
        ({}, "encrypted connections only; set the option tlsCa to .*, or tls to true"),
        ({"tlsCa": "client", "tlsCert": "ca"}, "TLS: .*; correct the options tlsCa, tlsCert, tlsKey and"),
    ],
)
def test_errors_of_source_sink_and_jobs_name_their_options(
    files: TlsFiles, address: str, options: dict[str, str], says: str
) -> None:
    given = {"nameServer": address, **{name: str(getattr(files, file)) for name, file in options.items()}}
    with pytest.raises(TlsRefused, match=says):
        plan_batch(parse_source_options({**given, "subscribe": "t"}, streaming=False), NOTHING_NARROWED)
    with pytest.raises(TlsRefused, match=says):
        brokers_of(parse_sink_options(given, streaming=False))
    with pytest.raises(TlsRefused) as refused, blocking.Admin(address, tls=read_tls(OptionReader(given))) as admin:
        admin.list_topics()
    failure = failure_of(refused.value)
    assert (failure.code, re.search(says, failure.text) is not None) == (ExitCode.CANNOT_CONNECT, True)


def test_a_command_shows_one_remedy_the_right_one(address: str) -> None:
    with pytest.raises(TlsRefused) as refused, blocking.Admin(address) as admin:
        admin.list_topics()
    failure = worded(refused.value)
    assert (failure.code, failure.remedy) == (ExitCode.CANNOT_CONNECT, None)
    assert "reput --tls-ca FILE" in failure.what


def context_of(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.client)
    return context


async def faststream_receives_what_it_publishes(broker: ReputBroker) -> None:
    received: list[str] = []
    arrived = anyio.Event()

    @broker.subscriber("letters", group="readers", start="earliest")
    async def handle(body: str) -> None:
        received.append(body)
        arrived.set()

    with anyio.fail_after(60):
        async with broker:
            await broker.publish("hello", "letters")
            await broker.start()
            assert await broker.ping()
            await arrived.wait()
    assert received == ["hello"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "options",
    [
        lambda files: {"tls": TLS(ca=files.ca, cert=files.client)},
        lambda files: {"security": BaseSecurity(ssl_context=context_of(files))},
    ],
    ids=["tls", "ssl_context"],
)
@pytest.mark.anyio
async def test_faststream(
    options: Callable[[TlsFiles], dict[str, Any]], files: TlsFiles, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    address = new_reput_broker(tls=files.server_options(client_cert="required")).address
    await faststream_receives_what_it_publishes(ReputBroker(address, **options(files)))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.anyio
async def test_faststream_with_a_user(
    encrypted: bool, files: TlsFiles, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    """The user has the rights that an application needs, and no others."""
    server = {"tls": files.server_options()} if encrypted else {}
    secret = "secret-of-the-administrator"
    address = new_reput_broker(access={"enabled": True, "admin_secret": secret}, **server).address
    tls = TLS(ca=files.ca) if encrypted else None
    async with Admin(address, tls=tls, credentials=Credentials("admin", secret)) as admin:
        await admin.create_topic("letters", queues=1)
        await admin.create_user("alice", "secret-of-alice-0")
        rules = [rule_of("topic:letters", ["read", "write"]), rule_of("group:readers", ["read"])]
        await admin.put_rules("alice", rules)

    def broker(secret: str) -> ReputBroker:
        context = ssl.create_default_context(cafile=files.ca) if encrypted else None
        return ReputBroker(address, security=SASLPlaintext("alice", secret, ssl_context=context))

    await faststream_receives_what_it_publishes(broker("secret-of-alice-0"))
    stranger = broker("another-secret-00")
    with pytest.raises(PermissionDenied):
        async with stranger:
            await stranger.publish("hello", "letters")
    with pytest.raises(TlsRefused if encrypted else PermissionDenied):
        async with ReputBroker(address) as nobody:
            await nobody.publish("hello", "letters")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_faststream_trusts_the_authorities_of_the_system_by_default(address: str) -> None:
    with pytest.raises(TlsRefused, match="authority that is not trusted"):
        async with ReputBroker(address, security=BaseSecurity(use_ssl=True)):
            pass


@pytest.mark.trio
async def test_a_port_without_tls(files: TlsFiles, tmp_path: Path) -> None:
    async with Broker(BrokerConfig(data_dir=tmp_path, port=0, store=SMALL)) as broker:
        with pytest.raises(TlsRefused, match="does not use TLS; connect without TLS"):
            async with Producer(broker.address, tls=TLS(ca=files.ca)):
                pass


@pytest.mark.trio
async def test_a_silent_port_is_given_up_in_time(files: TlsFiles) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    async with listener:
        with pytest.raises(ConnectFailed, match="not completed the TLS handshake in time"):
            async with Producer(address, tls=TLS(ca=files.ca), connect_timeout_s=0.05):
                pass


@pytest.mark.trio
async def test_a_cluster_in_which_everything_is_encrypted(files: TlsFiles, tmp_path: Path) -> None:
    """Registration, replication and HTTP, each with certificates on both sides."""
    tls = files.server_options(client_cert="required", connect=True)
    of_names = files.server_options(client_cert="required")

    def config(name: str, **more: object) -> BrokerConfig:
        return BrokerConfig(data_dir=tmp_path / name, port=0, ha_port=0, store=SMALL, tls=tls, **more)

    names = NameServer(BrokerConfig(data_dir=tmp_path / "n", port=0, http_port="off", tls=of_names))
    async with names:
        followed = [names.address]
        async with Broker(config("a", name_servers=followed, http_port=0)) as master:
            slave_options = {"broker_id": 1, "ha": {"role": "SLAVE"}, "name_servers": followed}
            async with (
                Broker(config("b", **slave_options)) as slave,
                Producer(master.address, tls=TLS(ca=files.ca, cert=files.client)) as producer,
            ):
                await producer.send(Message("t", b"x"))
                end = master.store.max_physical_offset
                with trio.fail_after(60):
                    while slave.store.max_physical_offset < end:
                        await trio.sleep(0.05)
                    while names.routes.registered < 2 or "t" not in names.routes.topics():
                        await trio.sleep(0.05)
                async with PullConsumer(names.address, group="g", tls=TLS(ca=files.ca, cert=files.client)) as consumer:
                    assert len(await consumer.queues("t")) == 4
                assert master.http_address is not None
                await check_http(master.http_address, files)


async def check_http(address: str, files: TlsFiles) -> None:
    trusting = ssl.create_default_context(cafile=files.ca)

    def ask(url: str) -> int:
        try:
            with urllib.request.urlopen(url, timeout=20, context=trusting) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    assert await trio.to_thread.run_sync(ask, f"https://{address}/readyz") == 200
    assert await trio.to_thread.run_sync(ask, f"http://{address}/readyz") == 400
