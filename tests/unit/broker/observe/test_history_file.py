"""The file of the history: what is read is what was written, whatever a kill or another program has left in it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reput_broker.observe.history import file as history_file
from reput_broker.observe.history.file import (
    COLUMNS,
    EVENTS_MAX,
    FILE_BYTES,
    NAME,
    NAMES_MAX,
    NOTHING,
    RINGS,
    Column,
    Event,
    HistoryFile,
    Kind,
    NotAHistory,
    Stretch,
    What,
    no_named,
    place_of,
)

NOW_S = 1_800_000_000
IN, LAG = (next(i for i, column in enumerate(COLUMNS) if column.name == n) for n in ("messages_in_per_s", "lag"))


@contextmanager
def opened(path: Path | None) -> Iterator[HistoryFile]:
    file = HistoryFile(path)
    try:
        yield file
    finally:
        file.close()


def row(value: float, **others: float) -> list[float]:
    names = [column.name for column in COLUMNS]
    values = [NOTHING] * len(COLUMNS)
    values[IN] = value
    for name, other in others.items():
        values[names.index(name)] = other
    return values


def of(stretch: Stretch, column: int = IN) -> list[float | None]:
    return [None if values is None or math.isnan(values[column]) else values[column] for values in stretch.rows]


def fill(file: HistoryFile, begin_s: int, count: int) -> None:
    for number in range(count):
        file.append(begin_s + number, row(number, lag=count - number))


def test_a_second_is_read_as_it_was_written_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with opened(path) as file:
        fill(file, NOW_S, 100)
        file.append(NOW_S + 110, row(7))
    assert path.stat().st_size == FILE_BYTES
    with opened(path) as file:
        found = file.read(NOW_S + 98, NOW_S + 112, 100, NOW_S + 111)
        assert (found.begin_s, found.step_s) == (NOW_S + 98, 1)
        assert of(found) == [98, 99, *[None] * 10, 7, None]


def test_longer_steps_are_made_of_shorter_ones_across_a_restart(tmp_path: Path) -> None:
    begin_s = NOW_S - NOW_S % 600
    with opened(tmp_path / NAME) as file:
        fill(file, begin_s, 905)  # in the middle of a step of each ring
    with opened(tmp_path / NAME) as file:
        for second in range(905, 1300):
            file.append(begin_s + second, row(second, lag=1))
        now_s = begin_s + 1299
        minutes = file.read(now_s - 80_000, now_s + 1, 2016, now_s)
        assert minutes.step_s == 60
        known = [value for value in of(minutes) if value is not None]
        assert known == pytest.approx([60 * k + 29.5 for k in range(21)] + [1279.5])
        longest = file.read(now_s - 10 * 86400, now_s + 1, 2016, now_s)
        assert longest.step_s == 600
        assert [value for value in of(longest) if value is not None] == pytest.approx(
            [299.5, 899.5, (1229.5 + 1279.5) / 2]  # the minute that has not ended counts like the one before
        )
        # The highest lag of the seconds, not their mean.
        assert [value for value in of(longest, LAG) if value is not None][:2] == [905, 305]


def test_a_range_is_read_from_the_shortest_step_that_reaches_back_so_far(tmp_path: Path) -> None:
    with opened(None) as file:
        for ago_s, step_s in ((300, 1), (600, 1), (601, 10), (7200, 10), (86400, 60), (14 * 86400, 600)):
            assert file.read(NOW_S - ago_s, NOW_S, 2016, NOW_S).step_s == step_s
        halved = file.read(NOW_S - 7200, NOW_S, 360, NOW_S)
        assert (halved.step_s, len(halved.rows)) == (20, 360)
        for begin_s, end_s in ((-(1 << 62), 1 << 62), (1 << 62, 0), (NOW_S + 5, NOW_S - 5), (NOW_S, 1 << 62)):
            for rows_max in (1, 2016):
                assert 1 <= len(file.read(begin_s, end_s, rows_max, NOW_S).rows) <= rows_max + 1
        beyond = file.read(NOW_S - 30 * 86400, NOW_S, 2016, NOW_S)
        assert beyond.begin_s >= NOW_S - 14 * 86400 - 600


def test_rows_of_an_earlier_lap_and_of_a_clock_that_was_ahead_are_not_shown() -> None:
    with opened(None) as file:
        fill(file, NOW_S, 5)
        later_s = NOW_S + RINGS[0].rows  # the same places, a lap later
        file.append(later_s + 2, row(1))
        assert of(file.read(later_s, later_s + 4, 100, later_s + 4)) == [None, None, 1, None]
        file.append(later_s + 100_000, row(2))  # the clock was set forward, and back
        file.append(later_s + 3, row(3))
        assert of(file.read(later_s, later_s + 4, 100, later_s + 4)) == [None, None, 1, 3]


def test_the_figures_of_a_name_begin_when_it_got_its_place() -> None:
    begin_s = NOW_S - NOW_S % 60
    first = place_of(Kind.GROUP, 3)
    with opened(None) as file:
        for number in range(61):
            named = no_named()
            named[first : first + 2] = [float(number), 0.5]
            if number == 30:
                file.set_name(Kind.GROUP, 3, "second", begin_s + 20)
            elif number == 0:
                file.set_name(Kind.GROUP, 3, "first", begin_s)
            file.append(begin_s + number, row(0), named)
        now_s = begin_s + 61
        found = file.read(now_s - 300, now_s, 720, now_s, has_names=True).named[Kind.GROUP]
        assert list(found) == ["second"]
        assert [value for value in found["second"][0] if value == value] == [30, 40, 50, 60]
        place = place_of(Kind.TOPIC, NAMES_MAX - 1)
        assert place + 2 == len(no_named())


def test_events_are_kept_in_a_ring(tmp_path: Path) -> None:
    with opened(tmp_path / NAME) as file:
        for number in range(EVENTS_MAX + 10):
            file.note(Event(1000 * (NOW_S + number), What.BECAME_MASTER, number))
    with opened(tmp_path / NAME) as file:
        file.note(Event(1000 * (NOW_S + 600), What.STOPPED, 0))
        events = file.read(NOW_S, NOW_S + 601, 700, NOW_S + 600).events
    assert [event.epoch for event in events] == [*range(11, EVENTS_MAX + 10), 0]
    assert events[-1].what is What.STOPPED


def test_a_later_version_may_have_more_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / NAME) as file:
        fill(file, NOW_S, 3)
    more = (Column("new", max, max), *COLUMNS)
    with monkeypatch.context() as later:
        later.setattr(history_file, "COLUMNS", more)
        with opened(tmp_path / NAME) as file:
            file.append(NOW_S + 3, [9, *row(3)])
            assert of(file.read(NOW_S, NOW_S + 4, 10, NOW_S + 4), IN + 1) == [0, 1, 2, 3]
            assert of(file.read(NOW_S, NOW_S + 4, 10, NOW_S + 4), 0) == [None, None, None, 9]
    with opened(tmp_path / NAME) as file:  # and this one reads what it knows
        assert of(file.read(NOW_S, NOW_S + 4, 10, NOW_S + 4)) == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with rows in every ring, names and events."""
    path = tmp_path_factory.mktemp("history") / NAME
    with opened(path) as file:
        file.set_name(Kind.TOPIC, 0, "orders", NOW_S)
        file.note(Event(1000 * NOW_S, What.STARTED, 1))
        fill(file, NOW_S, 1500)
    return path.read_bytes()


