"""The next time of a cron expression is that of a search through all minutes, also while the clock is set."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from zoneinfo import ZoneInfo

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from reput_broker.schedule.messages import IntervalTimes, Times, between, times_of

MINUTE = timedelta(minutes=1)
RANGES = (range(60), range(24), range(1, 32), range(1, 13), range(8))
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Casablanca")


class Field:
    """One field: its text, and the values that it stands for."""

    def __init__(self, text: str, values: set[int]) -> None:
        self.text = text
        self.values = values

    def __repr__(self) -> str:
        return self.text


@st.composite
def parts(draw: st.DrawFn, values: range, domain: range) -> Field:
    """A value, a range, or either or all with a step."""
    low, high = sorted((draw(st.sampled_from(values)), draw(st.sampled_from(values))))
    step = draw(st.integers(1, 20))
    # A single value with a step begins a range up to the end.
    stepped = domain[low - domain[0] :: step] if low == high else range(low, high + 1, step)
    return draw(
        st.sampled_from(
            [
                Field(str(low), {low}),
                Field(f"{low}-{high}", {*range(low, high + 1)}),
                Field(f"{low}-{high}/{step}", {*stepped}),
                Field(f"*/{step}", {*domain[::step]}),
                Field("*", {*domain}),
            ]
        )
    )


def fields(values: range, domain: range | None = None) -> st.SearchStrategy[Field]:
    lists = st.lists(parts(values, values if domain is None else domain), min_size=1, max_size=3)
    return lists.map(
        lambda found: Field(",".join(part.text for part in found), set().union(*(part.values for part in found)))
    )


class Expression:
    """An expression, and which days and minutes it stands for."""

    def __init__(self, found: tuple[Field, ...]) -> None:
        self.text = " ".join(field.text for field in found)
        self.minutes, self.hours, self.days, self.months, weekdays = (field.values for field in found)
        self.weekdays = {day % 7 for day in weekdays}
        self.needs_both = found[2].text.startswith("*") or found[4].text.startswith("*")
        self.is_fixed = not (found[0].text.startswith("*") or found[1].text.startswith("*"))

    def __repr__(self) -> str:
        return self.text

    def has_day(self, local: datetime) -> bool:
        by_day, by_weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return local.month in self.months and (by_day and by_weekday if self.needs_both else by_day or by_weekday)

    def has(self, local: datetime) -> bool:
        return local.minute in self.minutes and local.hour in self.hours and self.has_day(local)

    def search(self, zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
        """Return the first moment after `after` that is not after `until`, in UTC; None without one."""
        candidates = self._fixed(zone, after, until) if self.is_fixed else self._passing(zone, after, until)
        return min((moment for moment in candidates if after < moment <= until), default=None)

    def _passing(self, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
        moment = after.replace(second=0, microsecond=0)
        while moment <= until:
            moment += MINUTE
            if self.has(moment.astimezone(zone)):
                yield moment
                return

    def _fixed(self, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
        day = after.astimezone(zone).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
        day -= timedelta(days=1)
        while day <= until.astimezone(zone).replace(tzinfo=None):
            for hour, minute in product(sorted(self.hours), sorted(self.minutes)) if self.has_day(day) else ():
                yield _first_moment(day.replace(hour=hour, minute=minute), zone)
            day += timedelta(days=1)


def _first_moment(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment at which clocks show this, or if they skip it, the next one that they show."""
    while True:
        moment = local.replace(tzinfo=zone).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) == local:
            return moment
        local += MINUTE


