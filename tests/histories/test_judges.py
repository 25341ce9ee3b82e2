"""Each judge, on histories written by hand: one that keeps and one that breaks every rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from histories import terms
from histories.history import Recorder, Tail, read
from histories.judge import stranding
from histories.judge.facts import Facts
from histories.story import Story


@pytest.fixture
def story() -> Story:
    return Story()


# -- losses ------------------------------------------------------------------------------------------------------------


def test_a_history_in_which_every_group_has_handled_everything(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.put("a-s1", terms.STEPS)
    story.handle("s1", "a-s1")
    assert story.broken() == set()


def test_a_message_that_one_group_has_not_handled_is_lost(story: Story) -> None:
    story.put("a-o1")
    story.begin("m1", "a-o1")
    assert story.broken() == {"lost"}


def test_a_put_that_was_acknowledged_must_be_there(story: Story) -> None:
    story.put("a-o1", stored=False)
    assert "acknowledged" in story.broken()


@pytest.mark.parametrize(
    ("level", "taken", "broken"),
    [
        ("page_cache", ["page_cache", "offsets"], set()),
        ("flushed", ["page_cache", "offsets"], {"acknowledged", "lost"}),
        ("flushed", ["page_cache", "flushed", "offsets"], set()),
        ("replicated", ["page_cache", "flushed", "offsets"], {"replicated lost", "lost"}),
    ],
)
def test_an_acknowledgement_holds_as_long_as_its_level_says(
    story: Story, level: str, taken: list[str], broken: set[str]
) -> None:
    story.note("runner", "may-lose", levels=taken)
    story.put("a-o1", stored=False, bystander=False, ack=level)
    rule = "replicated lost" if level == "replicated" else "acknowledged"
    assert story.broken() == {rule, "lost"}, "what happened before the acknowledgement excuses nothing"
    story.note("runner", "may-lose", levels=taken)
    assert story.broken() == broken


@pytest.mark.parametrize(
    ("facts", "excused"),
    [
        ({"stored_by": 500}, True),
        ({"stored_by": 499}, False),
        ({"stored_by": 500, "of": "b1:1"}, True),
        ({"stored_by": 500, "of": "b2:1"}, False),
        ({"stored_by": 500, "kept_by": "b2:1"}, True),
        ({"stored_by": 500, "kept_by": "b1:1"}, False),
    ],
)
def test_what_may_be_lost_is_named_by_when_and_where_it_was_stored(
    story: Story, facts: dict[str, Any], excused: bool
) -> None:
    story.note("b2", "may-lose", levels=["flushed"], **facts)
    story.note("p1", "put", uid="a-o1", topic=terms.ORDERS, kind=terms.OK, wall_ms=0, ack="flushed")
    story.note("p1", "acked", uid="a-o1", queue=0, offset=0, host="b1:1", stored_ms=500)
    assert story.broken() == (set() if excused else {"acknowledged", "lost"})


def test_a_put_that_was_not_answered_may_be_there_or_not(story: Story) -> None:
    story.note("p1", "put", uid="a-o1", topic=terms.ORDERS, kind=terms.OK, wall_ms=0)
    story.note("p1", "unknown", uid="a-o1", error="")
    assert story.broken() == set()
    story.store(terms.ORDERS, "a-o1", terms.OK)
    assert story.broken() == {"lost"}, "but what is there is to be handled"


def test_a_producer_that_deduplicates_repeats_what_has_not_reached_its_level(story: Story) -> None:
    for uid, deduplicated in (("a-o1", False), ("a-o2", True)):
        story.put(uid, deduplicated=deduplicated)
        story.handle("m1", uid)
        assert story.broken() == set()
        story.note("p1", "not-reached", uid=uid, error="")
    assert story.broken() == {"not repeated"}


@pytest.mark.parametrize("ends", [["dies"], ["led"], ["led", "dies"]])
def test_a_producer_may_give_up_in_a_group_without_a_master(story: Story, ends: list[str]) -> None:
    story.note("b1", "leads", epoch=1, address="b1", wall_ms=0)
    for uid, waits_s, broken in (("a-o1", 3.0, set()), ("a-o2", 1.0, {"not repeated"})):
        story.put(uid, deduplicated=True)
        story.handle("m1", uid)
        for what in ends:
            story.note("b1", what, of="b1", wall_ms=0)
            story.wait(waits_s / len(ends))
        story.note("p1", "not-reached", uid=uid, error="")
        assert story.broken() == broken
        story.note("b2", "leads", epoch=2, address="b1", wall_ms=0)


def test_what_was_refused_is_not_there(story: Story) -> None:
    story.put("a-o1", deduplicated=True)
    story.handle("m1", "a-o1")
    story.note("p1", "put", uid="a-o1", topic=terms.ORDERS, kind=terms.OK, wall_ms=0, deduplicated=True)
    story.note("p1", "refused", uid="a-o1", error="")
    assert story.broken() == set(), "it was there before"
    story.note("p1", "put", uid="a-o2", topic=terms.ORDERS, kind=terms.OK, wall_ms=0)
    story.note("p1", "refused", uid="a-o2", error="")
    assert story.broken() == set()
    story.places["a-o2"] = (terms.ORDERS, 1, terms.OK)
    story.store(terms.ORDERS, "a-o2", terms.OK)
    for who in ("m0", "m1"):
        story.handle(who, "a-o2")
    assert story.broken() == {"refused"}


def test_a_message_that_was_never_sent(story: Story) -> None:
    story.store(terms.ORDERS, "a-o1", terms.OK)
    assert story.broken() == {"invented"}


def test_a_process_that_ends_badly_is_named(story: Story) -> None:
    story.note("runner", "failed", process="m1", code=1, log="")
    assert story.broken() == {"process"}


# -- several brokers ---------------------------------------------------------------------------------------------------


def test_an_offset_keeps_its_message(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    place = {"topic": terms.ORDERS, "queue": 0, "offset": 0}
    story.note("r1", "read", uid="a-o1", **place)
    assert story.broken() == set()
    story.note("r2", "read", uid="a-o2", **place)
    assert story.broken() == {"taken back"}


def test_what_a_master_has_handed_out_that_an_operator_has_overruled(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.events = [event for event in story.events if event.what != "acked"]
    story.note("b3", "leads", epoch=2, address="b3", wall_ms=0)
    story.note("r1", "read", uid="a-o2", topic=terms.ORDERS, queue=0, offset=0)
    assert story.broken() == {"taken back"}
    story.note("runner", "overruled", of="b3")
    assert story.broken() == set()
    story.note("r1", "read", uid="a-o2", topic=terms.ORDERS, queue=0, offset=0)
    assert story.broken() == {"taken back"}


def test_what_was_read_is_there_in_the_end(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.note("r1", "read", uid="a-o2", topic=terms.ORDERS, queue=0, offset=1)
    assert story.broken() == {"taken back"}


def test_copies_are_the_same_in_the_end(story: Story) -> None:
    for broker, digest in (("b1", "a"), ("b2", "a")):
        story.note("runner", "log", broker=broker, end=100, digest=digest)
    assert story.broken() == set()
    story.note("runner", "log", broker="b3", end=100, digest="b")
    assert story.broken() == {"logs differ"}


def test_one_broker_leads_in_an_epoch(story: Story) -> None:
    for who, epoch in (("b1", 1), ("b2", 2), ("b2", 2), ("b1", 3)):
        story.note(who, "leads", epoch=epoch, address=who, wall_ms=0)
    assert story.broken() == set()
    story.note("b3", "leads", epoch=3, address="b3", wall_ms=0)
    assert story.broken() == {"two masters"}


def isolate(story: Story, *, new_master: bool = True, other_fault: bool = False) -> None:
    """A master is isolated, another one leads, and some seconds pass."""
    if other_fault:
        story.note("runner", "fault", name="kill-broker 1", how="kill-broker")
    story.note("runner", "fault", name="isolate-master 2", how="isolate-master")
    story.note("runner", "isolated", name="isolate-master 2", of="b1")
    if new_master:
        story.note("b2", "leads", epoch=2, address="b2", wall_ms=0)
    story.wait(stranding.FIND_S)


def end_isolation(story: Story) -> None:
    story.wait(3.0)
    story.note("runner", "healed", name="isolate-master 2")


@pytest.mark.parametrize(("new_master", "other_fault"), [(False, False), (True, True)])
def test_a_producer_may_fail_while_no_master_leads_or_others_are_disturbed(
    story: Story, new_master: bool, other_fault: bool
) -> None:
    isolate(story, new_master=new_master, other_fault=other_fault)
    story.note("p1", "put", uid="a-o1", topic=terms.ORDERS, kind=terms.OK, wall_ms=0)
    story.note("p1", "unknown", uid="a-o1", error="")
    end_isolation(story)
    assert story.broken() == set()


@pytest.mark.parametrize("end", ["acked", "refused", "unknown", "not-reached", ""])
def test_a_producer_finds_the_master_that_follows_an_isolated_one(story: Story, end: str) -> None:
    isolate(story)
    story.note("p1", "put", uid="a-o1", topic=terms.ORDERS, kind=terms.OK, wall_ms=0)
    if end == "acked":
        story.note("p1", end, uid="a-o1", queue=0, offset=0, host="b2", stored_ms=1)
        story.places["a-o1"] = (terms.ORDERS, story.store(terms.ORDERS, "a-o1", terms.OK), terms.OK)
        story.handle("m0", "a-o1")
        story.handle("m1", "a-o1")
    elif end:
        story.note("p1", end, uid="a-o1", error="")
    end_isolation(story)
    assert story.broken() == (set() if end == "acked" else {"stranded"})


def test_a_producer_that_starts_during_an_isolation_connects(story: Story) -> None:
    isolate(story)
    story.note("p2", "start")
    story.wait(stranding.FIND_S)
    story.note("p2", "unconnected", error="there is no master")
    end_isolation(story)
    assert story.broken() == {"stranded"}


def test_a_master_acknowledges_nothing_that_it_stored_after_the_next_one_led(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.events = [event for event in story.events if event.what != "acked"]
    for who, epoch, wall_ms in (("b1", 1, 1000), ("b2", 3, 2000), ("b1", 2, 2100)):  # the last was stopped meanwhile
        story.note(who, "leads", epoch=epoch, address=who, wall_ms=wall_ms)
    story.note("p1", "acked", uid="a-o1", queue=0, offset=0, host="b1", stored_ms=1500)
    assert story.broken() == set()
    story.note("p1", "acked", uid="a-o1", queue=0, offset=0, host="b2", stored_ms=2400)
    assert story.broken() == set()
    story.note("p1", "acked", uid="a-o1", queue=0, offset=0, host="b1", stored_ms=2500)
    assert story.broken() == {"stale master"}


# -- what is stored ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "facts", "rule"),
    [
        (terms.ORDERS, {}, "stored once"),
        (terms.ORDERS, {"deduplicated": True}, "deduplicated"),
        (terms.LATER, {"delay_s": 1.0}, "delayed once"),
    ],
)
def test_a_message_is_there_once(story: Story, topic: str, facts: dict[str, object], rule: str) -> None:
    story.put("a-1", topic, **facts)  # type: ignore[arg-type]
    story.handle("m1", "a-1")
    assert story.broken() == set()
    story.store(topic, "a-1", terms.OK)
    assert story.broken() == {rule}


def test_a_put_that_is_repeated_gets_its_first_receipt(story: Story) -> None:
    story.put("a-o1", deduplicated=True)
    story.handle("m1", "a-o1")
    story.note("p1", "acked", uid="a-o1", queue=0, offset=0)
    assert story.broken() == set()
    story.note("p1", "acked", uid="a-o1", queue=2, offset=7)
    assert story.broken() == {"deduplicated"}


def test_a_half_message_comes_when_it_is_committed(story: Story) -> None:
    story.note("p1", "put", uid="a-d1", topic=terms.DEALS, kind=terms.COMMITS, wall_ms=0)
    story.places["a-d1"] = (terms.DEALS, 0, terms.COMMITS)
    story.store(terms.DEALS, "a-d1", terms.COMMITS)
    story.note("p1", "decided", uid="a-d1", commits=True)
    story.handle("m0", "a-d1")
    story.handle("m1", "a-d1")
    assert story.broken() == set()
    story.store(terms.DEALS, "a-d1", terms.COMMITS)
    assert story.broken() == {"committed once"}


def test_a_half_message_that_comes_before_it_is_committed(story: Story) -> None:
    story.put("a-d1", terms.DEALS, terms.COMMITS)
    story.handle("m1", "a-d1")
    story.note("p1", "decided", uid="a-d1", commits=True)
    assert story.broken() == {"half message"}


def test_what_is_rolled_back_never_comes(story: Story) -> None:
    story.note("p1", "put", uid="a-d1", topic=terms.DEALS, kind=terms.ROLLS_BACK, wall_ms=0)
    story.note("p1", "decided", uid="a-d1", commits=False)
    assert story.broken() == set()
    story.store(terms.DEALS, "a-d1", terms.ROLLS_BACK)
    assert story.broken() == {"half message"}


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_what_is_committed_was_handled(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.commit("m1", 1)
    assert story.broken() == set()


def test_a_commit_before_its_message_is_handled(story: Story) -> None:
    story.put("a-o1")
    story.begin("m1", "a-o1")
    story.commit("m1", 1)
    story.end("m1", "a-o1")
    assert story.broken() == {"commit"}


def test_what_is_given_back_may_be_committed_once_the_broker_has_it(story: Story) -> None:
    story.put("a-o1", kind=terms.FAILS_ONCE)
    story.fail("m1", "a-o1")
    story.commit("m1", 1)
    story.come_back("m1", "a-o1", 1)
    assert story.broken() == set()


def test_an_offset_that_goes_back(story: Story) -> None:
    for number in range(2):
        story.put(f"a-o{number}")
        story.handle("m1", f"a-o{number}")
    story.commit("m1", 1)
    story.take("m2", 1)
    story.commit("m1", 2)
    assert story.broken() == set()
    story.take("m2", 1)
    assert story.broken() == {"offset went back"}


def test_an_offset_that_a_broker_has_lost_with_its_power_goes_back_once_it_leads(story: Story) -> None:
    story.put("a-o1", bystander=False)
    story.handle("m0", "a-o1")
    story.handle("m1", "a-o1")
    story.events = [event for event in story.events if event.what != "acked"]
    story.commit("m1", 1)
    story.note("runner", "may-lose", levels=["offsets"], of="b1")
    story.note("b2", "leads", epoch=2, address="b2", wall_ms=0)
    history = [*story.events]
    story.take("m2", 0)
    assert story.broken() == {"offset went back"}
    story.events = history
    story.note("b1", "leads", epoch=3, address="b1", wall_ms=0)
    story.take("m2", 0)
    assert "offset went back" not in story.broken()


def test_an_offset_that_is_read_while_another_is_committed_may_be_either(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    place = {"group": terms.SHARED, "topic": terms.ORDERS, "queue": 0}
    story.note("m1", "commit", offset=1, **place)
    asked = story.note("m2", "ask-offset", **place)
    story.note("m1", "committed", offset=1, **place)
    story.note("m2", "offset", offset=0, asked=asked, **place)
    assert story.broken() == set()


# -- duplicates --------------------------------------------------------------------------------------------------------


def _twice(story: Story) -> None:
    story.take("m2", 0)
    story.handle("m2", "a-o1")


def test_a_message_that_comes_twice_for_no_reason(story: Story) -> None:
    story.put("a-o1")
    story.assigned("m1", terms.ORDERS)
    story.handle("m1", "a-o1")
    _twice(story)
    assert story.broken() == {"duplicate"}


def test_offsets_that_were_lost_while_a_member_asked_for_them(story: Story) -> None:
    story.put("a-o1")
    story.take("m1", 0)
    story.handle("m1", "a-o1")
    story.commit("m1", 1)
    place = {"group": terms.SHARED, "topic": terms.ORDERS, "queue": 0}
    asked = story.note("m1", "ask-offset", **place)
    story.note("runner", "broker-down", how="failover")
    story.note("b2", "may-lose", levels=["offsets"])
    story.note("m1", "offset", offset=0, asked=asked, **place)
    story.handle("m1", "a-o1")
    assert "duplicate" not in story.broken()


def test_offsets_that_were_lost_while_the_answer_to_a_commit_was_on_its_way(story: Story) -> None:
    """The member was suspended: the master that had answered died before the answer was read."""
    place = {"group": terms.SHARED, "topic": terms.ORDERS, "queue": 0}
    story.put("a-o1")
    story.take("m1", 0)
    story.handle("m1", "a-o1")
    asked = story.note("m1", "commit", offset=1, **place)
    story.note("b2", "may-lose", levels=["offsets"])
    story.note("m1", "committed", offset=1, asked=asked, **place)
    story.note("runner", "broker-down", how="failover")
    _twice(story)
    assert "duplicate" not in story.broken()


def test_a_message_whose_member_was_killed_before_it_had_committed(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.kill("m1")
    _twice(story)
    assert story.broken() == set()


def test_a_message_whose_member_was_killed_after_it_had_committed(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.commit("m1", 1)
    story.kill("m1")
    _twice(story)
    assert story.broken() == {"offset went back", "duplicate"}


def test_a_message_whose_commit_an_overruled_master_has_answered(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.events = [event for event in story.events if event.what != "acked"]
    story.note("b3", "leads", epoch=2, address="b3", wall_ms=0)
    story.commit("m1", 1)
    story.kill("m1")
    _twice(story)
    assert "duplicate" in story.broken()
    story.note("runner", "overruled", of="b3")
    assert story.broken() == set()


def test_a_message_that_was_in_flight_when_its_queue_changed_hands(story: Story) -> None:
    story.put("a-o1")
    story.assigned("m1", terms.ORDERS)
    story.begin("m1", "a-o1")
    story.assigned("m1")
    story.wait(0.3)
    _twice(story)
    story.end("m1", "a-o1")
    assert story.broken() == set()


@pytest.mark.parametrize(("after_s", "broken"), [(0.1, set()), (1.0, {"duplicate"})])
def test_a_message_that_a_member_had_before_it_was_suspended(story: Story, after_s: float, broken: set[str]) -> None:
    """It may begin with it when it is awake again; a moment later it must know that the queue is another's."""
    story.put("a-o1")
    story.take("m2", 0)
    story.note("runner", "stop", process="m2")
    story.wait(10.0)
    story.take("m1", 0)
    story.handle("m1", "a-o1")
    story.note("runner", "go-on", process="m2")
    story.wait(after_s)
    story.handle("m2", "a-o1")
    assert story.broken() == broken


