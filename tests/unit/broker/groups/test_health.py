"""The rules by which a broker decides how its groups are, under a fake clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reput_protocol.codes import PullSysFlag, RequestCode
from reput_protocol.commands.group import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnregisterClientHeader,
)
from reput_protocol.commands.group_description import (
    DescribeGroupHeader,
    GroupDescription,
    GroupHealth,
    GroupSummaries,
    HealthState,
)
from reput_protocol.commands.offset import UpdateConsumerOffsetHeader
from reput_protocol.commands.pull import PullMessageHeader
from support.broker_bench import T0, BenchClient, BrokerBench, broker_bench
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

OK, BEHIND, STUCK, EMPTY, CONFLICTING = (
    HealthState.OK, HealthState.BEHIND, HealthState.STUCK, HealthState.EMPTY, HealthState.CONFLICTING,
)  # fmt: skip
LIMITS: dict[str, Any] = {"heartbeat_timeout": "1d"}


async def join(bench: BrokerBench, expression: str = "*", group: str = "g") -> BenchClient:
    client = bench.client()
    subscriptions = [SubscriptionData.of("T", expression, 1)]
    body = HeartbeatData(client.client_id, [ConsumerData(group, subscriptions=subscriptions)], []).to_json()
    await client.ask(RequestCode.HEART_BEAT, {}, body)
    return client


async def leave(client: BenchClient, group: str = "g") -> None:
    header = UnregisterClientHeader(client.client_id, consumer_group=group)
    await client.ask(RequestCode.UNREGISTER_CLIENT, header.to_ext(client.header_type))


async def send(bench: BrokerBench, count: int = 1) -> None:
    client = bench.client()
    for _ in range(count):
        assert (await client.send("T", b"x")).code == 0
    await bench.settled()


async def pull(client: BenchClient, offset: int = 0, group: str = "g") -> None:
    header = PullMessageHeader(
        group, "T", 0, offset, 32, int(PullSysFlag.SUBSCRIPTION), subscription="*", sub_version=0
    )
    await client.ask(RequestCode.PULL_MESSAGE, header.to_ext(client.header_type))


async def commit(client: BenchClient, offset: int, group: str = "g") -> None:
    header = UpdateConsumerOffsetHeader(group, "T", 0, offset)
    answer = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext(client.header_type))
    assert answer is not None
    assert answer.code == 0, answer.remark


async def problems(bench: BrokerBench, group: str = "g") -> list[GroupHealth]:
    """All that is wrong with the group; the list of groups has the first of it."""
    client = bench.client()
    answer = await client.ask(RequestCode.DESCRIBE_GROUP, DescribeGroupHeader(group).to_ext(client.header_type))
    assert answer is not None
    found = GroupDescription.from_json(answer.body)
    answer = await client.ask(RequestCode.LIST_GROUPS, {})
    assert answer is not None
    (listed,) = [one for one in GroupSummaries.from_json(answer.body).groups if one.group == group]
    assert listed == found.summary
    assert [found.summary.health] == (found.problems[:1] or [found.summary.health])
    assert found.summary.health.is_fault == bool(found.problems)
    return found.problems


async def looked(bench: BrokerBench, then_s: float) -> None:
    """Let the broker look at its groups, which it does every 15 s, and then let time pass."""
    await bench.pass_time(16)
    await bench.pass_time(then_s)


async def states(bench: BrokerBench, group: str = "g") -> list[HealthState]:
    return [problem.state for problem in await problems(bench, group)]


async def test_a_group_is_stuck_while_its_position_stays(tmp_path: Path) -> None:
    """Commits of the same offset are no progress; a message that comes and goes is none to worry about."""
    async with broker_bench(tmp_path, groups=LIMITS) as bench:
        await bench.create_topic("T")
        member = await join(bench)
        await bench.pass_time(300)
        await send(bench, 3)
        await pull(member)
        await commit(member, 1)
        await bench.pass_time(20)
        for _ in range(10):
            await bench.pass_time(4)
            await commit(member, 1)
        assert await states(bench) == []
        await bench.pass_time(30)
        (stuck,) = await problems(bench)
        assert (stuck.state, stuck.client_id, stuck.topic, stuck.queue_id) == (STUCK, member.client_id, "T", 0)
        assert stuck.reason == (
            f"member {member.client_id} does not finish offset 1 of queue T-0: 2 messages wait, 2 in flight"
        )
        assert T0 + 300_000 <= stuck.since_millis <= T0 + 320_000
        assert stuck.broker_name == "broker-a"
        await commit(member, 2)
        assert await states(bench) == [], "it has moved on"
        await looked(bench, 70)
        assert await states(bench) == [STUCK]
        await commit(member, 3)
        assert await states(bench) == []


async def test_a_member_that_comes_to_old_messages_is_not_stuck_yet(tmp_path: Path) -> None:
    async with broker_bench(tmp_path, groups=LIMITS) as bench:
        await bench.create_topic("T")
        await send(bench, 2)
        before = await join(bench)
        await commit(before, 0)
        await leave(before)
        await bench.pass_time(300)
        await join(bench)
        await bench.pass_time(30)
        assert await states(bench) == []
        await bench.pass_time(40)
        (stuck,) = await problems(bench)
        assert stuck.reason == "no member has queue T-0, where 2 messages wait"
        assert (stuck.client_id, stuck.since_millis // 1000) == ("", (T0 + 300_000) // 1000)


async def test_the_first_message_of_a_new_group_hangs(tmp_path: Path) -> None:
    """The group has no offset, only a member that has pulled."""
    async with broker_bench(tmp_path, groups=LIMITS) as bench:
        await bench.create_topic("T")
        await send(bench)
        member = await join(bench)
        await pull(member)
        await looked(bench, 70)
        assert [(one.state, one.client_id) for one in await problems(bench)] == [(STUCK, member.client_id)]


async def test_a_disabled_group_says_so(tmp_path: Path) -> None:
    async with broker_bench(tmp_path, groups=LIMITS) as bench:
        await bench.create_topic("T")
        await send(bench)
        member = await join(bench)
        await commit(member, 0)
        settings = SubscriptionGroupConfig("g", consume_enable=False).to_json()
        await bench.client().ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, settings)
        await looked(bench, 70)
        (stuck,) = await problems(bench)
        assert stuck.reason.endswith("; the group may not consume")


async def test_a_group_is_behind_by_number_or_by_age(tmp_path: Path) -> None:
    options = {**LIMITS, "behind_messages": 3, "stuck_after": "1h"}
    async with broker_bench(tmp_path, groups=options) as bench:
        await bench.create_topic("T")
        member = await join(bench)
        await send(bench, 3)
        await commit(member, 0)
        assert await states(bench) == []
        await send(bench)
        (behind,) = await problems(bench)
        assert (behind.state, behind.topic, behind.queue_id) == (BEHIND, "T", 0)
        assert behind.reason == "4 messages wait in T, the oldest in queue 0"
        await bench.pass_time(20)
        assert (await problems(bench))[0].since_millis == behind.since_millis
        await commit(member, 1)
        assert await states(bench) == []
        await bench.pass_time(560)
        assert await states(bench) == []
        await bench.pass_time(60)
        (behind,) = await problems(bench)
        assert (behind.state, behind.since_millis // 1000) == (BEHIND, (T0 + 600_000) // 1000)
        await commit(member, 4)
        assert await states(bench) == []
        await send(bench, 4)
        assert (await problems(bench))[0].since_millis >= T0 + 640_000, "not since the first time"


async def test_a_group_without_members_is_empty_unless_a_client_consumes_for_it(tmp_path: Path) -> None:
    async with broker_bench(tmp_path, groups=LIMITS) as bench:
        await bench.create_topic("T")
        member = await join(bench)
        await send(bench, 2)
        await pull(member)
        await commit(member, 1)
        await bench.pass_time(30)
        await leave(member)  # its connection stays open
        (empty,) = await problems(bench)
        assert (empty.state, empty.reason) == (EMPTY, "1 message waits, and no member is online")
        assert empty.since_millis // 1000 == (T0 + 30_000) // 1000
        await bench.pass_time(1)
        puller = bench.client()
        await pull(puller, 1)
        assert await states(bench) == []
        await bench.pass_time(590)
        assert await states(bench) == [BEHIND], "nothing is taken for long"
        await bench.pass_time(30)
        (empty,) = await problems(bench)
        assert (empty.state, empty.since_millis // 1000) == (EMPTY, (T0 + 31_000) // 1000)
        await pull(puller, 1)
        assert EMPTY not in await states(bench)
        bench.gone(puller)
        assert await states(bench) == [EMPTY]
        await commit(bench.client(), 2)
        assert await states(bench) == []


@pytest.mark.parametrize("refuses", [False, True])
async def test_members_that_differ(tmp_path: Path, refuses: bool) -> None:
    """Also if the second one is refused: its program gets nothing."""
    options = {**LIMITS, "refuse_subscription_conflicts": refuses}
    async with broker_bench(tmp_path, groups=options) as bench:
        await bench.create_topic("T")
        one, other = await join(bench, "a"), await join(bench, "b")
        (conflicting,) = await problems(bench)
        assert (conflicting.state, conflicting.since_millis // 1000) == (CONFLICTING, T0 // 1000)
        for words in (f"{one.client_id} wants T with 'a'", f"{other.client_id} wants T with 'b'"):
            assert words in conflicting.reason
        if refuses:
            await bench.pass_time(100)
        else:
            await leave(other)
        assert await states(bench) == []


async def test_the_gravest_of_several_states_comes_first(tmp_path: Path) -> None:
    options = {**LIMITS, "behind_messages": 1}
    async with broker_bench(tmp_path, groups=options) as bench:
        await bench.create_topic("T")
        member = await join(bench, "a")
        await join(bench, "b")
        await send(bench, 2)
        await commit(member, 0)
        await looked(bench, 70)
        assert await states(bench) == [CONFLICTING, STUCK, BEHIND]
