"""The recorder of the history: what it samples, which names it keeps, and a file that cannot be used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from reput_broker.config.model import BrokerConfig
from reput_broker.groups.lag import GroupLag
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import Health
from reput_broker.observe.history import recorder
from reput_broker.observe.history.file import COLUMNS, NAME, NAMES_MAX, HistoryFile, Kind, Stretch, What
from reput_broker.observe.history.recorder import History, NamePlaces
from reput_broker.observe.metrics import MetricsSources
from support.tenures import REPLICATION

BEGIN_MS = 1_800_000_000_000
NAMES = [column.name for column in COLUMNS]


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the work of threads done at once: the virtual clock runs on while threads work."""

    async def run_now(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_now)


def sources() -> MetricsSources:
    """Sources whose clock is trio's."""
    began_at = trio.current_time()
    return MetricsSources(
        BrokerConfig(), Counters(), Health(), clock_ms=lambda: BEGIN_MS + round(1000 * (trio.current_time() - began_at))
    )


@asynccontextmanager
async def recording(of: MetricsSources) -> AsyncIterator[History]:
    history = History(of)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.run)
        yield history
        nursery.cancel_scope.cancel()


async def read(history: History, begin_s: int, **options: Any) -> Stretch:
    end_s = history._sources.clock_ms() // 1000 + 1
    begin_s = begin_s if begin_s > 0 else end_s + begin_s
    return await history.read(begin_s, end_s, 720, lambda stretch: stretch, **options)


def known(stretch: Stretch, name: str) -> list[float]:
    place = NAMES.index(name)
    return [row[place] for row in stretch.rows if row is not None and row[place] == row[place]]


