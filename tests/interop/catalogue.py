"""The clients of the suite, its features, and which of them a client does not offer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from interop import building

FEATURES: Final = {
    "send": "send, and wait for the result",
    "send-async": "send with a callback or a future",
    "send-oneway": "send one-way",
    "send-batch": "send a batch",
    "send-compressed": "send a compressed body",
    "send-orderly": "send by ordering key, in order",
    "send-delay-level": "send with a delay level",
    "send-delay-time": "send with an exact delay",
    "recall": "recall a delayed message",
    "send-priority": "send with a priority",
    "send-transaction": "send in a transaction: commit, rollback, check",
    "concurrent": "push consumer, concurrent",
    "orderly": "push consumer, in order",
    "broadcasting": "push consumer, broadcasting",
    "tags": "filter by tags",
    "sql": "filter by SQL92",
    "retry": "redelivery of failed messages",
    "dead-letter": "dead letters",
    "lite-pull": "lite pull consumer",
    "pop": "push consumer, by POP",
    "simple": "simple consumer: receive, acknowledge, change the invisible time",
    "pull": "pull from a queue; read and write the group's offset",
    "request": "send a request, get the reply",
    "reply": "reply to requests",
    "fields": "read the messages of every client: body, keys, tag, properties, id",
    "shared-group": "share a group with another client, every message once",
    "member-killed": "take over from a killed member",
    "broker-killed": "continue after a kill and restart of the broker",
    "tls": "TLS: send and consume",
    "users": "signatures: send and consume as a user, rejections",
    "wrong-secret": "signatures: a wrong secret is an error",
}
"""Rows of the table, by name."""

_JVM: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Duser.home=.",
    "-Djava.io.tmpdir=.",
    "-Dcom.rocketmq.sendMessageWithVIPChannel=false",
)
JAVA_4: Final = "4.9.8"
JAVA_5: Final = "5.5.0"
NODE: Final = "3.12.0"
CPP: Final = "0.4.4"
GO: Final = "2.1.2"
GRPC_PYTHON: Final = "5.1.2"
GRPC_JAVA: Final = "5.1.0"
GRPC_GO: Final = "5.1.3"
GRPC_NODE: Final = "1.0.8"
GRPC_RUST: Final = "5.0.0"


@dataclass(frozen=True, slots=True)
class Kind:
    """A client.

    `command` makes what starts its driver, and raises `Unreachable`; `lacks` has what the client does not offer, and
    `fails` what it offers and does wrong, of which docs/compatibility.md has the reasons. With `bodies_end_at_zero` it
    hands out what of a body is before its first zero byte. With `through_proxy` it is a gRPC client and gets the
    address of a proxy.
    """

    title: str
    version: str
    command: Callable[[], Sequence[str]]
    lacks: frozenset[str] = frozenset()
    fails: frozenset[str] = frozenset()
    bodies_end_at_zero: bool = False
    through_proxy: bool = False


_NOT_IN_GRPC: Final = frozenset(
    {
        *("send-oneway", "send-batch", "send-compressed", "send-delay-level"),
        *("broadcasting", "lite-pull", "pull", "request", "reply"),
    }
)
_ONLY_IN_GRPC: Final = frozenset({"simple", "recall", "send-priority", "pull"})
"""The suite checks these with gRPC clients only, whatever remoting clients offer."""


def _java(driver: str, version: str) -> Callable[[], Sequence[str]]:
    return lambda: [*("java", *_JVM, "-cp", building.java(driver, version)), "reput.interop.Main"]


CLIENTS: Final = {
    "reput": Kind(
        "Reput, Python",
        "",
        lambda: [sys.executable, str(building.SOURCES / "python" / "reput_driver.py")],
        _ONLY_IN_GRPC | {"send-compressed", "lite-pull", "pop"},
    ),
    "java-5": Kind("Java", JAVA_5, _java("java", JAVA_5), _ONLY_IN_GRPC),
    "java-4": Kind("Java", JAVA_4, _java("java", JAVA_4), _ONLY_IN_GRPC | {"send-delay-time", "pop"}),
    "node": Kind(
        "Node, ali-ons",
        NODE,
        lambda: ["node", str(building.node("ali-ons", NODE) / "ali-ons.js")],
        _ONLY_IN_GRPC
        | {
            *("send-oneway", "send-batch", "send-delay-time", "send-transaction"),
            *("orderly", "lite-pull", "pop", "request", "reply", "tls"),
        },
    ),
    "cpp": Kind(
        "C++, by PyPI's rocketmq",
        CPP,
        lambda: [
            str(building.environment(f"cpp-{CPP}", (f"rocketmq=={CPP}",))),
            str(building.SOURCES / "python" / "cpp_driver.py"),
        ],
        _ONLY_IN_GRPC
        | {*("send-delay-time", "send-transaction", "sql"), *("lite-pull", "pop", "request", "reply", "tls")},
        bodies_end_at_zero=True,
    ),
    "go": Kind(
        "Go",
        GO,
        lambda: [str(building.go("remoting", "github.com/apache/rocketmq-client-go/v2", GO))],
        _ONLY_IN_GRPC | {"send-delay-time", "pop", "tls"},
    ),
    "grpc-python": Kind(
        "gRPC, Python",
        GRPC_PYTHON,
        lambda: [
            str(building.environment(f"grpc-{GRPC_PYTHON}", (f"rocketmq-python-client=={GRPC_PYTHON}",))),
            str(building.SOURCES / "python" / "grpc_driver.py"),
        ],
        _NOT_IN_GRPC,
        through_proxy=True,
    ),
    "grpc-java": Kind(
        "gRPC, Java", GRPC_JAVA, _java("grpc-java", GRPC_JAVA), _NOT_IN_GRPC | {"send-priority"}, through_proxy=True
    ),
    "grpc-go": Kind(
        "gRPC, Go",
        GRPC_GO,
        lambda: [str(building.go("grpc", "github.com/apache/rocketmq-clients/golang/v5", GRPC_GO))],
        _NOT_IN_GRPC | {"recall", "send-priority"},
        fails=frozenset({"orderly"}),
        through_proxy=True,
    ),
    "grpc-node": Kind(
        "gRPC, Node",
        GRPC_NODE,
        lambda: ["node", str(building.node("rocketmq-client-nodejs", GRPC_NODE) / "grpc.js")],
        _NOT_IN_GRPC,
        fails=frozenset({"send-priority"}),
        through_proxy=True,
    ),
    "grpc-rust": Kind(
        "gRPC, Rust",
        GRPC_RUST,
        lambda: [str(building.rust("rocketmq", GRPC_RUST))],
        (_NOT_IN_GRPC - {"send-batch"}) | {"concurrent", "orderly", "pop", "simple", "recall", "send-priority"},
        through_proxy=True,
    ),
    "grpc-calls": Kind(
        "gRPC, single calls",
        "",
        lambda: [sys.executable, str(building.SOURCES / "python" / "grpc_calls_driver.py")],
        (_NOT_IN_GRPC - {"send-batch", "pull"})
        | {"send-async", "send-transaction", "orderly", "concurrent", "pop", "tls", "users", "wrong-secret"},
        through_proxy=True,
    ),
}
"""The clients by name. `grpc-calls` is a program of the suite, for calls that no client of RocketMQ makes."""

PROXIES: Final = {"reput": "Reput", "apache": "RocketMQ"}
"""Whose proxies gRPC clients are checked through."""


class Column(NamedTuple):
    """A client, and through which proxy it is checked; "" of remoting clients."""

    client: str
    proxy: str = ""

    @property
    def title(self) -> str:
        """The head of the column."""
        kind = CLIENTS[self.client]
        through = f"through {PROXIES[self.proxy]}'s" if self.proxy else ""
        return " ".join(filter(None, (kind.title, kind.version, through)))


COLUMNS: Final = tuple(
    Column(name, proxy) for name, kind in CLIENTS.items() for proxy in (PROXIES if kind.through_proxy else ("",))
)
"""All that the suite checks."""
