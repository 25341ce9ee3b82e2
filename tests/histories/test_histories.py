"""A short history without a violation, and histories with a planted bug that the judges catch.

`make soak KIND=histories` records for minutes, with `PLANTED=1` tries every bug. A failure names its seed.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from histories import churn, planted, terms
from histories.churn import Plan
from histories.history import Tail, read
from histories.recording import outcome_of, record
from histories.scene import Scene
from histories.trying import try_bug
from support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.fault]

# One seed, so that the tests say the same every time; `make soak KIND=histories` takes another each time.
_SEED = int(os.environ.get("HISTORIES_SEED", "20261121"))
_SHORT = Plan(5.0, pause_s=(0.2, 0.8), first=("kill-broker", "kill", "join", "stop", "kill", "leave"))
_KINDS = "ok=80,fails1=10,poison=10"


def test_a_short_history_breaks_no_promise(tmp_path: Path) -> None:
    outcome = record(_SHORT, _SEED, settle_s=60.0, kinds=_KINDS, keep=tmp_path)
    print(outcome.line())
    assert not outcome.violations, "\n".join([f"seed {_SEED}", *map(str, outcome.violations[:10])])
    # How many retries and dead letters there are is the machine's speed; what is done is the seed's.
    for name in ("acknowledged", "handled", "kills", "broker_kills", "stops", "rebalances"):
        assert outcome.counts[name], f"{name}: {outcome.line()}"


@pytest.mark.parametrize("name", ["dead_letter_twice"])
def test_a_planted_bug_is_caught(name: str, tmp_path: Path) -> None:
    tried = try_bug(name, _SEED, tmp_path)
    rules = {violation.rule for violation in tried.outcome.violations}
    assert tried.caught, f"seed {_SEED}: {planted.BUGS[name].story}, and only {rules}"


class _Notes:
    """Takes the place of a scene: nothing happens, and everything is written down."""

    def __init__(self) -> None:
        self.members: list[SimpleNamespace] = []
        self.producer = None
        self.story: list[tuple[object, ...]] = []
        self.recorder = SimpleNamespace(note=lambda what, **facts: self.story.append((what, *facts.values())))

    def join(self, group: str, *options: str) -> None:
        self.story.append(("join", group, *options))
        self.members.append(SimpleNamespace(name=f"m{len(self.story)}", group=group, is_stopped=False))

    def of(self, group: str) -> list[SimpleNamespace]:
        return [member for member in self.members if member.group == group]

    def leave(self, member: SimpleNamespace) -> None:
        self.story.append(("leave", member.name))
        self.members.remove(member)

    def kill(self, member: SimpleNamespace) -> None:
        self.story.append(("kill", member.name))
        self.members.remove(member)

    def stop(self, member: SimpleNamespace) -> None:
        self.story.append(("stop", member.name))
        member.is_stopped = True

    def wake(self, member: SimpleNamespace) -> None:
        self.story.append(("wake", member.name))
        member.is_stopped = False

    def end_broker(self, how: object, down_s: float) -> None:
        self.story.append(("end broker", how, down_s))

    def produce(self) -> None:
        self.story.append(("produce",))

    def until_joined(self) -> None:
        pass

    def until_produced(self) -> None:
        pass

    def watch_for_failures(self) -> None:
        pass


def test_a_seed_repeats_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same acts in the same order, to the same members."""
    monkeypatch.setattr(churn, "time", SimpleNamespace(sleep=lambda _: None))
    stories = []
    for seed in (1, 1, 2):
        notes = _Notes()
        churn.Churn(notes, Plan(60.0), seed).run()  # type: ignore[arg-type]
        stories.append(notes.story)
    assert stories[0] == stories[1] != stories[2]
    assert {"join", "leave", "kill", "stop", "wake", "end broker"} <= {entry[0] for entry in stories[0]}


def test_a_history_can_be_judged_although_its_recorder_was_killed(tmp_path: Path) -> None:
    """The records are in the files: the judge needs nothing else."""
    with Scene(tmp_path / "scene", seed=_SEED) as scene:
        scene.join(terms.BYSTANDER)
        scene.until_joined()
        scene.produce()
        _until_handled(scene, 5)
        for child in [*scene.members, scene.producer]:
            assert child is not None
            scene.kill(child)
    events = read(tmp_path / "scene" / "events")
    assert {"put", "acked", "begun", "handled", "killed"} <= {event.what for event in events}
    assert outcome_of(tmp_path / "scene" / "events").counts["kills"] == 2


def _until_handled(scene: Scene, count: int) -> None:
    tail, handled = Tail(scene.events), Counter[str]()

    def enough() -> bool:
        handled.update(event.what for event in tail.new())
        return handled["handled"] >= count

    wait_until(enough, what="nothing is handled")
