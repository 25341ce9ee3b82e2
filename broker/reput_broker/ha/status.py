"""The state of replication (907), and an offset in a slave's checkpoint (908) (RocketMQ: AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable

from reput_broker.request import Handler, Request, Response
from reput_protocol.codes import RequestCode
from reput_protocol.commands.ha import HARuntimeInfo, ResetMasterFlushOffsetHeader


class HAStatusProcessor:
    """Answers with the state.

    Args:
        state: returns it as of now.
        set_master_flushed: keeps the master's flushed offset in the checkpoint; None at a master.
    """

    def __init__(
        self,
        state: Callable[[], HARuntimeInfo],
        set_master_flushed: Callable[[int], None] | None = None,
    ) -> None:
        self._state = state
        self._set_master_flushed = set_master_flushed

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_BROKER_HA_STATUS: self.status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_master_flush_offset,
        }

    def status(self, _request: Request) -> Response:
        """Answer with the slaves of a master, or with how far a slave is."""
        return Response(0, body=self._state().to_json())

    def reset_master_flush_offset(self, request: Request) -> Response:
        """Set `masterFlushedOffset` of a slave's checkpoint; a master does nothing."""
        offset = ResetMasterFlushOffsetHeader.from_ext(request.ext).master_flush_offset
        if self._set_master_flushed is not None and offset is not None:
            self._set_master_flushed(offset)
        return Response()