def test_a_message_behind_one_that_was_in_flight_when_its_queue_changed_hands(story: Story) -> None:
    """Nothing behind a message that is not handled can be committed; who takes the queue gets all that again."""
    for number in range(2):
        story.put(f"a-o{number}")
    story.assigned("m1", terms.ORDERS)
    story.begin("m1", "a-o0")
    story.handle("m1", "a-o1")
    story.wait(0.5)
    story.assigned("m1")
    story.wait(0.3)
    story.take("m2", 0)
    for number in range(2):
        story.handle("m2", f"a-o{number}")
    assert story.broken() == set()


def test_a_queue_that_is_given_up_without_a_commit(story: Story) -> None:
    story.put("a-o1")
    story.assigned("m1", terms.ORDERS)
    story.handle("m1", "a-o1")
    story.wait(0.5)
    story.assigned("m1")
    story.wait(0.3)
    _twice(story)
    assert story.broken() == {"duplicate"}


def test_a_message_that_is_begun_before_where_its_member_was_told_to_go_on(story: Story) -> None:
    story.put("a-o1")
    story.assigned("m1", terms.ORDERS)
    story.handle("m1", "a-o1")
    story.commit("m1", 1)
    story.assigned("m1")
    story.take("m2", 1)
    story.handle("m2", "a-o1")
    assert story.broken() == {"duplicate"}


