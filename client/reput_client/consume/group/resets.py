"""An administrator has set the group's offsets: the broker tells its members to go on elsewhere (220)."""

from __future__ import annotations

import logging

from reput_client.consume.group.fetching import Fetcher
from reput_client.transport.broker_requests import BrokerRequest
from reput_protocol.bodies_reset import ResetOffsetBody
from reput_protocol.commands_consume import ResetOffsetHeader

log = logging.getLogger("reput_client")


class ResetNotices:
    """Drops what is held of queues whose offsets were set, and goes on where they are now.

    The answer to a queue's next pull would say the same. What is in flight is finished; it counts if it lies before the
    new place.
    """

    def __init__(self, group: str, fetcher: Fetcher) -> None:
        self._group = group
        self._fetcher = fetcher

    def take(self, request: BrokerRequest) -> None:
        """Handle a request 220."""
        if ResetOffsetHeader.from_ext(request.ext).group == self._group:
            for queue, offset in ResetOffsetBody.from_json(request.body).offset_table.items():
                assigned = self._fetcher.queues.get(queue)
                if assigned is not None:
                    log.info("queue %s was set to offset %d", queue, offset)
                    self._fetcher.go_on_at(assigned, offset)
            self._fetcher.wake()
        request.answer()
