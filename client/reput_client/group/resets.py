"""An administrator has set the group's offsets: the broker tells its members to go on elsewhere (220)."""

from __future__ import annotations

from reput_client.broker_requests import BrokerRequest
from reput_client.group.fetching import Fetcher
from reput_protocol.bodies_reset import ResetOffsetBody
from reput_protocol.commands_consume import ResetOffsetHeader


class ResetNotices:
    """Drops what is held of queues whose offsets were set, so that they are pulled again now.

    The answer to that pull says where to go on, and the broker ignores commits that come before it; so nothing is lost
    if the notice does not come. What is in flight is finished, and counts if it lies before the new place.
    """

    def __init__(self, group: str, fetcher: Fetcher) -> None:
        self._group = group
        self._fetcher = fetcher

    def take(self, request: BrokerRequest) -> None:
        """Handle a request 220."""
        if ResetOffsetHeader.from_ext(request.ext).group == self._group:
            for queue in ResetOffsetBody.from_json(request.body).offset_table:
                assigned = self._fetcher.queues.get(queue)
                if assigned is not None:
                    self._fetcher.halt(assigned)
            self._fetcher.wake()
        request.answer()
