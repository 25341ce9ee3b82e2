"""A broker, the processes of the clients, and names that no other check uses."""

from __future__ import annotations

import itertools
import ssl
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from interop.catalogue import CLIENTS
from interop.client import DEADLINE_S, Client, Inbox, Letter, NotReceived
from interop.guards import Guard
from interop.proxy import Proxy, apache_proxy, reput_proxy
from reput_client.blocking import Admin, Consumer, Message, Producer, ReceivedMessage
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import CreateTopicHeader
from reput_protocol.wire.header import HeaderType, Value
from support.broker_process import BrokerProcess
from support.raw_client import RawClient

SETTINGS = {
    "REPUT_TRANSACTIONS__TIMEOUT": "1s",
    "REPUT_TRANSACTIONS__CHECK_INTERVAL": "1s",
    # RocketMQ's proxy makes itself known as a producer only after some seconds.
    "REPUT_TRANSACTIONS__CHECK_MAX": "600",
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
    "REPUT_NAME_PORT": "off",
}


class Sent(NamedTuple):
    """A message in `Scene.exchange`."""

    sender: str
    letter: Letter
    ids: tuple[str, str]
    """The unique id, and the one that encodes the place in the log: clients show either."""


class Scene:
    """A broker on a directory, and clients of it by name, each started on first use.

    Args:
        directory: exists; the store, the clients' homes and all logs are below.
        guard: what closes the broker.
        proxy: whose proxy gRPC clients connect to, "reput" or "apache".
    """

    def __init__(self, directory: Path, guard: Guard | None = None, proxy: str = "reput") -> None:
        self.directory = directory
        self.guard = guard or Guard()
        self.broker = BrokerProcess(directory / "store", environment={**SETTINGS, **self.guard.broker})
        self.broker.start()
        try:
            self.broker.wait_ready(DEADLINE_S)
        except BaseException:
            self.broker.kill()
            raise
        self.inbox = Inbox()
        self._numbers = itertools.count(1)
        self._clients: dict[tuple[str, int], Client] = {}
        self._starts: dict[tuple[str, int], threading.Lock] = {}
        self._lock = threading.Lock()
        self._proxy: Proxy | None = None
        self._proxy_kind = proxy
        self._exchange: tuple[str, dict[bytes, Sent]] | None = None
        self._exchange_lock = threading.Lock()

    @property
    def address(self) -> str:
        """The broker's."""
        return self.broker.address

    def client(self, name: str, number: int = 1, environment: Mapping[str, str] | None = None) -> Client:
        """A process of a client; with another number, another one. A new one gets the variables."""
        with self._lock:
            starts = self._starts.setdefault((name, number), threading.Lock())
        with starts:
            found = self._clients.get((name, number))
            if found is None:
                kind = CLIENTS[name]
                home = self.directory / f"{name}-{number}-{next(self._numbers)}"
                address = self.proxy().address if kind.through_proxy else self.address
                variables = {**self.guard.clients, **(environment or {})}
                found = Client(name, kind.command(), address, home, self.inbox, variables)
                self._clients[name, number] = found
            return found

    def proxy(self) -> Proxy:
        """The proxy in front of the broker."""
        with self._lock:
            if self._proxy is None:
                home = self.directory / "proxy"
                if self._proxy_kind == "reput":
                    self._proxy = reput_proxy(self.address, home, self.guard.proxy_arguments)
                else:
                    self._proxy = apache_proxy(self.address, home, self.guard.proxy_settings, self.guard.proxy)
            return self._proxy

    def kill(self, name: str, number: int) -> None:
        """Kill a process of a client; the next `client` starts another one."""
        self._clients.pop((name, number)).kill()

    def name(self, prefix: str) -> str:
        """A name that no check has used."""
        return f"{prefix}-{next(self._numbers)}"

    def topic(self, queues: int = 4, kind: str = "MIXED", prefix: str = "topic") -> str:
        """A new topic. By its attribute RocketMQ's proxy takes messages of a type, or of all."""
        topic = self.name(prefix)
        header = CreateTopicHeader(topic, queues, queues, attributes=f"+message.type={kind}")
        self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext(HeaderType.MSGPACK))
        return topic

    def ask(self, code: int, ext: Mapping[str, Value] | None = None, body: bytes = b"") -> None:
        """Have the broker do something, which it must not refuse."""
        context = None
        if self.guard.tls is not None:
            context = ssl.create_default_context(cafile=self.guard.tls.ca)
        with RawClient(self.address, credentials=self.guard.credentials, tls=context) as client:
            answer, _ = client.request(code, ext, body)
        assert answer.code == 0, answer

    def producer(self) -> Producer:
        """Our own client."""
        return Producer(self.address, timeout_s=60.0, tls=self.guard.tls, credentials=self.guard.credentials)

    def consumer(self, group: str, topic: str) -> Consumer:
        """Our own client, which reads a topic from its start."""
        return Consumer(
            self.address,
            group=group,
            topic=topic,
            start="earliest",
            timeout_s=60.0,
            tls=self.guard.tls,
            credentials=self.guard.credentials,
        )

    def admin(self) -> Admin:
        """Our own client."""
        return Admin(self.address, timeout_s=60.0, tls=self.guard.tls, credentials=self.guard.credentials)

    def send(self, topic: str, letters: Sequence[Letter], queue_ids: Sequence[int] | None = None) -> None:
        """Send messages with our own client, one after the other."""
        with self.producer() as producer:
            for number, letter in enumerate(letters):
                producer.send(
                    Message(
                        topic,
                        letter.body,
                        tag=letter.tag,
                        keys=letter.keys.split(" ") if letter.keys else (),
                        properties=letter.properties,
                    ),
                    queue_id=None if queue_ids is None else queue_ids[number],
                )

    def collect(self, topic: str, count: int) -> list[ReceivedMessage]:
        """The first messages of a topic, as our own client gets them; in order within each queue.

        Raises:
            NotReceived: there are not so many in time.
        """
        found: list[ReceivedMessage] = []
        group = self.name("observer")
        with self.consumer(group, topic) as consumer:
            while len(found) < count:
                message = consumer.take(DEADLINE_S)
                if message is None:
                    raise NotReceived(f"{len(found)} of {count} messages of {topic} within {DEADLINE_S:.0f} s")
                message.ack()
                found.append(message)
        return found

    def restart_broker(self) -> None:
        """Kill the broker, and start it again at the same address."""
        self.broker.kill()
        self.broker.start()
        self.broker.wait_ready(DEADLINE_S)

    def exchange(self) -> tuple[str, dict[bytes, Sent]]:
        """A topic in which every client has sent messages, and these by their bodies."""
        with self._exchange_lock:
            if self._exchange is None:
                topic = self.topic()
                letters = {letter.body: (name, letter) for name in self.senders for letter in odd_letters(name)}
                for name in self.senders:
                    self.client(name).produce(topic, odd_letters(name))
                stored = self.collect(topic, len(letters))
                self._exchange = (
                    topic,
                    {
                        message.body: Sent(*letters[message.body], (message.message_id, message.offset_message_id))
                        for message in stored
                    },
                )
            return self._exchange

    senders: Sequence[str] = ()
    """The clients that send in `exchange`."""

    def close(self) -> None:
        """End all processes."""
        for client in self._clients.values():
            client.kill()
        if self._proxy is not None:
            self._proxy.kill()
        self.broker.kill()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def odd_letters(name: str) -> list[Letter]:
    """Messages whose fields some clients could get wrong."""
    sender = name.encode()
    return [
        Letter(b"plain from " + sender, "paid", "order-1", {"colour": "red"}),
        Letter(sender + bytes(range(256)), "été", "k-1 k-2 ключ", {"größe": "超大", "blank": "a b", "sign": "=&;"}),
        Letter("zwölf Boxkämpfer 漢字 🐟 ".encode() + sender),
        Letter(b"x" * 100_000 + sender, "large", "large-" + name, {f"p{n}": "v" * n for n in range(1, 40)}),
    ]