@pytest.mark.trio
async def test_samples_wait_for_the_file_and_are_in_it_after_a_restart(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    begin_s = BEGIN_MS // 1000
    of = sources()
    async with recording(of) as history:
        await trio.sleep(5.5)
        of.counters.produce_seconds["flushed"].observe(0.004, 100)
        waiting = await read(history, begin_s)
        assert len(known(waiting, "messages_in_per_s")) == 5
        await history.open(tmp_path)
        history.note(What.BECAME_MASTER, 7)
        await trio.sleep(2)
        await history.close()
        await trio.sleep(2)
        await history.open(tmp_path)
        await trio.sleep(1)
        found = await read(history, begin_s)
        assert len(known(found, "messages_in_per_s")) == 10
        assert sum(known(found, "puts_le_0.005")) == 100
        assert [(event.what, event.epoch) for event in found.events] == [(What.STARTED, 0), (What.BECAME_MASTER, 7)]
        assert await history.read(begin_s, begin_s + 3, 720, lambda stretch: len(stretch.rows)) == 3


@pytest.mark.trio
async def test_the_lag_of_groups_is_that_of_a_master(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    of = sources()

    of.groups = SimpleNamespace(  # type: ignore[assignment]
        lag=SimpleNamespace(
            looked_up_at_s=1.0,
            all_of_users=GroupLag(50, 3.0),
            of_group={"billing": GroupLag(50, 3.0), "CID_RMQ_SYS_TRANS": GroupLag(9, 1.0)},
        )
    )
    of.replication = lambda: REPLICATION._replace(slave=None)
    async with recording(of) as history:
        await history.open(tmp_path)
        await trio.sleep(30)
        named = (await read(history, -600, has_names=True)).named[Kind.GROUP]
        assert set(named) == {"billing"}
        assert {value for value in named["billing"][0] if value == value} == {50}
        assert set(known(await read(history, -60), "lag")) == {50}
        of.replication = lambda: REPLICATION._replace(master=None)
        await trio.sleep(30)
        now_s = of.clock_ms() // 1000
        assert known(await read(history, now_s - 20), "lag") == []
        assert set(known(await read(history, now_s - 20), "replica_lag_bytes")) == {10}
        await history.close()


@pytest.mark.trio
@pytest.mark.parametrize("content", [b"", b"of another program", b"RPUTHIST" + bytes(100)])
async def test_a_foreign_file_is_set_aside_and_named(
    tmp_path: Path, content: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    (tmp_path / NAME).write_bytes(content)
    with structlog.testing.capture_logs() as logs:
        async with recording(sources()) as history:
            await history.open(tmp_path)
            await trio.sleep(3.5)
            assert len(known(await read(history, -60), "cpu_ratio")) == 3
            await history.close()
    assert (tmp_path / f"{NAME}.foreign-1").read_bytes() == content
    (entry,) = (entry for entry in logs if entry["event"] == "history_set_aside")
    assert entry["kept_as"] == str(tmp_path / f"{NAME}.foreign-1")
    HistoryFile(tmp_path / NAME).close()


@pytest.mark.trio
async def test_without_room_for_the_file_the_history_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    def full(_path: Path | None) -> HistoryFile:
        if _path is not None:
            raise OSError(28, "No space left on device")
        return HistoryFile(None)

    monkeypatch.setattr(recorder, "HistoryFile", full)
    with structlog.testing.capture_logs() as logs:
        async with recording(sources()) as history:
            await history.open(tmp_path)
            await trio.sleep(3.5)
            assert len(known(await read(history, -60), "cpu_ratio")) == 3
    assert [entry["event"] for entry in logs] == ["history_in_memory"]
    assert not (tmp_path / NAME).exists()


@pytest.mark.trio
async def test_what_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with structlog.testing.capture_logs() as logs:
        async with recording(sources()) as history:
            await history.open(tmp_path)
            await trio.sleep(2.5)
            history.note(What.BECAME_MASTER, 1)
            with monkeypatch.context() as broken:
                broken.setattr(HistoryFile, "append", fails)
                await trio.sleep(3)
            await trio.sleep(2)
            found = await read(history, -60)
            assert len(known(found, "cpu_ratio")) == 7
            assert [event.what for event in found.events] == [What.STARTED, What.BECAME_MASTER]
            await history.close()
    assert [entry["event"] for entry in logs] == ["history_not_written"]


@pytest.mark.trio
async def test_a_disk_that_hangs_delays_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    begin_s = BEGIN_MS // 1000

    async def run_late(work: Callable[..., Any], *arguments: Any) -> Any:
        await trio.sleep(800)
        return work(*arguments)

    samples: list[int] = []
    async with recording(sources()) as history:
        history.on_sample = lambda sample: samples.append(sample.at_s)
        await history.open(tmp_path)
        with monkeypatch.context() as hung:
            hung.setattr(trio.to_thread, "run_sync", run_late)
            await trio.sleep(790.5)
        await trio.sleep(15)
        assert samples == [*range(begin_s + 1, begin_s + 806)]
        # Those of ten minutes have waited for it.
        found = await read(history, begin_s + 210)
        assert len(known(found, "cpu_ratio")) in (595, 596)
        await history.close()


def test_a_name_gets_the_place_of_one_that_is_gone_or_quiet() -> None:
    file = HistoryFile(None)
    places = NamePlaces(file, Kind.GROUP)
    busy = {f"g-{number}": (float(number + 1), 1.0) for number in range(NAMES_MAX)}
    assert len(places.take(busy, 1000)) == NAMES_MAX
    more = {**busy, "new": (5.0, 1.0), "idle": (0.0, 0.0), "n" * 300: (9.0, 1.0), "\ud800" * 99: (0.0, 0.0)}
    assert len(places.take(more, 2000)) == NAMES_MAX
    assert "new" not in {held[0] for held in file.names[Kind.GROUP] if held}
    gone = {name: values for name, values in more.items() if name != "g-3"}
    places.take(gone, 3000)
    assert file.names[Kind.GROUP][busy_place(busy, "g-3")] == ("new", 2990)
    quiet = {**gone, "g-4": (0.0, 0.0), "newer": (1.0, 1.0)}
    places.take(quiet, 4000)
    assert "newer" not in {held[0] for held in file.names[Kind.GROUP] if held}
    places.take(quiet, 3000 + 3600)
    assert ("newer", 6590) in file.names[Kind.GROUP]
    again = NamePlaces(file, Kind.GROUP)  # after a restart
    assert dict(again.take(quiet, 7000)).keys() == dict(places.take(quiet, 7000)).keys()


def busy_place(busy: dict[str, tuple[float, float]], name: str) -> int:
    """The highest lag got the first place."""
    return sorted(busy, key=lambda one: busy[one], reverse=True).index(name)