@pytest.mark.parametrize("acknowledged", ["before", "after", "never"])
def test_a_last_commit_that_was_on_its_way_when_the_next_owner_asked(story: Story, acknowledged: str) -> None:
    """The broker can only answer with what it received before the question."""
    story.put("a-o1")
    story.assigned("m1", terms.ORDERS)
    story.handle("m1", "a-o1")
    story.assigned("m1")
    place = {"group": terms.SHARED, "topic": terms.ORDERS, "queue": 0}
    story.note("m1", "commit", offset=1, **place)
    if acknowledged == "before":
        story.note("m1", "committed", offset=1, **place)
    story.take("m2", 0)
    if acknowledged == "after":
        story.note("m1", "committed", offset=1, **place)
    story.handle("m2", "a-o1")
    expected = {"before": {"duplicate", "offset went back"}, "after": set(), "never": {"duplicate"}}
    assert story.broken() == expected[acknowledged]


def test_a_message_that_a_member_had_when_it_left(story: Story) -> None:
    """However long its process takes to end then."""
    for number in range(2):
        story.put(f"a-o{number}")
    story.assigned("m1", terms.ORDERS)
    story.begin("m1", "a-o0")
    story.handle("m1", "a-o1")
    story.note("m1", "leaving", group=terms.SHARED)
    story.let_go("m1")
    story.take("m2", 0)
    for number in range(2):
        story.handle("m2", f"a-o{number}")
    story.wait(5.0)
    story.note("runner", "left", process="m1", code=0)
    assert story.broken() == set()


