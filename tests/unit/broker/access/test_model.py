"""Which rules decide, and which rights stand in for those on system topics."""

from __future__ import annotations

import pytest

from reput_broker.access.model import Account, Need, User, Users
from reput_protocol.rights import Kind, Right, Rule, rule_of

SECRET = "a-secret-of-alice"


def account(*rules: Rule, is_admin: bool = False) -> Account:
    return Account(User("alice", SECRET, is_admin), rules)


def allow(resource: str, *rights: str) -> Rule:
    return rule_of(resource, list(rights))


def deny(resource: str, *rights: str) -> Rule:
    return rule_of(resource, list(rights), is_denial=True)


@pytest.mark.parametrize(
    ("rules", "name", "permitted"),
    [
        ([], "orders", False),
        ([allow("topic:orders", "read")], "orders", True),
        ([allow("topic:orders", "read")], "orders2", False),
        ([allow("topic:orders", "write")], "orders", False),
        ([allow("group:orders", "read")], "orders", False),
        ([allow("topic:ord*", "read")], "orders", True),
        ([allow("topic:*", "read")], "orders", True),
        ([allow("topic:*", "read"), deny("topic:ord*", "read")], "orders", False),
        ([deny("topic:*", "read"), allow("topic:orders", "read")], "orders", True),
        ([allow("topic:orders", "read"), deny("topic:orders", "read")], "orders", False),
        ([deny("topic:orders", "read"), allow("topic:orders", "read")], "orders", False),
        ([deny("topic:ord*", "read"), allow("topic:or*", "read"), allow("topic:o*", "read")], "orders", False),
    ],
)
def test_the_closest_pattern_decides_and_then_a_denial(rules: list[Rule], name: str, permitted: bool) -> None:
    for order in (rules, rules[::-1]):
        assert account(*order).may(Need(Right.READ, Kind.TOPIC, name)) is permitted


def test_who_may_use_something_may_see_it() -> None:
    for right in ("read", "write", "admin", "describe"):
        assert account(allow("topic:t", right)).may(Need(Right.DESCRIBE, Kind.TOPIC, "t"))
    assert account(allow("cluster", "replicate")).may(Need(Right.DESCRIBE, Kind.CLUSTER))
    both = account(allow("topic:t", "read"), deny("topic:t", "write"))
    assert both.may(Need(Right.DESCRIBE, Kind.TOPIC, "t"))


@pytest.mark.parametrize(
    ("right", "topic", "rules", "permitted"),
    [
        ("read", "%RETRY%g", [allow("group:g", "read")], True),
        ("write", "%RETRY%g", [allow("group:g", "read")], True),
        ("read", "%RETRY%g", [allow("topic:*", "read", "write")], False),
        ("read", "%DLQ%g", [allow("group:g", "read")], True),
        ("write", "%DLQ%g", [allow("group:g", "read")], False),
        ("read", "RMQ_SYS_TRANS_HALF_TOPIC", [allow("topic:*", "read")], False),
        ("read", "SCHEDULE_TOPIC_XXXX", [allow("topic:*", "read")], False),
        ("read", "rmq_sys_wheel_timer", [allow("topic:*", "read")], False),
        ("read", "RMQ_SYS_TRACE_TOPIC", [allow("topic:*", "read")], False),
        ("read", "rmq_sys_wheel_timer", [allow("cluster", "admin")], True),
        ("write", "RMQ_SYS_TRACE_TOPIC", [], False),
        ("write", "RMQ_SYS_TRACE_TOPIC", [allow("topic:*", "describe"), deny("topic:t", "write")], False),
        ("write", "RMQ_SYS_TRACE_TOPIC", [allow("cluster", "admin")], False),
        ("write", "RMQ_SYS_TRACE_TOPIC", [allow("topic:t", "write")], True),
        ("write", "RMQ_SYS_TRACE_TOPIC", [allow("group:g", "read")], True),
        ("describe", "TBW102", [], True),
        ("admin", "TBW102", [allow("topic:*", "admin")], False),
        ("write", "BenchmarkTest", [allow("topic:Bench*", "write")], True),
    ],
)
def test_topics_with_messages_of_others_need_other_rights(
    right: str, topic: str, rules: list[Rule], permitted: bool
) -> None:
    assert account(*rules).permits(right, "topic", topic) is permitted


@pytest.mark.parametrize(
    ("sources", "host", "concerns"),
    [
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "11.0.0.1", False),
        (["10.0.0.7", "2001:db8::/32"], "10.0.0.7", True),
        (["10.0.0.7", "2001:db8::/32"], "2001:db8::1", True),
        (["10.0.0.7"], "::ffff:10.0.0.7", True),
        (["::ffff:10.0.0.0/104"], "10.0.0.7", True),
        (["::/0"], "10.0.0.7", False),
        ([], "10.0.0.7", True),
    ],
)
def test_a_rule_with_addresses_concerns_their_requests_only(sources: list[str], host: str, concerns: bool) -> None:
    permission = rule_of("topic:t", ["read"], sources=sources)
    assert account(permission).seen_from(host).permits("read", "topic", "t") is concerns
    denied = account(allow("topic:t", "read"), rule_of("topic:t", ["read"], is_denial=True, sources=sources))
    assert denied.seen_from(host).permits("read", "topic", "t") is not concerns


def test_an_unknown_address_has_no_limited_permission_and_every_denial() -> None:
    sources = ["10.0.0.7"]
    assert not account(rule_of("topic:t", ["read"], sources=sources)).seen_from("?").permits("read", "topic", "t")
    denied = account(allow("topic:t", "read"), rule_of("topic:t", ["read"], is_denial=True, sources=sources))
    assert not denied.seen_from("?").permits("read", "topic", "t")


def test_an_administrator_may_do_everything() -> None:
    assert account(is_admin=True).may(Need(Right.ADMIN, Kind.CLUSTER))


def test_decisions_are_kept_within_a_bound() -> None:
    alice = account(allow("topic:a*", "read"))
    for number in range(10_000):
        assert alice.may(Need(Right.READ, Kind.TOPIC, f"a{number}"))
    assert len(alice._kept) <= 4096


@pytest.mark.parametrize(
    ("resource", "rights"),
    [
        ("topic:", ["read"]),
        ("topic:a*b", ["read"]),
        ("topic", ["read"]),
        ("queue:a", ["read"]),
        ("cluster:a", ["admin"]),
        ("cluster", ["read"]),
        ("group:g", ["write"]),
        ("topic:t", ["replicate"]),
        ("topic:t", ["fly"]),
        ("topic:t", []),
    ],
)
def test_a_rule_that_means_nothing_is_refused(resource: str, rights: list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        rule_of(resource, rights)


def test_a_user_has_the_rules_of_its_groups() -> None:
    users = Users(groups={"billing": (allow("topic:b", "read"),)})
    users = users.with_user(User("alice", SECRET, groups=("billing",)))
    assert users.rules_of(users.users["alice"]) == (allow("topic:b", "read"),)
    with pytest.raises(ValueError, match="billing"):
        users.without_group("billing")
