"""Schedules of one broker: their service, their request processor and their figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from reput_broker.observe.counters import ScheduleStats
from reput_broker.observe.metrics import ScheduleSources
from reput_broker.request import Handler
from reput_broker.schedule.messages import ScheduledMessages
from reput_broker.schedule.processor import ScheduleProcessor
from reput_broker.schedule.service import ScheduleService
from reput_broker.tenure.core import Core


class ScheduleFeature:
    """Schedules, over an open storage."""

    def __init__(self, core: Core) -> None:
        messages, stats = ScheduledMessages(core), ScheduleStats()
        self._service = ScheduleService(core, messages, stats)
        self._processor = ScheduleProcessor(core, self._service, messages)
        core.sources.schedules = ScheduleSources(stats, self._service.states, lambda: self._service.late_s)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return self._processor.handlers()

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return self._service.tasks()
