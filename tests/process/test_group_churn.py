"""Groups of members in their own processes, which join, leave, die and are suspended, with a real broker.

`group_scene.py` has what must always hold. Here it happens, with what may come twice: only what
was in flight, or not committed yet, when its member died or was too slow.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support import short_locks
from support.broker_process import BrokerProcess
from support.group_member import MemberProcess
from support.group_scene import QUEUES, GroupScene, begun_by, check_order, handled_twice

pytestmark = pytest.mark.process

QUICKLY = {"REPUT_GROUPS__HEARTBEAT_TIMEOUT": "3s"}
SHORT_LOCKS = (sys.executable, short_locks.__file__)
SHARED_ANEW_S = 2.0
"""Twice what is promised, for a machine that has other things to do."""
_OPTIONS: dict[str, tuple[str, ...]] = {"side by side": (), "orderly": ("--orderly",)}


def kinds(short: str, long: str) -> pytest.MarkDecorator:
    """Run with one kind of member, and with --long with the other too."""
    cases = [pytest.param(_OPTIONS[short], id=short), pytest.param(_OPTIONS[long], id=long, marks=pytest.mark.long)]
    return pytest.mark.parametrize("kind", cases)


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    store = module_path / "store"
    with BrokerProcess(store, environment=QUICKLY, command=SHORT_LOCKS) as process:
        yield process


def has_events(member: MemberProcess) -> bool:
    return bool(member.events())


def has_handled(scene: GroupScene, count: int) -> bool:
    return len(scene.handled()) > count


def when_shared(*members: MemberProcess) -> float:
    """Return when the last of the members had the queues that it has now."""
    return max(event.at for member in members for event in member.events() if event.kind == "assigned")


@pytest.mark.parametrize(
    ("face", "kind"),
    [("trio", ("--orderly",)), ("asyncio", ()), ("blocking", ("--orderly",))],
    ids=["trio-orderly", "asyncio-side by side", "blocking-orderly"],
)
def test_members_that_come_and_leave_in_order_handle_nothing_twice(
    broker: BrokerProcess, tmp_path: Path, face: str, kind: tuple[str, ...]
) -> None:
    with GroupScene(broker.address, tmp_path, "--face", face, *kind) as scene:
        running: list[MemberProcess] = []
        for _ in range(3):
            running.append(scene.member())
            scene.until_shared_by(*running)
            (joined,) = (event.at for event in running[-1].events() if event.kind == "start")
            assert when_shared(*running) - joined < SHARED_ANEW_S
        left_at = time.monotonic()
        assert running.pop(0).end() == 0
        scene.until_shared_by(*running)
        assert when_shared(*running) - left_at < SHARED_ANEW_S
        assert running.pop(1).end() == 0
        scene.until_shared_by(*running)
        events = scene.finish()
        if kind:
            check_order(events)
            assert handled_twice(events) == set(), "a queue goes only when nothing of it is in flight"
        else:
            assert len(handled_twice(events)) <= 4, "a handler of a millisecond is seldom late by a tenth of a second"


def test_a_member_that_is_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    with GroupScene(broker.address, tmp_path, "--concurrency", "4") as scene:
        running = [scene.member() for _ in range(4)]
        scene.until_shared_by(*running)
        victim = running.pop(2)
        scene.until(lambda: len(victim.handled()) > 50)
        victim.signal(signal.SIGKILL)
        killed_at = time.monotonic()
        victim.wait()
        scene.until_shared_by(*running)
        assert when_shared(*running) - killed_at < SHARED_ANEW_S
        again = handled_twice(scene.finish())
        assert len(again - begun_by(victim)) <= 4, "what the others had in hand is theirs"
        assert len(again) <= 100, "progress goes with every pull"


def test_an_orderly_member_that_is_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    with GroupScene(broker.address, tmp_path, "--orderly") as scene:
        running = [scene.member() for _ in range(4)]
        scene.until_shared_by(*running)
        victim = running.pop(1)
        scene.until(lambda: len(victim.handled()) > 50)
        victim.signal(signal.SIGKILL)
        victim.wait()
        scene.until_shared_by(*running)  # when its locks have expired
        events = scene.finish()
        check_order(events)
        assert handled_twice(events) <= begun_by(victim)


@kinds("orderly", long="side by side")
def test_a_suspended_member_loses_its_queues_and_lowers_no_offset(
    broker: BrokerProcess, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    with GroupScene(broker.address, tmp_path, *kind) as scene:
        running = [scene.member() for _ in range(4)]
        scene.until_shared_by(*running)
        sleeper, *awake = running
        scene.until(lambda: len(sleeper.handled()) > 50)
        sleeper.signal(signal.SIGSTOP)
        scene.until_shared_by(*awake, deadline_s=40.0)
        before = len(scene.handled())
        scene.until(lambda: len(scene.handled()) > before + 200)
        asleep = len(sleeper.handled())
        woken_at = time.monotonic()
        sleeper.signal(signal.SIGCONT)
        scene.until_shared_by(*running)
        scene.until(lambda: len(sleeper.handled()) > asleep + 20)
        events = scene.finish()
        if kind:
            check_order(events)
        assert len(handled_twice(events) - begun_by(sleeper)) <= 4
        repeated = handled_twice(events)
        begun = [event for event in sleeper.events() if event.kind == "begun" and event.at > woken_at]
        assert sum(event.body in repeated for event in begun) <= 1, (
            "awake again, it finishes what it has in hand and begins nothing that is another's, "
            "but one that it was about to begin"
        )


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        pytest.param(signal.SIGTERM, (), id="stopped-side by side", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, ("--orderly",), id="killed-orderly"),
    ],
)
def test_a_broker_that_is_restarted(tmp_path: Path, how: signal.Signals, kind: tuple[str, ...]) -> None:
    with (
        BrokerProcess(tmp_path / "store", environment=QUICKLY, command=SHORT_LOCKS) as broker,
        GroupScene(broker.address, tmp_path, *kind) as scene,
    ):
        running = [scene.member() for _ in range(3)]
        for _ in range(2):
            scene.until_shared_by(*running)
            before = len(scene.handled())
            scene.until(partial(has_handled, scene, before + 100))
            if how is signal.SIGKILL:
                broker.kill()
            else:
                stopping_at = time.monotonic()
                assert broker.terminate() == 0
                assert time.monotonic() - stopping_at < 10.0, "it waits for no pull that waits for messages"
            broker.start()
            broker.wait_ready()
        scene.until_shared_by(*running)
        events = scene.finish()
        if kind:
            check_order(events)
        assert len(handled_twice(events)) <= 20 * len(running), "what was in flight, or not committed"


@kinds("side by side", long="orderly")
def test_handlers_that_fail_now_and_then(broker: BrokerProcess, tmp_path: Path, kind: tuple[str, ...]) -> None:
    with GroupScene(broker.address, tmp_path, "--fail", "10", "--concurrency", "4", *kind) as scene:
        running = [scene.member() for _ in range(2)]
        scene.until_shared_by(*running)
        scene.until(lambda: len(scene.handled()) > 500)
        running.append(scene.member())
        scene.until_shared_by(*running)
        events = scene.finish()
        if kind:
            check_order(events)
        begun = sum(event.kind == "begun" for member in scene.members for event in member.events())
        assert begun > len(events) * 1.05, "some were begun twice"


def test_churn(tmp_path: Path) -> None:
    """Once; `make soak KIND=histories` does it for minutes, and with other kinds of groups."""
    chance = random.Random(0)
    concurrency = chance.choice("124")
    with (
        BrokerProcess(tmp_path / "store", environment=QUICKLY, command=SHORT_LOCKS) as broker,
        GroupScene(broker.address, tmp_path, "--concurrency", concurrency, "--orderly") as scene,
    ):
        running = [scene.member() for _ in range(2)]
        scene.until_shared_by(*running)
        for _ in range(8):
            match chance.choice(["join", "leave", "kill", "stand still", "restart the broker"]):
                case "join":
                    running.append(scene.member("--face", chance.choice(["trio", "asyncio", "blocking"])))
                    scene.until(partial(has_events, running[-1]))
                case "leave" if len(running) > 1:
                    assert running.pop(chance.randrange(len(running))).end() == 0
                case "kill" if len(running) > 1:
                    victim = running.pop(chance.randrange(len(running)))
                    victim.signal(signal.SIGKILL)
                    victim.wait()
                case "stand still":
                    sleeper = chance.choice(running)
                    sleeper.signal(signal.SIGSTOP)
                    time.sleep(chance.uniform(0.5, 5.0))
                    sleeper.signal(signal.SIGCONT)
                case "restart the broker":
                    broker.kill()
                    broker.start()
                    broker.wait_ready()
            time.sleep(chance.uniform(0.0, 1.0))
        running = [*running, *(scene.member() for _ in range(max(0, 2 - len(running))))]
        scene.until_shared_by(*running[:QUEUES], deadline_s=60.0)
        check_order(scene.finish())
