"""The state of replication, as `mqadmin haStatus` shows it (907; RocketMQ: AdminBrokerProcessor.getBrokerHaStatus)."""

from __future__ import annotations

from collections.abc import Callable

from reput_broker.request import Handler, Request, Response
from reput_protocol.codes import RequestCode
from reput_protocol.commands.ha import HARuntimeInfo


class HAStatusProcessor:
    """Answers with the state.

    Args:
        state: returns it as of now.
    """

    def __init__(self, state: Callable[[], HARuntimeInfo]) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.GET_BROKER_HA_STATUS: self.status}

    def status(self, request: Request) -> Response:
        """Answer with the slaves of a master, or with how far a slave is."""
        request.client.note_role("admin")
        return Response(0, body=self._state().to_json())
