"""Rules as they travel in RocketMQ's form."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from reput_protocol.commands.users import AclInfo, PolicyEntry, subject_name, subject_text
from reput_protocol.rights import RIGHTS_OF, Kind, rule_of


@pytest.mark.parametrize("kind", Kind)
def test_every_rule_arrives_as_it_left(kind: Kind) -> None:
    rights = sorted(RIGHTS_OF[kind])
    resource = "cluster" if kind is Kind.CLUSTER else f"{kind}:orders*"
    rules = [
        rule_of(resource, some, is_denial=is_denial, sources=sources)
        for some in chain.from_iterable(combinations(rights, count + 1) for count in range(len(rights)))
        for is_denial in (False, True)
        for sources in ((), ("10.0.0.7", "2001:db8::/32"))
    ]
    assert AclInfo.from_json(AclInfo.of("alice", rules).to_json()).rules() == rules


def test_actions_of_rocketmq_are_rights() -> None:
    entry = PolicyEntry("Topic:t", ["Pub", "create", "UPDATE", "Delete"], ["192.168.1.0/24"], "ALLOW")
    assert entry.rule() == rule_of("topic:t", ["write", "admin"], sources=["192.168.1.0/24"])
    assert PolicyEntry("Cluster:c", ["All"]).rule("c") == rule_of("cluster", RIGHTS_OF[Kind.CLUSTER])


def test_a_subject_is_a_user_or_a_group_of_rules() -> None:
    for name, text in (("alice", "User:alice"), ("@ops", "Group:ops")):
        assert (subject_text(name), subject_name(text)) == (text, name)
    assert subject_name("user:alice") == "alice"
    for wrong in ("alice", "Role:alice", ""):
        with pytest.raises(ValueError, match="not a user"):
            subject_name(wrong)
