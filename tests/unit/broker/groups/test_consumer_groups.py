"""Members and subscriptions of a group, and members with different subscriptions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.consumer_groups import ConsumerGroups, MemberSubscription
from reput_protocol.codes import MessageModel
from reput_protocol.commands.group import SubscriptionData
from support.member_fakes import channel_of, consumer_data


def test_a_group_is_online_while_it_has_a_member() -> None:
    groups, a, b = ConsumerGroups(), channel_of("a"), channel_of("b")
    assert groups.get("g") is None
    assert groups.register(a, consumer_data("g", "T"), 1.0).is_new
    assert not groups.register(a, consumer_data("g", "T"), 2.0).is_new
    assert groups.register(b, consumer_data("g", "T"), 3.0).is_new
    assert groups.members("g") == [a, b]
    assert list(a.consumer_groups) == ["g"]
    assert groups.unregister("g", a)
    assert not groups.unregister("g", a)
    assert a.consumer_groups == {}
    assert groups.unregister("g", b)
    assert groups.get("g") is None
    assert groups.members("g") == []
    assert groups.subscription("g", "T") is None


def test_a_member_on_two_connections_is_listed_once_and_found_where_it_was_heard_last() -> None:
    groups, old, new = ConsumerGroups(), channel_of("a"), channel_of("a")
    groups.register(old, consumer_data("g", "T"), 1.0)
    groups.register(new, consumer_data("g", "T"), 2.0)
    new.last_heartbeat = 2.0
    online = groups.get("g")
    assert online is not None
    assert online.client_ids() == ["a"]
    assert groups.members("g") == [old, new], "both are told of changes"
    assert groups.find("g", "a") is new
    assert groups.find("g", "b") is None


def test_an_entry_is_replaced_only_by_a_larger_version_and_goes_when_it_is_not_named_any_more() -> None:
    groups, a = ConsumerGroups(), channel_of("a")

    def wanted(topic: str) -> str | None:
        found = groups.subscription("g", topic)
        return None if found is None else found.sub_string

    assert groups.register(a, consumer_data("g", version=5, T="x", U="u"), 0.0).topics_changed
    assert not groups.register(a, consumer_data("g", version=5, T="y", U="u"), 0.0).topics_changed
    assert wanted("T") == "x"
    assert not groups.register(a, consumer_data("g", version=6, T="y", U="u"), 0.0).topics_changed
    assert wanted("T") == "y"
    assert not groups.register(a, consumer_data("g", version=4, T="z", U="u"), 0.0).topics_changed
    assert wanted("T") == "y"
    assert groups.register(a, consumer_data("g", version=6, T="y"), 0.0).topics_changed
    assert wanted("U") is None
    assert groups.of_topic("T") == ["g"]
    assert groups.of_topic("U") == []


def test_how_the_group_consumes_is_as_the_last_heartbeat_says() -> None:
    groups, a = ConsumerGroups(), channel_of("a")
    groups.register(a, consumer_data("g", "T"), 0.0)
    online = groups.get("g")
    assert online is not None
    assert not online.is_broadcasting
    groups.register(a, consumer_data("g", "T", model=MessageModel.BROADCASTING), 0.0)
    assert online.is_broadcasting
    assert not online.has_conflict, "a member may change its mind"


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (consumer_data("g", T="x"), consumer_data("g", T="y"), ("T with 'x'", "T with 'y'")),
        (consumer_data("g", "T"), consumer_data("g", "T", "U"), ("U not at all", "U with '*'")),
        (
            consumer_data("g", "T"),
            consumer_data("g", "T", model=MessageModel.BROADCASTING),
            ("CLUSTERING", "BROADCASTING"),
        ),
    ],
)
def test_members_that_want_different_things_are_noticed(mine: object, theirs: object, words: tuple[str, str]) -> None:
    groups, a, b = ConsumerGroups(), channel_of("a"), channel_of("b")
    assert groups.register(b, theirs, 0.0).conflict is None  # type: ignore[arg-type]
    conflict = groups.register(a, mine, 0.0).conflict  # type: ignore[arg-type]
    assert conflict == (b, *words)
    online = groups.get("g")
    assert online is not None
    assert online.has_conflict
    assert groups.register(a, theirs, 0.0).conflict is None  # type: ignore[arg-type]
    assert not online.has_conflict, "they agree again"


def test_irrelevant_differences_are_not_a_conflict() -> None:
    groups = ConsumerGroups()
    groups.register(channel_of("a"), consumer_data("g", version=1, T="x || y"), 0.0)
    other = consumer_data("g", version=99, T="y||x ")
    other.subscriptions.append(SubscriptionData.of("%RETRY%g", "*", 3))
    assert groups.register(channel_of("b"), other, 0.0).conflict is None


def test_an_expression_that_cannot_be_read_is_compared_as_it_stands() -> None:
    data = consumer_data("g", "T")
    data.subscriptions[0] = replace(data.subscriptions[0], sub_string="||")
    assert MemberSubscription.of(data).filters == (("T", "TAG", "||"),)
    sql = replace(data, subscriptions=[SubscriptionData.of("T", "||", 1, "SQL92")])
    assert MemberSubscription.of(data).difference(MemberSubscription.of(sql)) == ("T by TAG", "T by SQL92")


def test_a_member_that_differs_can_be_kept_out_and_one_that_comes_to_differ_is_dropped() -> None:
    groups, a, b = ConsumerGroups(), channel_of("a"), channel_of("b")

    def register(channel: ClientChannel, expression: str) -> bool:
        data = consumer_data("g", T=expression)
        joined = groups.register(channel, data, 0.0, refuse_conflicts=True)
        return joined.conflict is None

    assert register(a, "x")
    assert not register(b, "y")
    assert groups.members("g") == [a]
    assert register(b, "x")
    assert not register(a, "y")
    assert groups.members("g") == [b]
    assert register(b, "y"), "alone, a member may want what it likes"
    assert register(a, "y")


def test_members_that_were_not_heard_of_for_their_group_expire() -> None:
    groups, a, b = ConsumerGroups(), channel_of("a"), channel_of("b")
    groups.register(a, consumer_data("g", "T"), 10.0)
    groups.register(a, consumer_data("h", "T"), 10.0)
    groups.register(b, consumer_data("g", "T"), 10.0)
    groups.register(a, consumer_data("h", "T"), 50.0)
    groups.register(b, consumer_data("g", "T"), 50.0)
    assert groups.expired(30.0) == [("g", a)]


@pytest.mark.parametrize("refuse", [True, False])
def test_a_client_does_not_differ_from_its_own_earlier_connection(refuse: bool) -> None:
    groups, before, now, other = ConsumerGroups(), channel_of("a"), channel_of("a"), channel_of("b")
    groups.register(before, consumer_data("g", T="x"), 0.0)
    joined = groups.register(now, consumer_data("g", T="y"), 0.0, refuse_conflicts=refuse)
    assert (joined.conflict, joined.is_new) == (None, True)
    assert groups.members("g") == [now]
    assert groups.register(other, consumer_data("g", T="y"), 0.0, refuse_conflicts=refuse).conflict is None
    again = channel_of("a")
    groups.register(again, consumer_data("g", T="y"), 0.0)
    assert groups.members("g") == [now, other, again], "one that asks for the same stays"
    for channel in (now, other, again):
        groups.unregister("g", channel)
    assert (groups.held_bytes, len(groups)) == (0, 0)