class _Killed(Exception):
    """Stands for the end of the process."""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(left=st.integers(0, 12_000), seconds=st.integers(1, 30))
def test_a_kill_at_any_byte_leaves_a_file_that_lacks_a_part_and_has_no_wrong_one(
    tmp_path: Path, written: bytes, left: int, seconds: int
) -> None:
    """Every write may be torn anywhere; those before it are whole. What is shown is what was written, or nothing."""
    path = tmp_path / NAME
    path.write_bytes(written)

    def torn_write(fd: int, data: bytes, at: int) -> int:
        nonlocal left
        part = bytes(data)[:left]
        left -= len(part)
        os.pwrite(fd, part, at)
        if len(part) < len(data):
            raise _Killed
        return len(part)

    class TornOs:
        def __getattr__(self, name: str) -> object:
            return torn_write if name == "pwrite" else getattr(os, name)

    begin_s = NOW_S + 1500
    file = HistoryFile(path)
    history_file.os, real = TornOs(), history_file.os  # type: ignore[attr-defined, assignment]
    try:
        for number in range(seconds):
            file.set_name(Kind.GROUP, number % NAMES_MAX, f"group-{number}", begin_s)
            file.append(begin_s + number, row(1500 + number, lag=3))
            file.note(Event(1000 * (begin_s + number), What.STARTED, number))
    except _Killed:
        pass
    finally:
        history_file.os = real  # type: ignore[attr-defined]
        file.close()

    with opened(path) as file:
        now_s = begin_s + seconds
        seconds_shown = of(file.read(now_s - 500, now_s, 600, now_s))
        assert all(value is None or value == now_s - 500 - NOW_S + number for number, value in enumerate(seconds_shown))
        missing = [number for number, value in enumerate(seconds_shown) if value is None]
        assert missing == [*range(500 - len(missing), 500)]
        minutes = of(file.read(now_s - 80_000, now_s, 2016, now_s))
        assert [value for value in minutes if value is not None][:20] == pytest.approx(
            [60 * k + 29.5 for k in range(20)]
        )
        for held in file.names[Kind.GROUP]:
            assert held is None or held[0].startswith("group-")
        assert file.names[Kind.TOPIC][0] == ("orders", NOW_S)
        fill(file, now_s, 700)  # it can be continued
        assert of(file.read(now_s + 200, now_s + 700, 600, now_s + 700)) == [*range(200, 700)]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.lists(st.tuples(st.integers(0, FILE_BYTES - 1), st.binary(min_size=1, max_size=3000)), max_size=6))
