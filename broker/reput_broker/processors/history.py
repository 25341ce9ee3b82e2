"""READ_HISTORY: the figures of this broker in the past days, for consoles. Reput's own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from reput_broker.observe.history.columns import COLUMNS
from reput_broker.observe.history.file import Kind, Stretch
from reput_broker.observe.history.recorder import History, facts
from reput_broker.observe.metrics import MetricsSources
from reput_broker.request import Processor, Request, Response, serves
from reput_protocol.codes import RequestCode
from reput_protocol.commands import history as bodies
from reput_protocol.commands.body import encode_json


class HistoryProcessor(Processor):
    """Answers from the history, in every role."""

    def __init__(self, history: History, sources: MetricsSources) -> None:
        self._history = history
        self._sources = sources

    @serves(RequestCode.READ_HISTORY)
    async def read(self, request: Request) -> Response:
        """Answer with the figures of a range of time, and with the state of the broker now."""
        header = bodies.ReadHistoryHeader.from_ext(request.ext)
        now_ms = self._sources.clock_ms()
        begin_s, end_s = (
            value if value > 0 else now_ms // 1000 + 1 + value
            for value in (header.begin_seconds, header.end_seconds)
        )
        is_kept = self._history.is_kept
        convert = partial(_encoded, now_ms=now_ms, facts=facts(self._sources), is_kept=is_kept)
        if not is_kept:
            return Response(0, body=convert(Stretch(max(0, begin_s), 1, [])))
        body = await self._history.read(begin_s, end_s, header.rows_max, convert, has_names=header.has_names)
        return Response(0, body=body)


def _encoded(stretch: Stretch, *, now_ms: int, facts: dict[str, Any], is_kept: bool) -> bytes:
    """Return the body. Takes a moment for many rows, so that a worker thread does it."""
    columns = [
        (column.name, _values(None if row is None else row[place] for row in stretch.rows))
        for place, column in enumerate(COLUMNS)
    ]
    groups, topics = (stretch.named.get(kind, {}) for kind in (Kind.GROUP, Kind.TOPIC))
    return encode_json(
        bodies.BrokerHistory(
            stretch.begin_s,
            stretch.step_s,
            len(stretch.rows),
            {name: values for name, values in columns if any(value is not None for value in values)},
            [bodies.GroupHistory(name, *map(_values, values)) for name, values in groups.items()],
            [bodies.TopicHistory(name, *map(_values, values)) for name, values in topics.items()],
            [
                bodies.BrokerEvent(event.at_ms, event.what.name.lower(), event.epoch)
                for event in stretch.events
            ],
            now_ms,
            facts,
            is_kept,
        )
    )


def _values(values: Iterable[float | None]) -> list[float | None]:
    """Return values without NaN, and as short as they are exact."""
    return [None if value is None or value != value else round(value, 6) for value in values]