expressions = st.tuples(*map(fields, RANGES)).map(Expression)
times_of_day = st.tuples(
    fields(RANGES[0]), fields(range(5), RANGES[1]), *(st.just(Field("*", {*values})) for values in RANGES[2:])
).map(Expression)
changes = st.sampled_from(
    [
        datetime(2024, 3, 31, 1, tzinfo=UTC),  # Europe
        datetime(2024, 10, 27, 1, tzinfo=UTC),
        datetime(2024, 3, 10, 7, tzinfo=UTC),  # New York
        datetime(2024, 11, 3, 6, tzinfo=UTC),
        datetime(2024, 4, 6, 15, tzinfo=UTC),  # Lord Howe, half an hour
        datetime(2024, 10, 5, 15, 30, tzinfo=UTC),
        datetime(2024, 3, 10, 2, tzinfo=UTC),  # Casablanca
        datetime(2024, 4, 14, 2, tzinfo=UTC),
    ]
)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@settings(max_examples=40)
@given(expressions, st.datetimes(datetime(2023, 1, 1), datetime(2025, 1, 1)))
def test_the_next_time_is_the_first_that_fits(expression: Expression, after: datetime) -> None:
    after = after.replace(tzinfo=UTC)
    until = after + timedelta(days=3)
    expected = expression.search(ZoneInfo("UTC"), after, until)
    found = times_of(expression.text, "UTC", 0).next(ms(after)) if expected else None
    assert found == (expected and ms(expected))


@settings(max_examples=40)
@given(times_of_day, st.sampled_from(ZONES), changes, st.integers(-60 * 30, 60 * 30), st.integers(0, 59_999))
@example(
    Expression(
        tuple(
            Field(t, v)
            for t, v in (("30", {30}), ("2", {2}), ("*", {*RANGES[2]}), ("*", {*RANGES[3]}), ("*", {*RANGES[4]}))
        )
    ),
    "Europe/Berlin",
    datetime(2024, 10, 27, 1, tzinfo=UTC),
    15,
    0,
)  # within the second pass of the hour
def test_the_next_time_near_a_change_of_the_clock(
    expression: Expression, name: str, change: datetime, minutes: int, offset_ms: int
) -> None:
    # A clock that is set by half an hour: see docs/schedules.md.
    assume(name != "Australia/Lord_Howe" or expression.is_fixed)
    after = change + timedelta(minutes=minutes, milliseconds=offset_ms)
    until = after + timedelta(days=2)
    expected = expression.search(ZoneInfo(name), after, until)
    assert expected is not None
    assert times_of(expression.text, name, 0).next(ms(after)) == ms(expected)


@given(times_of_day, changes, st.integers(1, 3 * 24 * 60))
def test_the_latest_time_is_the_last_of_a_walk(expression: Expression, change: datetime, minutes: int) -> None:
    times = times_of(expression.text, "Europe/Berlin", 0)
    until_ms = ms(change) + 86_400_000
    after_ms = until_ms - minutes * 60_000
    found = [*between(times, after_ms, until_ms)]
    assert times.latest(after_ms, until_ms) == max(found, default=None)
    assert found == [*_one_by_one(times, after_ms, until_ms)]


def _one_by_one(times: Times, after_ms: int, until_ms: int) -> Iterator[int]:
    """The times, each looked for by itself."""
    time_ms = times.next(after_ms)
    while time_ms is not None and time_ms <= until_ms:
        yield time_ms
        time_ms = times.next(time_ms)


@given(st.integers(1000, 10**7), st.integers(0, 10**12), st.integers(0, 2 * 10**12))
def test_intervals_begin_after_the_anchor_and_keep_their_distance(
    interval_ms: int, anchor_ms: int, after_ms: int
) -> None:
    times = IntervalTimes(interval_ms, anchor_ms)
    first = times.next(after_ms)
    assert first is not None
    assert first > max(after_ms, anchor_ms)
    assert (first - anchor_ms) % interval_ms == 0
    assert first - interval_ms <= max(after_ms, anchor_ms)
    assert times.next(first) == first + interval_ms
    assert times.latest(after_ms, first) == first
    assert times.latest(after_ms, first + 2 * interval_ms - 1) == first + interval_ms
    assert times.latest(after_ms, first - 1) is None