def test_damage_anywhere_is_a_gap_or_a_file_that_is_refused_whole(
    tmp_path: Path, written: bytes, damage: list[tuple[int, bytes]]
) -> None:
    path = tmp_path / NAME
    data = bytearray(written)
    for at, junk in damage:
        data[at : at + len(junk)] = junk[: FILE_BYTES - at]
    path.write_bytes(data)
    try:
        file = HistoryFile(path)
    except NotAHistory:
        assert path.read_bytes() == data
        assert any(at < 4096 for at, _ in damage)
        return
    now_s = NOW_S + 1500
    shown = of(file.read(now_s - 500, now_s, 600, now_s))
    assert all(value is None or value == 1000 + number for number, value in enumerate(shown))
    file.append(now_s, row(1500))
    file.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=5000), sparse_to=st.sampled_from([0, FILE_BYTES - 1, FILE_BYTES, FILE_BYTES + 1]))
def test_a_foreign_file_is_refused_and_not_changed(tmp_path: Path, content: bytes, sparse_to: int) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    if sparse_to > len(content):
        os.truncate(path, sparse_to)
    before = path.read_bytes()
    with pytest.raises(NotAHistory):
        HistoryFile(path)
    assert path.read_bytes() == before


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    target = tmp_path / "elsewhere"
    target.write_bytes(b"x")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    for name in ("directory", "link", "pipe"):
        with pytest.raises(NotAHistory, match="not a file"):
            HistoryFile(tmp_path / name)
    assert target.read_bytes() == b"x"


def test_a_kill_while_it_is_created_leaves_nothing_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / f"{NAME}.new").write_bytes(b"of a start that was killed")
    with monkeypatch.context() as patch:
        patch.setattr(history_file, "allocate", full)
        with pytest.raises(OSError, match="No space"):
            HistoryFile(tmp_path / NAME)
    assert list(tmp_path.iterdir()) == []
    with opened(tmp_path / NAME) as file:
        fill(file, NOW_S, 2)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
