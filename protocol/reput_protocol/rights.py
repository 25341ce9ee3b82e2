"""Rights of access control, and the rules that permit or deny them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

IPAddress: TypeAlias = IPv4Address | IPv6Address
"""An IPv4 or IPv6 address."""
Network: TypeAlias = IPv4Network | IPv6Network
"""A range of addresses."""

_MAPPED: Final = IPv6Network("::ffff:0:0/96")
ANY: Final = "*"
"""The end of a pattern that is the beginning of names; alone it matches every name."""


class Right(StrEnum):
    """What a rule permits.

    `READ`: consume; of a group, be its member and commit its offsets. `WRITE`: send to a topic. `ADMIN`: create, alter
    and delete; of a group, set its offsets too. `DESCRIBE`: see queues, offsets, members, and figures; each of the
    others includes it. `REPLICATE`, of the cluster only: be one of its brokers.
    """

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    DESCRIBE = "describe"
    REPLICATE = "replicate"


class Kind(StrEnum):
    """What a rule is about."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


RIGHTS_OF: Final[Mapping[Kind, frozenset[Right]]] = {
    Kind.TOPIC: frozenset({Right.READ, Right.WRITE, Right.ADMIN, Right.DESCRIBE}),
    Kind.GROUP: frozenset({Right.READ, Right.ADMIN, Right.DESCRIBE}),
    Kind.CLUSTER: frozenset({Right.ADMIN, Right.DESCRIBE, Right.REPLICATE}),
}
"""The rights that exist for each kind."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Permits or denies rights on what a pattern matches.

    Args:
        pattern: a name, or its beginning and `*`; `*` alone matches every name. Of the cluster always `*`.
        sources: of which addresses it concerns requests; empty: of all.

    Raises:
        ValueError: the pattern has a `*` elsewhere, or a right does not exist for the kind.
    """

    kind: Kind
    pattern: str
    rights: frozenset[Right]
    is_denial: bool = False
    sources: tuple[Network, ...] = ()

    def __post_init__(self) -> None:
        if not self.pattern or ANY in self.pattern[:-1]:
            raise ValueError(f"{self.pattern!r} is not a pattern; write a name, or the beginning of names and *")
        if self.kind is Kind.CLUSTER and self.pattern != ANY:
            raise ValueError("a rule about the cluster has the pattern *")
        if not self.rights:
            raise ValueError("a rule has at least one right")
        wrong = self.rights - RIGHTS_OF[self.kind]
        if wrong:
            known = ", ".join(sorted(RIGHTS_OF[self.kind]))
            raise ValueError(f"{self.kind.value} has no right {min(wrong).value!r}; it has {known}")

    @property
    def resource(self) -> str:
        """What it is about: `topic:orders*`."""
        return f"{self.kind.value}:{self.pattern}"

    def specificity(self, name: str) -> int | None:
        """Return how closely the pattern matches a name, None if it does not; a larger number is closer."""
        if self.pattern[-1] != ANY:
            return 1 << 16 if self.pattern == name else None
        return len(self.pattern) if name.startswith(self.pattern[:-1]) else None

    def concerns_source(self, address: IPAddress | None) -> bool:
        """Whether it concerns requests of an address. Of an unknown one, a denial does and a permission does not."""
        if not self.sources:
            return True
        if address is None:
            return self.is_denial
        return any(address in network for network in self.sources)

    def concerns(self, right: Right) -> bool:
        """Whether it permits or denies a right."""
        if right in self.rights:
            return True
        # To read, write, manage or copy something, its user has to see it. A denial concerns what it names only.
        return right is Right.DESCRIBE and not self.is_denial


_KINDS: Final = {kind.value: kind for kind in Kind}
_RIGHTS: Final = {right.value: right for right in Right}


def rule_of(resource: str, rights: Iterable[str], *, is_denial: bool = False, sources: Iterable[str] = ()) -> Rule:
    """Return a rule of its text.

    Args:
        resource: `topic:PATTERN`, `group:PATTERN` or `cluster`.
        rights: names of rights.
        sources: addresses, or networks such as 10.0.0.0/8.

    Raises:
        ValueError: a part is not valid.
    """
    kind, _, pattern = resource.partition(":")
    if kind not in _KINDS:
        raise ValueError(f"{resource!r} is not a resource; write topic:PATTERN, group:PATTERN or cluster")
    if kind == Kind.CLUSTER and not pattern:
        pattern = "*"
    given = tuple(rights)
    for right in given:
        if right not in _RIGHTS:
            raise ValueError(f"{right!r} is not a right; rights are {', '.join(sorted(_RIGHTS))}")
    networks = sorted(map(_network_of, {*sources}), key=str)
    return Rule(_KINDS[kind], pattern, frozenset(_RIGHTS[right] for right in given), is_denial, tuple(networks))


def _network_of(source: str) -> Network:
    """Return the network of a text, IPv4 where it is mapped, as the addresses that it is compared with."""
    network = ip_network(source, strict=False)
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        mapped = network.network_address.ipv4_mapped
        assert mapped is not None, "the network has mapped addresses only"
        return IPv4Network((mapped, network.prefixlen - _MAPPED.prefixlen))
    return network


def source_of(host: str) -> IPAddress | None:
    """Return the address of a connection as rules compare it: IPv4 where it is mapped. None if `host` is none."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
