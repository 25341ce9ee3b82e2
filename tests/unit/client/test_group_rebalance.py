"""Queues that a member has to wait for: those that another living member may have."""

from __future__ import annotations

import pytest

from reput_client.consume.group.allocation import circularly
from reput_client.consume.group.rebalance import SETTLED_S, Assignment
from reput_client.transport.routing import Route
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import ConsumerList
from reput_protocol.commands.topic import BrokerData
from reput_protocol.errors import ErrorCode, TopicNotFound
from support.group_parts import ScriptedSession, SharedOffsets, done, member_of
from support.waiting import FakeSeconds


class Group:
    """What member `d` computes from the broker's lists of members."""

    def __init__(self) -> None:
        self.clock = FakeSeconds()
        self._session = ScriptedSession(self.clock)
        self.member = member_of(self._session, "d", SharedOffsets(), queues=8, allocation=circularly)
        self._route = self._session.routes.get("t")
        self._session.fetch_route = self._fetch_route  # type: ignore[method-assign]
        self.fetches = 0
        self._found: list[Assignment] = []
        self.member._rebalancer._on_assignment = self._found.append

    async def _fetch_route(self, topic: str, deadline: float) -> Route:
        del deadline
        self.fetches += 1
        if topic != "t" or self._route is None:
            raise TopicNotFound(ErrorCode.NO_TOPIC)
        return self._route

    def master_is(self, *, there: bool) -> None:
        """What routes say from now on."""
        self._session.brokers.learn(BrokerData("c", "b", {0 if there else 2: "127.0.0.1:1"}))

    def told(self, members: str, *, after_s: float = 60.0) -> Assignment:
        """The group changes, some time after the last change."""
        self.clock.now += after_s
        self._session.replies[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda *_: ConsumerList(list(members)).to_json()
        done(self.member._rebalancer.do())
        return self._found[-1]


@pytest.fixture
def group() -> Group:
    return Group()


def _ids(queues: object) -> list[int]:
    return sorted(queue.queue_id for queue in queues if queue.topic == "t")  # type: ignore[attr-defined]


def test_a_member_that_joins_waits_for_all_that_others_have(group: Group) -> None:
    found = group.told("abcd")
    assert (_ids(found.queues), _ids(found.from_living)) == ([3, 7], [3, 7])


def test_a_single_member_does_not_wait(group: Group) -> None:
    assert _ids(group.told("d").from_living) == []
    group.told("cd")
    assert _ids(group.told("d", after_s=0.1).from_living) == []


def test_routes_without_a_master_are_fetched_again_soon(group: Group) -> None:
    for there, due_s in ((True, 20.0), (False, 1.0), (True, 20.0)):
        group.master_is(there=there)
        group.told("d")
        assert group.member._rebalancer.next_due() == group.clock.now + due_s
        fetched = group.fetches
        group.told("d", after_s=due_s)
        assert group.fetches == fetched + 2, "those of t and of the retry topic, which does not exist yet"


def test_a_retry_topic_that_a_new_master_lacks_is_looked_for(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made by the heartbeats of the members; a group that never had one waits for its first returned message."""

    async def is_gone(topic: str, deadline: float) -> bool:
        return True

    rebalancer, session = group.member._rebalancer, group.member._rebalancer._session
    monkeypatch.setattr(session, "is_gone", is_gone)
    group.told("d")
    assert rebalancer.next_due() == group.clock.now + 20.0
    session.routes.put(Route("%RETRY%g", (), (), ("b",)), group.clock.now)
    waited_s = []
    for _ in range(25):
        group.told("d", after_s=max(1.0, rebalancer.next_due() - group.clock.now))
        waited_s.append(rebalancer.next_due() - group.clock.now)
    assert waited_s == [1.0] * 20 + [20.0] * 5


def test_what_one_had_that_is_gone_is_taken_at_once(group: Group) -> None:
    """Queue 4 was `b`'s, 1 and 7 are `c`'s and `e`'s."""
    group.told("bcde")
    group.told("ecdb")  # unchanged
    found = group.told("cde", after_s=0.1)
    assert (_ids(found.queues), _ids(found.from_living)) == ([1, 4, 7], [1, 7])


def test_what_changes_again_before_all_know_of_the_last_change_is_waited_for(group: Group) -> None:
    group.told("abcd")
    group.told("bcd")
    found = group.told("cd", after_s=SETTLED_S / 2)
    assert (_ids(found.queues), _ids(found.from_living)) == ([1, 3, 5, 7], [1, 3, 7])


def test_what_another_may_have_had_between_two_changes_that_came_as_one_is_waited_for(group: Group) -> None:
    """Queue 1 was `b`'s, then `c`'s when `a` left; then `b` left too."""
    group.told("abcd")
    found = group.told("cd")
    assert (_ids(found.queues), _ids(found.from_living)) == ([1, 3, 5, 7], [1, 5])


def test_what_the_living_may_have_had_since_one_went_and_another_came_is_waited_for(group: Group) -> None:
    group.told("acd")
    found = group.told("ade")
    assert (_ids(found.queues), _ids(found.from_living)) == ([1, 4, 7], [1, 4, 7])
