"""Parts of `make soak KIND=cluster-faults` without namespaces: schedule, comparison of logs, view of the judges."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster_faults.logs import differences
from cluster_faults.recording import as_one_broker
from cluster_faults.troubles import WEIGHTS, Plan, Troubles
from histories.history import Event


class _Notes:
    """Takes the place of a cluster: nothing happens, and every act is written down."""

    is_whole = True

    def __init__(self) -> None:
        self.story: list[tuple[object, ...]] = []
        self.machines = [self._machine(number) for number in range(3)]
        self.master = self.machines[0]
        self.network = self._acting("isolate", "cut", "cut_both", "lose")
        self.etcd = self._acting("start", "stop", "pause", "resume")
        self.recorder = SimpleNamespace(note=lambda what, **facts: self.story.append((what, *facts.values())))

    def _machine(self, number: int) -> Any:
        acts = "kill", "stop", "start", "freeze", "thaw", "fill_disk", "empty_disk", "set_clock"
        machine = self._acting(*acts)
        machine.name, machine.address = f"b{number}", f"b{number}:1"
        machine.is_up, machine.is_frozen = True, False
        machine.stop = lambda: 0
        return machine

    def _acting(self, *names: str) -> Any:
        def act(name: str) -> Any:
            def acted(*arguments: object, **options: object) -> Any:
                self.story.append((name, *arguments, *options.values()))
                return lambda: self.story.append(("undo", name, *arguments, *options.values()))

            return acted

        return SimpleNamespace(**{name: act(name) for name in names})

    def promote(self, machine: Any) -> None:
        self.story.append(("promote", machine.name))

    def watch_for_failures(self) -> None:
        pass


def schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    monkeypatch.setattr("time.sleep", lambda _: None)
    notes = _Notes()
    cluster: Any = notes
    Troubles(cluster, Plan(600.0), seed).run()
    return notes.story


def test_a_seed_has_one_schedule_and_undoes_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    story = schedule(7, monkeypatch)
    assert story == schedule(7, monkeypatch)
    assert story != schedule(8, monkeypatch)
    begun = [str(step[1]) for step in story if step[0] == "fault"]
    assert sorted(begun) == sorted(str(step[1]) for step in story if step[0] == "healed")
    assert len(set(begun)) > len(WEIGHTS) / 2


def test_logs_are_compared_as_far_as_both_are_written(tmp_path: Path) -> None:
    stores = []
    for name, written in (("b0", b"abcd"), ("b1", b"ab"), ("b2", b"abX")):
        directory = tmp_path / name / "store" / "commitlog"
        directory.mkdir(parents=True)
        (directory / f"{0:020}").write_bytes(written + bytes(8 - len(written)))
        stores.append(directory.parent)
    assert [*differences(stores[:2])] == []
    assert [*differences(stores)] == ["b0 and b2 differ at offset 2"]


def test_only_another_master_may_take_back_what_was_acknowledged() -> None:
    told = [
        Event(1.0, "b0", "leads", {"epoch": 1}),
        Event(2.0, "b0", "leads", {"epoch": 2}),
        Event(3.0, "b1", "stood", {"since": 2.5}),
        Event(4.0, "b1", "leads", {"epoch": 3}),
    ]
    found = [(event.at, event.who, event.what) for event in as_one_broker(told)]
    assert found == [
        (1.0, "b0", "leads"),
        (2.0, "b0", "leads"),
        (3.0, "broker", "stood"),
        (4.0, "runner", "may-lose"),
        (4.0, "b1", "leads"),
    ]