def test_what_a_member_had_handled_when_it_left(story: Story) -> None:
    story.put("a-o1")
    story.assigned("m1", terms.ORDERS)
    story.handle("m1", "a-o1")
    story.note("m1", "leaving", group=terms.SHARED)
    story.let_go("m1")
    _twice(story)
    assert story.broken() == {"duplicate"}


def test_a_queue_released_before_its_message_in_flight_had_its_time(story: Story) -> None:
    story.put("a-o1")
    story.assigned("m1", terms.ORDERS)
    story.begin("m1", "a-o1")
    story.assigned("m1", grace_s=0.02)
    story.end("m1", "a-o1")
    _twice(story)
    assert story.broken() == {"duplicate"}


def test_a_queue_released_at_once_since_its_message_is_repeated(story: Story) -> None:
    story.put("a-s1", terms.STEPS, terms.FAILS_ONCE)
    story.assigned("s1", terms.STEPS)
    story.begin("s1", "a-s1")
    story.end("s1", "a-s1", "raised")
    story.assigned("s1", grace_s=0.0)
    story.take("s2", 0, terms.STEPS)
    story.handle("s2", "a-s1")
    assert story.broken() == set()


def test_a_queue_of_an_ordered_group_released_while_its_message_is_handled(story: Story) -> None:
    story.put("a-s1", terms.STEPS)
    story.assigned("s1", terms.STEPS)
    story.begin("s1", "a-s1")
    story.assigned("s1", grace_s=1.0)
    story.end("s1", "a-s1")
    story.take("s2", 0, terms.STEPS)
    story.handle("s2", "a-s1")
    assert story.broken() == {"duplicate"}


def test_a_queue_released_where_it_was_no_longer(story: Story) -> None:
    """The member has forgotten that it handled the first message, and commits nothing behind it."""
    for number in range(2):
        story.put(f"a-o{number}")
        story.assigned("m1", terms.ORDERS)
        story.handle("m1", f"a-o{number}")
    story.wait(0.5)
    story.assigned("m1", forgets=True)
    story.take("m2", 0)
    for number in range(2):
        story.handle("m2", f"a-o{number}")
    assert story.broken() == {"duplicate"}


def test_a_queue_that_was_only_just_taken_is_not_given_up(story: Story) -> None:
    story.assigned("m1")
    story.put("a-o1")
    story.take("m1", 0)
    story.handle("m1", "a-o1")
    story.kill("m2")
    story.take("m2", 0)
    story.end("m1", "a-o1")
    story.handle("m2", "a-o1")
    assert "duplicate" in story.broken()


def test_a_message_that_comes_twice_after_the_broker_was_down_or_its_member_stood_still(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.note("runner", "broker-down", how="SIGKILL")
    story.wait(1.0)
    story.note("runner", "broker-up")
    _twice(story)
    story.wait(60.0)
    story.put("a-o2")
    story.handle("m1", "a-o2")
    story.note("runner", "stop", process="m1")
    story.wait(10.0)
    story.handle("m2", "a-o2")
    story.note("runner", "go-on", process="m1")
    assert story.broken() == set()


def test_a_message_repeated_because_it_could_not_be_given_back(story: Story) -> None:
    story.put("a-s1", terms.STEPS, terms.FAILS_ONCE)
    story.begin("s1", "a-s1")
    story.end("s1", "a-s1", "raised")
    story.handle("s1", "a-s1")
    assert story.broken() == set()


# -- owners, order, locks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after_s", "broken"), [(5.0, set()), (8.0, {"owned by none"})])
def test_a_queue_that_no_member_has(story: Story, after_s: float, broken: set[str]) -> None:
    story.take("m1", None)
    story.assigned("m1")
    story.note("runner", "broker-down", how="failover")
    story.wait(20.0)
    story.note("runner", "broker-up")
    story.wait(after_s)
    story.take("m1", 0)
    story.note("runner", "settled", missing=[])
    assert story.broken() == broken


@pytest.mark.parametrize(("after_s", "broken"), [(0.2, set()), (30.0, {"owned twice"})])
def test_a_queue_that_two_members_have(story: Story, after_s: float, broken: set[str]) -> None:
    story.assigned("m1", terms.ORDERS)
    story.wait(20.0)
    story.take("m2", 0)
    story.wait(after_s)
    story.assigned("m1")
    assert story.broken() == broken


@pytest.mark.parametrize(
    ("after_s", "living", "broken"), [(0.3, True, set()), (0.1, True, {"taken too soon"}), (0.1, False, set())]
)
def test_how_long_a_member_waits_before_it_takes_what_another_has(
    story: Story, after_s: float, living: bool, broken: set[str]
) -> None:
    story.take("m1", 0)
    story.wait(20.0)
    if not living:
        story.kill("m1")
        story.wait(5.0)
    story.take("m2", 0, after_s=after_s)
    story.assigned("m1")
    assert story.broken() == broken


def test_a_queue_of_a_suspended_member_belongs_to_another(story: Story) -> None:
    story.assigned("m1", terms.ORDERS)
    story.wait(20.0)
    story.note("runner", "stop", process="m1")
    story.wait(10.0)
    story.assigned("m2", terms.ORDERS)
    story.wait(10.0)
    story.note("runner", "go-on", process="m1")
    story.assigned("m1")
    assert story.broken() == set()


def test_messages_that_are_handled_in_order(story: Story) -> None:
    for number in range(3):
        story.put(f"a-s{number}", terms.STEPS)
    for number in range(3):
        story.handle("s1" if number < 2 else "s2", f"a-s{number}")
    assert story.broken() == set()


def test_a_message_that_is_begun_before_the_one_before_it_is_handled(story: Story) -> None:
    for number in range(2):
        story.put(f"a-s{number}", terms.STEPS)
    story.handle("s1", "a-s1")
    story.handle("s1", "a-s0")
    assert story.broken() == {"order"}


def test_messages_that_do_not_lie_as_they_were_sent(story: Story) -> None:
    for number in (1, 0):
        story.put(f"a-s{number}", terms.STEPS)
        story.handle("s1", f"a-s{number}")
    assert story.broken() == {"order"}


def test_a_put_of_unknown_outcome_may_be_stored_after_the_next_one(story: Story) -> None:
    for number in (1, 0):
        story.put(f"a-s{number}", terms.STEPS)
        story.handle("s1", f"a-s{number}")
    story.events = [event for event in story.events if (event.what, event.get("uid")) != ("acked", "a-s0")]
    assert story.broken() == set()


def test_two_living_members_with_a_message_of_one_queue(story: Story) -> None:
    story.put("a-s0", terms.STEPS)
    story.begin("s1", "a-s0")
    story.take("s2", 0, terms.STEPS)
    story.begin("s2", "a-s0")
    story.end("s1", "a-s0")
    story.end("s2", "a-s0")
    assert story.broken() == {"one at a time", "duplicate"}


def test_a_member_that_stood_still_until_its_lock_had_run_out(story: Story) -> None:
    story.put("a-s0", terms.STEPS)
    story.begin("s1", "a-s0")
    story.note("runner", "stop", process="s1")
    story.wait(10.0)
    story.take("s2", 0, terms.STEPS)
    story.begin("s2", "a-s0")
    story.note("runner", "go-on", process="s1")
    story.end("s1", "a-s0")
    story.end("s2", "a-s0")
    assert story.broken() == set()


def _lock(story: Story, who: str) -> None:
    asked = story.note(who, "lock", group=terms.ORDERLY, queues=[[terms.STEPS, 0]])
    story.note(who, "locked", group=terms.ORDERLY, queues=[[terms.STEPS, 0]], asked=asked)


@pytest.mark.parametrize("given_up", ["unlock", "leave", "expired", "broker-down", ""])
def test_a_lock_that_another_member_gets(story: Story, given_up: str) -> None:
    _lock(story, "s1")
    story.wait(1.0)
    _lock(story, "s1")
    story.wait(terms.LOCK_TIMEOUT_S - 0.5)
    match given_up:
        case "unlock":
            story.note("s1", "unlock", group=terms.ORDERLY, queues=[[terms.STEPS, 0]])
        case "leave":
            story.note("s1", "leave", group=terms.ORDERLY)
        case "expired":
            story.wait(1.0)
        case "broker-down":
            story.note("runner", "broker-down", how="SIGKILL")
            story.note("runner", "broker-up")
        case _:
            pass
    _lock(story, "s2")
    assert story.broken() == (set() if given_up else {"lock given twice"})


# -- retries and dead letters ------------------------------------------------------------------------------------------


def test_a_message_that_is_tried_so_often_and_then_a_dead_letter(story: Story) -> None:
    story.put("a-o1", kind=terms.POISON)
    story.fail("m1", "a-o1")
    story.come_back("m2", "a-o1", 1, how="fail")
    story.come_back("m1", "a-o1", 2, how="fail")
    story.die("a-o1", terms.SHARED, 3)
    assert story.broken() == set()
    story.die("a-o1", terms.SHARED, 3)
    assert story.broken() == {"dead letter twice"}


def test_a_message_that_is_tried_too_seldom(story: Story) -> None:
    story.put("a-o1", kind=terms.POISON)
    story.fail("m1", "a-o1")
    story.come_back("m2", "a-o1", 1, how="fail")
    story.die("a-o1", terms.SHARED, 2)
    assert story.broken() == {"attempts"}


def test_a_dead_letter_without_cause(story: Story) -> None:
    story.put("a-o1", kind=terms.FAILS_ONCE)
    story.fail("m1", "a-o1")
    story.die("a-o1", terms.SHARED, 1)
    assert {"dead letter", "lost"} <= story.broken()


@pytest.mark.parametrize(("after_s", "broken"), [(1.1, set()), (0.5, {"retry early"})])
def test_the_time_at_which_a_message_is_redelivered(story: Story, after_s: float, broken: set[str]) -> None:
    story.put("a-o1", kind=terms.FAILS_ONCE)
    story.fail("m1", "a-o1")
    story.come_back("m2", "a-o1", 1, after_s=after_s)
    assert story.broken() == broken


def test_a_message_that_is_not_redelivered(story: Story) -> None:
    story.put("a-o1", kind=terms.FAILS_ONCE)
    story.fail("m1", "a-o1")
    assert story.broken() == {"retry dropped", "lost"}


@pytest.mark.parametrize(
    ("after_s", "copies", "broken"),
    [
        (0.5, 1, set()),
        (0.5, 2, {"retry twice"}),
        (1.5, 2, set()),
        (1.5, 1, {"retry dropped"}),
        (1.5, 3, {"retry twice"}),
    ],
)
def test_a_message_that_is_given_back_again(story: Story, after_s: float, copies: int, broken: set[str]) -> None:
    """Its copy waits for a second; a new one is stored after that, whether or not anybody has got the first yet."""
    story.put("a-o1", kind=terms.FAILS_ONCE)
    story.begin("m2", "a-o1")
    story.fail("m1", "a-o1")
    story.kill("m1")
    story.wait(after_s)
    story.end("m2", "a-o1", "raised")
    story.end("m2", "a-o1", "back", level=1)
    story.end("m2", "a-o1", "backed", level=1)
    for _ in range(copies):
        story.come_back("m2", "a-o1", 1)
    assert story.broken() - {"duplicate"} == broken


def test_a_message_whose_copy_waits_when_the_broker_is_killed(story: Story) -> None:
    """It does not remember then that it has the message."""
    story.put("a-o1", kind=terms.FAILS_ONCE)
    story.fail("m1", "a-o1")
    story.note("runner", "broker-down", how="SIGKILL")
    story.note("runner", "broker-up")
    story.fail("m2", "a-o1")
    story.come_back("m2", "a-o1", 1)
    assert story.broken() == set()
    story.come_back("m2", "a-o1", 1, after_s=0.0)
    assert story.broken() == set()


@pytest.mark.parametrize(("copies", "broken"), [(2, set()), (1, {"retry dropped"})])
def test_a_message_that_is_given_back_again_on_its_way_to_the_dead_letters(
    story: Story, copies: int, broken: set[str]
) -> None:
    story.put("a-o1", kind=terms.POISON)
    story.fail("m1", "a-o1")
    story.kill("m1")
    story.wait(1.5)
    story.fail("m2", "a-o1")
    for _ in range(copies):
        story.come_back("m2", "a-o1", 1, how="fail")
    for _ in range(copies):
        story.come_back("m2", "a-o1", 2, how="fail")
    for _ in range(copies):
        story.die("a-o1", terms.SHARED, 3)
    assert story.broken() == broken


def test_a_dead_letter_that_is_given_back_again(story: Story) -> None:
    story.put("a-s1", terms.STEPS, terms.POISON)
    for who in ("s1", "s2"):
        story.fail(who, "a-s1", level=-1)
        story.kill(who)
        story.wait(60.0)
    story.die("a-s1", terms.ORDERLY, 1)
    assert story.broken() == set()
    story.die("a-s1", terms.ORDERLY, 1)
    assert story.broken() == {"dead letter twice"}


@pytest.mark.parametrize(("copies", "broken"), [(2, set()), (1, {"retry dropped"})])
def test_a_message_that_lies_in_two_places_and_is_given_back_from_both(
    story: Story, copies: int, broken: set[str]
) -> None:
    story.put("a-o1", kind=terms.FAILS_ONCE)
    for offset in (0, 1):
        story.fail("m1", "a-o1", offset=offset)
    for _ in range(copies):
        story.come_back("m2", "a-o1", 1)
    assert story.broken() - {"taken back"} == broken, "the second copy is not in the story's store"


@pytest.mark.parametrize(("down", "broken"), [(True, set()), (False, {"retry twice"})])
def test_a_message_that_is_redelivered_twice(story: Story, down: bool, broken: set[str]) -> None:
    story.put("a-o1", kind=terms.FAILS_ONCE)
    story.begin("m1", "a-o1")
    story.end("m1", "a-o1", "raised")
    story.end("m1", "a-o1", "back", level=1)
    if down:  # the answer of the first request was lost
        story.note("runner", "broker-down", how="SIGKILL")
        story.note("runner", "broker-up")
    story.end("m1", "a-o1", "backed", level=1)
    story.come_back("m2", "a-o1", 1)
    story.come_back("m1", "a-o1", 1)
    assert story.broken() == broken


# -- delays, bystanders ------------------------------------------------------------------------------------------------


def test_a_delayed_message_in_time(story: Story) -> None:
    story.put("a-l1", terms.LATER, delay_s=2.0)
    story.handle("m1", "a-l1")
    assert story.broken() == set()


def test_a_delayed_message_that_is_early(story: Story) -> None:
    story.note("p1", "put", uid="a-l1", topic=terms.LATER, kind=terms.OK, wall_ms=0, delay_s=2.0)
    story.places["a-l1"] = (terms.LATER, 0, terms.OK)
    story.store(terms.LATER, "a-l1", terms.OK)
    story.wait(1.0)
    story.handle("m0", "a-l1")
    story.wait(2.0)
    story.handle("m1", "a-l1")
    assert story.broken() == {"delayed early"}


def test_a_bystander_that_gets_a_message_late(story: Story) -> None:
    story.put("a-o1", bystander=False)
    story.handle("m1", "a-o1")
    story.wait(15.0)
    story.handle("m0", "a-o1")
    assert story.broken() == {"late"}


def test_a_bystander_may_wait_for_a_broker_that_is_down(story: Story) -> None:
    story.put("a-o1", bystander=False)
    story.handle("m1", "a-o1")
    story.note("runner", "broker-down", how="SIGKILL")
    story.wait(15.0)
    story.note("runner", "broker-up")
    story.handle("m0", "a-o1")
    assert story.broken() == set()


def test_a_bystander_that_gets_what_another_group_gave_back(story: Story) -> None:
    story.put("a-o1")
    story.handle("m1", "a-o1")
    story.come_back("m0", "a-o1", 1)
    assert "bystander" in story.broken()


# -- histories ---------------------------------------------------------------------------------------------------------


def test_a_line_that_was_being_written_when_its_process_was_killed(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "m1.jsonl", "m1")
    tail = Tail(tmp_path)
    recorder.note("begun", uid="a-o1")
    assert [event["uid"] for event in tail.new()] == ["a-o1"]
    with (tmp_path / "m1.jsonl").open("ab") as file:
        file.write(b'{"at": 12.0, "who": "m1", "wh')
    assert [event.what for event in read(tmp_path)] == ["begun"]
    assert list(tail.new()) == []
    recorder.close()


def test_an_event_that_no_judge_can_know_is_refused(story: Story) -> None:
    """A name with a typing mistake was passed over, and its rule found nothing."""
    story.note("runner", "broker_down", how="SIGKILL")
    with pytest.raises(ValueError, match="broker_down"):
        Facts.of(story.events)
